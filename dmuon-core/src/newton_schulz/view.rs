//! The matrix as the iteration sees it, `m × n` with `m ≤ n`; a tall one by strides, not copied.

use faer::{MatMut, MatRef};

use super::Form;

/// Shape of a row-major `rows × cols` slice, looked at so that it has no more rows than columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    rows: usize,
    cols: usize,
}

impl View {
    pub(super) fn new(rows: usize, cols: usize) -> Self {
        Self { rows, cols }
    }

    /// Short side.
    pub(super) fn m(self) -> usize {
        self.rows.min(self.cols)
    }

    /// Elements of the matrix.
    pub(super) fn len(self) -> usize {
        self.rows * self.cols
    }

    /// The form such a matrix takes.
    pub(super) fn resolve(self, form: Form) -> Form {
        form.resolve(self.rows, self.cols)
    }

    pub(super) fn of(self, data: &[f32]) -> MatRef<'_, f32> {
        let matrix = MatRef::from_row_major_slice(data, self.rows, self.cols);
        if self.rows > self.cols { matrix.transpose() } else { matrix }
    }

    pub(super) fn of_mut(self, data: &mut [f32]) -> MatMut<'_, f32> {
        let matrix = MatMut::from_row_major_slice_mut(data, self.rows, self.cols);
        if self.rows > self.cols { matrix.transpose_mut() } else { matrix }
    }
}
