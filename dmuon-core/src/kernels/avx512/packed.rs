//! Products of matrices that do not fit in the first-level cache, over packed panels.
//!
//! ```text
//! for each block of columns:                       a result block stays in the last-level cache
//!     for each slab of k:                          two panels of it stay in the first-level cache
//!         pack the slab of both operands           shared by all threads
//!         for each block of rows, any thread:      a block of panels stays in the second-level cache
//!             for each tile on or below the diagonal: multiply
//! ```
//! The cuts depend on the shape alone, and every element is summed by one thread, slab after slab.

use std::ops::Range;

use super::tile::Target;
use super::vector::{LANES, Line};
use super::{Avx512, pack};
use crate::kernels::{Operand, Precision, Team};

/// Words of a slab at most: two panels of it fill a second-level way or two, and a visit of the
/// result costs less than a percent of the arithmetic between visits.
const SLAB_WORDS: usize = 512;

/// Slabs start where pack's diagonal blocks do, in either precision.
const SLAB_GRAIN: usize = 32;

/// Columns of a block: beside 4096 rows it is 16 MiB.
const BLOCK_COLS: usize = 1024;

/// Rows that a thread takes at a time.
const BLOCK_ROWS: usize = pack::GROUP * LANES;

/// Panels of both operands for one slab.
#[derive(Debug, Default)]
pub(crate) struct Panels {
    pub(super) left: Vec<Line>,
    pub(super) right: Vec<Line>,
}

impl Panels {
    pub(crate) fn allocated_bytes(&self) -> usize {
        (self.left.capacity() + self.right.capacity()) * size_of::<Line>()
    }
}

/// `out ← alpha · (inner products of left and right) + beta · plus`.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    pub(crate) left: Operand<'a>,
    /// `None`: the left operand again, and the result is symmetric.
    pub(crate) right: Option<Operand<'a>>,
    pub(crate) alpha: f32,
    pub(crate) plus: Option<(f32, &'a [f32])>,
    /// Whether to leave out the tiles above the diagonal.
    pub(crate) lower: bool,
    pub(crate) precision: Precision,
}

/// One slab of one block of columns.
struct Slab<'a> {
    product: Product<'a>,
    cols: Range<usize>,
    num_cols: usize,
    words: usize,
    first: bool,
    last: bool,
}

impl Avx512 {
    /// Computes a product into `out`, row-major.
    pub(crate) fn multiply(
        self,
        product: Product<'_>,
        out: &mut [f32],
        panels: &mut Panels,
        team: Team,
    ) {
        let num_cols = product.right.unwrap_or(product.left).count();
        let block = if product.lower { num_cols } else { BLOCK_COLS };
        for start in (0..num_cols).step_by(block) {
            let cols = start..num_cols.min(start + block);
            for range in slabs(product.left.len(), product.precision) {
                let words = range.len().div_ceil(pack::word_elems(product.precision.is_bf16()));
                let first = range.start == 0;
                let last = range.end == product.left.len();
                let slab = Slab { product, cols: cols.clone(), num_cols, words, first, last };
                self.pack_slab(&slab, range, panels, team);
                self.multiply_slab(&slab, out, panels, team);
            }
        }
    }

    fn pack_slab(self, slab: &Slab<'_>, range: Range<usize>, panels: &mut Panels, team: Team) {
        let Slab { product, words, .. } = slab;
        let side = |operand: Operand<'_>, vectors: Range<usize>, lines: &mut Vec<Line>| {
            let lines = at_least(lines, vectors.len().div_ceil(LANES) * words);
            let groups = vectors.step_by(BLOCK_ROWS).zip(lines.chunks_mut(pack::GROUP * words));
            team.each(groups, |(first, lines)| {
                let panels = pack::Panels { lines, words: *words };
                self.pack(product.precision, operand, first, range.clone(), panels);
            });
        };
        side(product.left, 0..product.left.count(), &mut panels.left);
        if let Some(right) = product.right {
            side(right, slab.cols.clone(), &mut panels.right);
        }
    }

    fn multiply_slab(self, slab: &Slab<'_>, out: &mut [f32], panels: &Panels, team: Team) {
        let right = if slab.product.right.is_some() { &panels.right } else { &panels.left };
        let rows = out.chunks_mut(BLOCK_ROWS * slab.num_cols).enumerate();
        let blocks = rows.zip(panels.left.chunks(pack::GROUP * slab.words));
        // The lowest rows of a triangle are the longest; they come first to end together.
        team.each(blocks.rev(), |((block, out), left)| {
            self.rows(slab, block * BLOCK_ROWS, out, left, right);
        });
    }

    /// The tiles of one block of rows.
    fn rows(self, slab: &Slab<'_>, row: usize, out: &mut [f32], left: &[Line], right: &[Line]) {
        let Slab { product, num_cols: stride, words, .. } = *slab;
        let num_rows = out.len() / stride;
        let panels = slab.cols.clone().step_by(LANES).zip(right.chunks(words));
        for (col, right) in panels {
            for (i, left) in (0..num_rows).step_by(LANES).zip(left.chunks(words)) {
                if product.lower && col >= row + i + LANES {
                    continue;
                }
                let at = i * stride + col;
                let plus = product.plus.filter(|_| slab.last);
                let target = Target {
                    out: &mut out[at..],
                    plus: plus.map(|(beta, plus)| (beta, &plus[row * stride + at..])),
                    stride,
                    rows: LANES.min(num_rows - i),
                    cols: LANES.min(slab.cols.end - col),
                    alpha: product.alpha,
                    accumulate: !slab.first,
                };
                self.multiply_tile(product.precision, left, right, target);
            }
        }
    }
}

/// Cuts `len` into equal slabs of whole grains.
fn slabs(len: usize, precision: Precision) -> impl Iterator<Item = Range<usize>> {
    let longest = SLAB_WORDS * pack::word_elems(precision.is_bf16());
    let slab = len.div_ceil(len.div_ceil(longest)).next_multiple_of(SLAB_GRAIN);
    (0..len).step_by(slab).map(move |start| start..len.min(start + slab))
}

pub(super) fn at_least(lines: &mut Vec<Line>, len: usize) -> &mut [Line] {
    if lines.len() < len {
        lines.reserve_exact(len - lines.len());
        lines.resize(len, Line::default());
    }
    &mut lines[..len]
}
