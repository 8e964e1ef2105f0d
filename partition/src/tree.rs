//! The module tree that dotted parameter names spell out, parents before children.

use crate::PartitionError;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::{Dfs, EdgeRef};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The modules of a model, found from the names of its parameters alone.
///
/// `layers.0.attn.q.weight` spells the modules `layers`, `layers.0` and `layers.0.attn` and
/// `layers.0.attn.q`, below a root whose path is empty. Node order is visit order, and a parent
/// comes before its children.
///
/// ```
/// use dmuon_partition::ModuleTree;
///
/// let tree = ModuleTree::from_names(["layers.0.q.weight", "layers.1.q.weight", "norm.gamma"])?;
/// let modules: Vec<_> = tree.modules().collect();
/// assert_eq!(modules, ["layers", "layers.0", "layers.0.q", "layers.1", "layers.1.q", "norm"]);
/// assert_eq!(tree.repeated(), ["layers.N"]);
/// # Ok::<(), dmuon_partition::PartitionError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ModuleTree {
    /// Invariant: node 0 is the root; every other node has one incoming edge, from a lower index.
    graph: DiGraph<String, ()>,
    by_path: BTreeMap<String, NodeIndex>,
    /// The module that holds each parameter, in visit order.
    homes: Vec<NodeIndex>,
}

impl ModuleTree {
    /// The tree of the modules that hold parameters of these names, given in visit order.
    ///
    /// # Errors
    /// A name given twice, or one with an empty part.
    pub fn from_names<'a>(
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, PartitionError> {
        let mut graph = DiGraph::new();
        let root = graph.add_node(String::new());
        let mut tree =
            Self { graph, by_path: BTreeMap::from([(String::new(), root)]), homes: Vec::new() };
        let mut seen = BTreeSet::new();
        for name in names {
            if name.split('.').any(str::is_empty) {
                return Err(PartitionError::EmptySegment { name: name.to_owned() });
            }
            if !seen.insert(name) {
                return Err(PartitionError::DuplicateName { name: name.to_owned() });
            }
            let home = tree.intern(parent(name));
            tree.homes.push(home);
        }
        Ok(tree)
    }

    /// Paths of all modules below the root, parents first, in order of first appearance.
    pub fn modules(&self) -> impl Iterator<Item = &str> {
        self.graph.node_weights().skip(1).map(String::as_str)
    }

    /// Patterns of modules that are numbered siblings, such as `layers.N`, outermost first.
    ///
    /// These are what a boundary rule usually looks for.
    pub fn repeated(&self) -> Vec<String> {
        let mut patterns: Vec<String> = Vec::new();
        for path in self.modules() {
            let Some((above, last)) = path.rsplit_once('.') else {
                continue;
            };
            let container = above.rsplit('.').next().unwrap_or(above);
            let pattern = format!("{container}.N");
            if is_number(last) && !is_number(container) && !patterns.contains(&pattern) {
                patterns.push(pattern);
            }
        }
        patterns
    }

    /// For each parameter, the lowest module around it of which `is_boundary` holds, if any.
    ///
    /// The predicate is asked once a module, with its path; it is not asked about the root.
    pub(crate) fn lowest(&self, mut is_boundary: impl FnMut(&str) -> bool) -> Vec<Option<&str>> {
        let mut nearest: Vec<Option<NodeIndex>> = vec![None; self.graph.node_count()];
        for node in self.graph.node_indices().skip(1) {
            nearest[node.index()] = if is_boundary(&self.graph[node]) {
                Some(node)
            } else {
                self.above(node).and_then(|above| nearest[above.index()])
            };
        }
        let path = |home: &NodeIndex| nearest[home.index()].map(|node| self.graph[node].as_str());
        self.homes.iter().map(path).collect()
    }

    fn above(&self, node: NodeIndex) -> Option<NodeIndex> {
        let mut edges = self.graph.edges_directed(node, petgraph::Direction::Incoming);
        edges.next().map(|edge| edge.source())
    }

    fn intern(&mut self, path: &str) -> NodeIndex {
        if let Some(&node) = self.by_path.get(path) {
            return node;
        }
        let above = self.intern(parent(path));
        let node = self.graph.add_node(path.to_owned());
        self.graph.add_edge(above, node, ());
        self.by_path.insert(path.to_owned(), node);
        node
    }
}

impl fmt::Display for ModuleTree {
    /// One module a line in visit order, indented by depth.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut visit = Dfs::new(&self.graph, NodeIndex::new(0));
        while let Some(node) = visit.next(&self.graph) {
            let path = &self.graph[node];
            if path.is_empty() {
                continue;
            }
            let depth = path.matches('.').count();
            let last = path.rsplit('.').next().unwrap_or(path);
            writeln!(f, "{:indent$}{last}", "", indent = 2 * depth)?;
        }
        Ok(())
    }
}

/// The path one level up; the root's is empty.
pub(crate) fn parent(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(above, _)| above)
}

/// The modules around a parameter, lowest first, without the root.
pub(crate) fn ancestors(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(parent(name)), |path| Some(parent(path)))
        .take_while(|path| !path.is_empty())
}

/// Whether a path part is an index.
pub(crate) fn is_number(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_come_before_children() {
        let tree = ModuleTree::from_names(["a.b.c.w", "d.w", "a.x"]).unwrap();
        assert_eq!(tree.modules().collect::<Vec<_>>(), ["a", "a.b", "a.b.c", "d"]);
    }

    #[test]
    fn lowest_finds_the_innermost_match() {
        let tree = ModuleTree::from_names(["a.b.c.w", "a.w", "w"]).unwrap();
        let found = tree.lowest(|path| path == "a" || path == "a.b");
        assert_eq!(found, [Some("a.b"), Some("a"), None]);
    }

    #[test]
    fn malformed_and_repeated_names_are_refused() {
        for name in ["", ".", "a..b", "a.", ".a"] {
            let error = ModuleTree::from_names([name]).unwrap_err();
            assert!(matches!(error, PartitionError::EmptySegment { .. }), "{name:?}");
        }
        let error = ModuleTree::from_names(["a.w", "b.w", "a.w"]).unwrap_err();
        assert_eq!(error, PartitionError::DuplicateName { name: "a.w".to_owned() });
    }

    #[test]
    fn display_indents_by_depth() {
        let tree = ModuleTree::from_names(["h.9.w", "x.w", "h.10.w"]).unwrap();
        assert_eq!(tree.to_string(), "h\n  9\n  10\nx\n");
    }
}
