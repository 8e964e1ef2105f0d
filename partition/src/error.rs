//! What can go wrong while planning: always a fault of the input, never of a machine.

use crate::{MeshShape, Rank};

/// Why no plan could be made, and what to do about it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// Matrices that lie inside no boundary, under [`Strictness::Strict`](crate::Strictness).
    #[error(
        "{} lie inside no boundary: {}; {}, exclude them from Muon, or choose Strictness::Root \
         to keep them in the root boundary",
        count(names.len(), "matrix", "matrices"), quoted(names), advice(candidates)
    )]
    Homeless {
        /// Every matrix without a home, in visit order.
        names: Vec<String>,
        /// Patterns that would find boundaries in this module tree.
        candidates: Vec<String>,
    },
    /// Two parameters of one name.
    #[error("the name {name:?} is given twice: names must be unique, so pass each parameter once")]
    DuplicateName {
        /// The repeated name.
        name: String,
    },
    /// A name that is empty or has an empty part between dots.
    #[error(
        "the name {name:?} has an empty part: write dotted paths such as \"layers.0.q.weight\""
    )]
    EmptySegment {
        /// The name as given.
        name: String,
    },
    /// A matrix with a dimension of zero.
    #[error(
        "{name:?} is {batch} x {rows} x {cols}: every dimension must be at least 1, so exclude \
         empty weights from Muon"
    )]
    ZeroDim {
        /// The matrix.
        name: String,
        /// Its batch (1 for a plain matrix).
        batch: usize,
        /// Its rows.
        rows: usize,
        /// Its columns.
        cols: usize,
    },
    /// A matrix, or the model, whose number of elements does not fit in memory's address space.
    #[error("the elements up to {name:?} exceed what can be addressed: check its shape")]
    TooLarge {
        /// The matrix at which the count overflowed.
        name: String,
    },
    /// A measured cost model that misses matrices.
    #[error(
        "no measured cost for {}: measure them too, or use CostModel::NewtonSchulz",
        quoted(names)
    )]
    NotMeasured {
        /// Every matrix without a cost, in visit order.
        names: Vec<String>,
    },
    /// A cost that is negative, infinite or not a number.
    #[error("the cost of {name:?} is {cost}: costs must be finite and not negative")]
    BadCost {
        /// The matrix.
        name: String,
        /// The cost as given.
        cost: f64,
    },
    /// A slack that is negative, infinite or not a number.
    #[error("a slack of {slack} has no meaning: give a fraction such as 0.01 for one percent")]
    BadSlack {
        /// The slack as given.
        slack: f64,
    },
    /// A boundary pattern that cannot be read.
    #[error(
        "the boundary pattern {pattern:?} cannot be read: write dotted parts, each a name, N for \
         a number or * for anything, such as \"layers.N\""
    )]
    BadPattern {
        /// The pattern as given.
        pattern: String,
    },
    /// Matrices and boundary indices that do not pair up.
    #[error("{matrices} matrices come with {indices} boundary indices: give one index a matrix")]
    BoundaryCount {
        /// How many matrices there are.
        matrices: usize,
        /// How many boundary indices there are.
        indices: usize,
    },
    /// A boundary index that names no boundary.
    #[error("matrix {matrix} points at boundary {index} but there are only {num_boundaries}")]
    BoundaryIndex {
        /// Position of the matrix.
        matrix: usize,
        /// The index as given.
        index: usize,
        /// How many boundaries there are.
        num_boundaries: usize,
    },
    /// A plan, read from elsewhere, that gives a matrix to a rank outside its mesh.
    #[error(
        "the plan gives {name:?} to rank {owner}, which a {mesh} mesh does not have: plan anew"
    )]
    OwnerOutsideMesh {
        /// The matrix.
        name: String,
        /// The rank as given.
        owner: Rank,
        /// The plan's mesh.
        mesh: MeshShape,
    },
    /// A text that is no mode.
    #[error(
        "{given:?} is not a mode: write \"z2\" to keep gathered weights until backward is done, \
         or \"z3\" to drop them after forward and gather again"
    )]
    UnknownMode {
        /// The text as given.
        given: String,
    },
}

fn count(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

fn advice(candidates: &[String]) -> String {
    if candidates.is_empty() {
        "give a BoundaryRule that matches one of their parent modules".to_owned()
    } else {
        format!("give a BoundaryRule with patterns such as {}", quoted(candidates))
    }
}
