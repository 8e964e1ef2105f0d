//! Which part of the model is gathered and reduced as one: boundaries, and the rule that finds them.

use crate::{Matrix, ModuleTree, PartitionError, pattern::Pattern, tree::ancestors};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, sync::Arc};

/// What becomes of a matrix that lies inside no boundary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strictness {
    /// An error lists all such matrices.
    #[default]
    Strict,
    /// They form the root boundary, whose path is empty, as parameters outside any wrapped module
    /// belong to the root unit in FSDP.
    Root,
}

/// Finds the boundary of a parameter: the lowest module around it that matches.
///
/// The default matches the blocks of most transformers: `layers.N`, `blocks.N`, `h.N`, `layer.N`.
/// A pattern is compared with the last parts of a module's path, so `layers.N` also finds
/// `model.decoder.layers.3`.
///
/// ```
/// use dmuon_partition::{BoundaryRule, Strictness};
///
/// let rule = BoundaryRule::default();
/// assert_eq!(rule.boundary_of("model.layers.3.attn.q.weight"), Some("model.layers.3"));
/// assert_eq!(rule.boundary_of("model.embed.weight"), None);
///
/// let stages = BoundaryRule::patterns(["stages.*.N"])?.with_strictness(Strictness::Root);
/// assert_eq!(stages.boundary_of("stages.high.2.up.weight"), Some("stages.high.2"));
/// assert_eq!(stages.boundary_of("head.weight"), Some(""));
///
/// let mlps = BoundaryRule::predicate(|module| module.ends_with(".mlp"));
/// assert_eq!(mlps.boundary_of("layers.3.mlp.up.weight"), Some("layers.3.mlp"));
/// # Ok::<(), dmuon_partition::PartitionError>(())
/// ```
#[derive(Clone)]
pub struct BoundaryRule {
    test: Test,
    strictness: Strictness,
}

#[derive(Clone)]
enum Test {
    Patterns(Vec<Pattern>),
    Predicate(Arc<dyn Fn(&str) -> bool + Send + Sync>),
}

impl BoundaryRule {
    /// What the default rule looks for.
    pub const DEFAULT_PATTERNS: [&'static str; 4] = ["layers.N", "blocks.N", "h.N", "layer.N"];

    /// Boundaries are the modules whose last path parts match one of the patterns; in a pattern
    /// `N` stands for a number and `*` for any one part.
    ///
    /// # Errors
    /// A pattern with an empty part, or with a `*` inside a longer part.
    pub fn patterns<'a>(
        patterns: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, PartitionError> {
        let patterns = patterns.into_iter().map(Pattern::parse).collect::<Result<_, _>>()?;
        Ok(Self { test: Test::Patterns(patterns), strictness: Strictness::default() })
    }

    /// Boundaries are the modules whose path the predicate accepts. It must answer alike on every
    /// rank. The root is not asked about: see [`Strictness::Root`].
    pub fn predicate(is_boundary: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self { test: Test::Predicate(Arc::new(is_boundary)), strictness: Strictness::default() }
    }

    /// Chooses what becomes of a matrix that lies inside no boundary.
    pub fn with_strictness(self, strictness: Strictness) -> Self {
        Self { strictness, ..self }
    }

    /// The path of the boundary around a parameter of any kind: matrix, norm, bias or embedding.
    ///
    /// Without a match it is the root's, the empty path, under [`Strictness::Root`] and `None`
    /// otherwise. Never an error: only matrices must have a home.
    pub fn boundary_of<'a>(&self, name: &'a str) -> Option<&'a str> {
        ancestors(name).find(|path| self.matches(path)).or_else(|| self.root())
    }

    /// Finds the boundary of every matrix. Boundaries are numbered by first appearance.
    ///
    /// # Errors
    /// A name that is malformed or given twice; under [`Strictness::Strict`], matrices without a
    /// home, all of them in one error.
    pub fn assign(&self, matrices: &[Matrix]) -> Result<Boundaries, PartitionError> {
        let tree = ModuleTree::from_names(matrices.iter().map(|matrix| matrix.name.as_str()))?;
        let homes = tree.lowest(|path| self.matches(path));
        let mut homeless = Vec::new();
        let mut boundaries = Boundaries::default();
        for (matrix, home) in matrices.iter().zip(homes) {
            match home.or_else(|| self.root()) {
                Some(path) => boundaries.push(path),
                None => homeless.push(matrix.name.clone()),
            }
        }
        if homeless.is_empty() {
            return Ok(boundaries);
        }
        let candidates = ModuleTree::from_names(homeless.iter().map(String::as_str))?.repeated();
        Err(PartitionError::Homeless { names: homeless, candidates })
    }

    fn matches(&self, path: &str) -> bool {
        match &self.test {
            Test::Patterns(patterns) => patterns.iter().any(|pattern| pattern.matches(path)),
            Test::Predicate(is_boundary) => is_boundary(path),
        }
    }

    fn root(&self) -> Option<&'static str> {
        (self.strictness == Strictness::Root).then_some("")
    }
}

