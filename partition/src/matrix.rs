//! A weight as the planner sees it: a name and a shape, no data.

use crate::PartitionError;
use serde::{Deserialize, Serialize};

/// A Muon matrix: `batch` independent `rows × cols` matrices under one name.
///
/// `rows` and `cols` are what Newton–Schulz sees, so a reshaped weight (a convolution counted as
/// `o × (i·kh·kw)`) gives the reshaped dimensions. Which of the two is larger does not matter.
///
/// ```
/// use dmuon_partition::Matrix;
///
/// let plain = Matrix::new("layers.0.mlp.up.weight", 14336, 4096);
/// let experts = Matrix::new("layers.0.mlp.experts.up", 1024, 512).with_batch(64);
/// assert_eq!(plain.elems(), 14336 * 4096);
/// assert_eq!(experts.elems(), 64 * 1024 * 512);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Matrix {
    /// Full dotted name, unique in the model: `layers.0.attn.q_proj.weight`.
    pub name: String,
    /// Number of matrices stacked in a 3-D weight `[batch, rows, cols]`; 1 for a plain matrix.
    pub batch: usize,
    /// Rows of each matrix.
    pub rows: usize,
    /// Columns of each matrix.
    pub cols: usize,
}

impl Matrix {
    /// A plain `rows × cols` matrix.
    pub fn new(name: impl Into<String>, rows: usize, cols: usize) -> Self {
        Self { name: name.into(), batch: 1, rows, cols }
    }

    /// The same matrix, `batch` times over, as one `[batch, rows, cols]` weight with one owner.
    pub fn with_batch(self, batch: usize) -> Self {
        Self { batch, ..self }
    }

    /// Number of elements, `batch · rows · cols`.
    pub fn elems(&self) -> usize {
        self.batch * self.rows * self.cols
    }

    /// The smaller and the larger dimension: `(m, n)` with `m ≤ n`.
    pub fn wide(&self) -> (usize, usize) {
        (self.rows.min(self.cols), self.rows.max(self.cols))
    }

    /// # Errors
    /// A dimension of zero, or more elements than `usize` counts.
    pub(crate) fn check(&self) -> Result<usize, PartitionError> {
        let Self { name, batch, rows, cols } = self;
        if *batch == 0 || *rows == 0 || *cols == 0 {
            let (name, batch, rows, cols) = (name.clone(), *batch, *rows, *cols);
            return Err(PartitionError::ZeroDim { name, batch, rows, cols });
        }
        batch
            .checked_mul(*rows)
            .and_then(|elems| elems.checked_mul(*cols))
            .ok_or_else(|| PartitionError::TooLarge { name: name.clone() })
    }
}

/// Checks every shape and returns the number of elements of all matrices together.
///
/// # Errors
/// A dimension of zero, or more elements than `usize` counts.
pub(crate) fn total_elems<'a>(
    matrices: impl IntoIterator<Item = &'a Matrix>,
) -> Result<usize, PartitionError> {
    matrices.into_iter().try_fold(0_usize, |total, matrix| {
        let elems = matrix.check()?;
        total
            .checked_add(elems)
            .ok_or_else(|| PartitionError::TooLarge { name: matrix.name.clone() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_without_elements_are_refused() {
        for matrix in
            [Matrix::new("w", 0, 4), Matrix::new("w", 4, 0), Matrix::new("w", 4, 4).with_batch(0)]
        {
            assert!(matches!(matrix.check(), Err(PartitionError::ZeroDim { .. })));
        }
    }

    #[test]
    fn element_counts_that_overflow_are_refused() {
        let huge = Matrix::new("w", usize::MAX, 2);
        assert!(matches!(huge.check(), Err(PartitionError::TooLarge { .. })));
        let halves = [Matrix::new("a", usize::MAX, 1), Matrix::new("b", 1, 1)];
        assert_eq!(total_elems(&halves), Err(PartitionError::TooLarge { name: "b".to_owned() }));
    }
}
