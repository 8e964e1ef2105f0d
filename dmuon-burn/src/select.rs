//! Which parameters are matrices for Muon: by default the hidden ones, or by name or predicate.

use crate::error::{Error, Result};
use crate::inspect::ParameterInfo;
use std::fmt;
use std::sync::Arc;

/// Selects the parameters that Muon updates and one rank owns.
#[derive(Clone, Default)]
pub enum Matrices {
    /// Every parameter of two or more dimensions inside a boundary, except embeddings.
    #[default]
    Hidden,
    /// Parameters whose full name matches one of the patterns; `*` stands for any characters.
    Named(Vec<String>),
    /// Parameters the predicate accepts; it must answer alike on every rank.
    Predicate(Arc<dyn Fn(&ParameterInfo) -> bool + Send + Sync>),
}

impl Matrices {
    /// Parameters for which `select` is true.
    pub fn predicate(select: impl Fn(&ParameterInfo) -> bool + Send + Sync + 'static) -> Self {
        Self::Predicate(Arc::new(select))
    }

    /// Indices of the selected parameters.
    ///
    /// # Errors
    /// Nothing is selected, a pattern selects nothing, or something selected is no matrix.
    pub(crate) fn select(&self, parameters: &[ParameterInfo]) -> Result<Vec<usize>> {
        if let Self::Named(patterns) = self {
            let unused = patterns
                .iter()
                .find(|pattern| !parameters.iter().any(|p| matches(pattern, &p.name)));
            if let Some(pattern) = unused {
                return Err(self.nothing(format!("the selector \"{pattern}\""), parameters));
            }
        }
        let selected: Vec<usize> =
            (0..parameters.len()).filter(|&index| self.accepts(&parameters[index])).collect();
        if selected.is_empty() {
            return Err(self.nothing(self.to_string(), parameters));
        }
        let vectors = selected.iter().map(|&index| &parameters[index]);
        let vectors = vectors.filter(|parameter| parameter.shape.len() < 2);
        let names: Vec<String> =
            vectors.map(|parameter| format!("{} {:?}", parameter.name, parameter.shape)).collect();
        match names.is_empty() {
            true => Ok(selected),
            false => Err(Error::NotAMatrix { selector: self.to_string(), names }),
        }
    }

    fn accepts(&self, parameter: &ParameterInfo) -> bool {
        match self {
            Self::Hidden => {
                parameter.shape.len() >= 2
                    && parameter.boundary.is_some()
                    && !parameter.module.contains("Embedding")
            }
            Self::Named(patterns) => {
                patterns.iter().any(|pattern| matches(pattern, &parameter.name))
            }
            Self::Predicate(select) => select(parameter),
        }
    }

    fn nothing(&self, selector: String, parameters: &[ParameterInfo]) -> Error {
        let available = parameters.iter().map(|p| format!("{} {:?}", p.name, p.shape)).collect();
        Error::NothingSelected { selector, available }
    }
}

impl From<&str> for Matrices {
    fn from(pattern: &str) -> Self {
        Self::Named(vec![pattern.to_owned()])
    }
}

impl<const N: usize> From<[&str; N]> for Matrices {
    fn from(patterns: [&str; N]) -> Self {
        Self::Named(patterns.map(str::to_owned).to_vec())
    }
}

impl fmt::Debug for Matrices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Matrices({self})")
    }
}

impl fmt::Display for Matrices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hidden => f.write_str("the default selector (hidden matrices)"),
            Self::Named(patterns) => write!(f, "the selector \"{}\"", patterns.join("\", \"")),
            Self::Predicate(_) => f.write_str("the selector's predicate"),
        }
    }
}

/// Whether `name` matches `pattern`, in which each `*` stands for any characters.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => name.strip_prefix(head).is_some_and(|rest| {
            let mut starts = (0..=rest.len()).filter(|&at| rest.is_char_boundary(at));
            starts.any(|at| matches(tail, &rest[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_stand_for_any_characters() {
        for (pattern, name, expected) in [
            ("head.weight", "head.weight", true),
            ("head.weight", "head.weight2", false),
            ("layers.*.weight", "layers.0.attn.q.weight", true),
            ("layers.*.weight", "layers.0.attn.q.bias", false),
            ("*", "", true),
            ("*.q.*", "layers.0.q.weight", true),
            ("a*a", "a", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