impl Default for BoundaryRule {
    fn default() -> Self {
        let patterns = Self::DEFAULT_PATTERNS.map(|pattern| {
            Pattern::parse(pattern).expect("the default patterns are dotted names and N")
        });
        Self { test: Test::Patterns(patterns.to_vec()), strictness: Strictness::default() }
    }
}

impl fmt::Debug for BoundaryRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("BoundaryRule");
        match &self.test {
            Test::Patterns(patterns) => debug.field("patterns", patterns),
            Test::Predicate(_) => debug.field("predicate", &"Fn(&str) -> bool"),
        };
        debug.field("strictness", &self.strictness).finish()
    }
}

/// The boundary of each matrix of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Boundaries {
    /// Invariant: no path twice.
    names: Vec<String>,
    /// Invariant: `index[names[i]] == i`.
    index: BTreeMap<String, usize>,
    /// Invariant: one index a matrix, each below `names.len()`.
    of_matrix: Vec<usize>,
}

impl Boundaries {
    /// Boundaries chosen by hand: their paths, and for each matrix an index into them.
    ///
    /// # Errors
    /// A path given twice, or an index without a path.
    pub fn new(names: Vec<String>, of_matrix: Vec<usize>) -> Result<Self, PartitionError> {
        let mut index = BTreeMap::new();
        for (position, name) in names.iter().enumerate() {
            if index.insert(name.clone(), position).is_some() {
                return Err(PartitionError::DuplicateName { name: name.clone() });
            }
        }
        let num_boundaries = names.len();
        match of_matrix.iter().position(|&index| index >= num_boundaries) {
            Some(matrix) => {
                let index = of_matrix[matrix];
                Err(PartitionError::BoundaryIndex { matrix, index, num_boundaries })
            }
            None => Ok(Self { names, index, of_matrix }),
        }
    }

    /// Paths of the boundaries; the root's is empty.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// For each matrix, the index of its boundary.
    pub fn of_matrices(&self) -> &[usize] {
        &self.of_matrix
    }

    fn push(&mut self, path: &str) {
        let next = self.names.len();
        let boundary = *self.index.entry(path.to_owned()).or_insert(next);
        if boundary == next {
            self.names.push(path.to_owned());
        }
        self.of_matrix.push(boundary);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrices(names: &[&str]) -> Vec<Matrix> {
        names.iter().map(|name| Matrix::new(*name, 2, 2)).collect()
    }

    #[test]
    fn boundaries_are_numbered_by_first_appearance() {
        let given = matrices(&["h.1.q", "h.0.q", "h.1.k", "x.layers.7.y.blocks.2.w", "h.0.k"]);
        let boundaries = BoundaryRule::default().assign(&given).unwrap();
        assert_eq!(boundaries.names(), ["h.1", "h.0", "x.layers.7.y.blocks.2"]);
        assert_eq!(boundaries.of_matrices(), [0, 1, 0, 2, 1]);
    }

    #[test]
    fn one_error_lists_every_homeless_matrix_and_what_would_find_them() {
        let given = matrices(&["head.w", "layers.0.q", "stage.0.q", "stage.1.q"]);
        let error = BoundaryRule::default().assign(&given).unwrap_err();
        let message = error.to_string();
        assert!(message.starts_with("3 matrices lie inside no boundary"), "{message}");
        for part in ["\"head.w\"", "\"stage.0.q\"", "\"stage.1.q\"", "\"stage.N\""] {
            assert!(message.contains(part), "{message}");
        }
        assert!(!message.contains("layers"), "what has a home needs no advice: {message}");
    }

    #[test]
    fn root_strictness_gives_the_homeless_the_root() {
        let rule = BoundaryRule::default().with_strictness(Strictness::Root);
        let boundaries = rule.assign(&matrices(&["embed.w", "h.0.q", "head.w"])).unwrap();
        assert_eq!(boundaries.names(), ["", "h.0"]);
        assert_eq!(boundaries.of_matrices(), [0, 1, 0]);
    }

    #[test]
    fn rule_and_assignment_agree() {
        let given = matrices(&["h.0.a.h.1.q", "h.0.k", "h.0.a.q"]);
        let rule = BoundaryRule::default();
        let boundaries = rule.assign(&given).unwrap();
        for (matrix, &index) in given.iter().zip(boundaries.of_matrices()) {
            assert_eq!(rule.boundary_of(&matrix.name), Some(boundaries.names()[index].as_str()));
        }
    }

    #[test]
    fn boundaries_by_hand_are_checked() {
        let names = || vec!["a".to_owned(), "b".to_owned()];
        assert!(Boundaries::new(names(), vec![1, 0, 1]).is_ok());
        let error = Boundaries::new(names(), vec![0, 2]).unwrap_err();
        let expected = PartitionError::BoundaryIndex { matrix: 1, index: 2, num_boundaries: 2 };
        assert_eq!(error, expected);
        let twice = vec!["a".to_owned(), "a".to_owned()];
        assert!(matches!(
            Boundaries::new(twice, vec![]),
            Err(PartitionError::DuplicateName { .. })
        ));
    }
}
