//! The matrix as the iteration sees it, `m × n` with `m ≤ n`; a tall one by strides, not copied.

/// Shape of a row-major `rows × cols` slice, looked at so that it has no more rows than columns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

impl View {
    pub(crate) fn new(rows: usize, cols: usize) -> Self {
        Self { rows, cols }
    }

    /// Short side.
    pub(crate) fn m(self) -> usize {
        self.rows.min(self.cols)
    }

    /// Elements of the matrix.
    pub(crate) fn len(self) -> usize {
        self.rows * self.cols
    }

    /// Whether the slice holds the transpose of what the iteration sees.
    pub(crate) fn is_tall(self) -> bool {
        self.rows > self.cols
    }
}
