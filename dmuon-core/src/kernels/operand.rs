//! A factor of a product, as vectors along the dimension that is summed over.

/// Vectors of one length; a product's elements are the inner products of two operands' vectors.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand<'a> {
    /// The rows of a row-major matrix of `len` columns.
    Rows { data: &'a [f32], len: usize },
    /// The columns of a row-major matrix of `count` columns.
    Columns { data: &'a [f32], count: usize },
    /// The rows of a symmetric row-major matrix, of which only the lower triangle is read.
    Symmetric { data: &'a [f32], order: usize },
}

impl Operand<'_> {
    /// Number of vectors.
    pub(crate) fn count(&self) -> usize {
        match *self {
            Self::Rows { data, len } => data.len() / len,
            Self::Columns { count, .. } => count,
            Self::Symmetric { order, .. } => order,
        }
    }

    /// Length of each vector.
    pub(crate) fn len(&self) -> usize {
        match *self {
            Self::Rows { len, .. } => len,
            Self::Columns { data, count } => data.len() / count,
            Self::Symmetric { order, .. } => order,
        }
    }
}
