//! Products with a short side of at most 64: a few sums in registers, nothing packed.
//!
//! The square matrices live in the first-level cache, and a wide matrix is read once a product.
//! Results are written whole, both triangles.

use std::arch::x86_64::*;

use super::Avx512;
use super::packed::{Panels, at_least};
use super::vector::{
    LANES, Line, load, load_part, load_words, prefetch, store, store_part, store_words,
};

/// Largest short side for which these beat the packed products.
pub(crate) const MAX_ORDER: usize = 64;

/// Rows and columns of a Gram tile: 24 sums and 6 + 1 loaded vectors fill the registers.
const GRAM_ROWS: usize = 6;
const GRAM_COLS: usize = 4;
const GRAM_SUMS: usize = GRAM_ROWS * GRAM_COLS;

/// Rows of a block are padded to whole tiles either way, with whatever is there.
const GRAM_GRAIN: usize = 12;

/// Lines of a block of columns: 32 KiB.
const BLOCK_LINES: usize = 512;

/// Width of a tile of `apply`, and its rows: 24 sums.
const APPLY_COLS: usize = 2 * LANES;
const APPLY_ROWS: usize = 12;

/// Columns between those a tile reads and those it fetches: far enough for the memory to answer.
const AHEAD: usize = 2 * APPLY_COLS;

impl Avx512 {
    /// `out ← X Xᵀ` for a row-major `m × n` matrix.
    pub(crate) fn small_gram(self, x: &[f32], m: usize, out: &mut [f32], panels: &mut Panels) {
        // SAFETY: `self` proves AVX-512 F.
        unsafe { gram(x, m, out, panels) }
    }

    /// `out ← alpha · L R + beta · R`, symmetric to the bit: what rounding adds beside it would grow
    /// where its mirror image is taken for it.
    pub(crate) fn small_square(
        self,
        l: &[f32],
        r: &[f32],
        factors: [f32; 2],
        m: usize,
        out: &mut [f32],
        panels: &mut Panels,
    ) {
        self.small_apply(l, r, factors, m, out, panels);
        for i in 1..m {
            let (above, row) = out.split_at_mut(i * m);
            let column = above[i..].iter_mut().step_by(m);
            column.zip(row).for_each(|(mirrored, &mut value)| *mirrored = value);
        }
    }

    /// `out ← alpha · Q X + beta · X`, with a symmetric `Q`, row-major `m × m`, and `X`, `out`
    /// row-major `m × n`.
    pub(crate) fn small_apply(
        self,
        q: &[f32],
        x: &[f32],
        factors: [f32; 2],
        m: usize,
        out: &mut [f32],
        panels: &mut Panels,
    ) {
        // SAFETY: `self` proves AVX-512 F.
        unsafe { apply(q, x, factors, m, out, panels) }
    }
}

/// The tiles on or below the diagonal, by their first row and column.
fn gram_tiles(m: usize) -> impl Iterator<Item = (usize, usize)> {
    let rows = (0..m).step_by(GRAM_ROWS);
    rows.flat_map(move |i| (0..m.min(i + GRAM_ROWS)).step_by(GRAM_COLS).map(move |j| (i, j)))
}

/// Block by block of columns; sums over every sixteenth column are kept beside the block in cache.
#[target_feature(enable = "avx512f")]
fn gram(x: &[f32], m: usize, out: &mut [f32], panels: &mut Panels) {
    let n = x.len() / m;
    let rows = m.next_multiple_of(GRAM_GRAIN);
    let block_cols = (BLOCK_LINES / rows).max(1) * LANES;
    let sums = at_least(&mut panels.right, gram_tiles(m).count() * GRAM_SUMS);
    sums.fill(Line::default());
    let block = at_least(&mut panels.left, block_cols / LANES * rows);
    for start in (0..n).step_by(block_cols) {
        let cols = start..n.min(start + block_cols);
        let block = &mut block[..cols.len().div_ceil(LANES) * rows];
        for (i, row) in x.chunks_exact(n).enumerate() {
            gather(&row[cols.clone()], block[i..].iter_mut().step_by(rows));
        }
        let num_tiles = sums.len() / GRAM_SUMS;
        for (t, (tile, sums)) in gram_tiles(m).zip(sums.as_chunks_mut().0).enumerate() {
            // A share of the next block comes from memory while this tile is summed.
            for row in (t..m).step_by(num_tiles) {
                let next = row * n + cols.end..row * n + cols.end + block_cols;
                next.step_by(LANES).for_each(|at| prefetch(x, at));
            }
            add_products(block, rows, tile, sums);
        }
    }
    gram_tiles(m).zip(sums.as_chunks().0).for_each(|(tile, sums)| total(sums, tile, m, out));
}

/// Adds up the lanes of a tile's sums and stores them on both sides of the diagonal.
#[target_feature(enable = "avx512f")]
fn total(sums: &[Line; GRAM_SUMS], (i, j): (usize, usize), m: usize, out: &mut [f32]) {
    for (s, line) in sums.iter().enumerate() {
        let (i, j) = (i + s / GRAM_COLS, j + s % GRAM_COLS);
        if i < m && j < m {
            let sum = _mm512_reduce_add_ps(_mm512_castsi512_ps(load_words(line)));
            out[i * m + j] = sum;
            out[j * m + i] = sum;
        }
    }
}

/// Copies a row to every `rows`-th line; the last is filled with zeros.
#[inline]
#[target_feature(enable = "avx512f")]
fn gather<'a>(row: &[f32], mut lines: impl Iterator<Item = &'a mut Line>) {
    let (whole, rest) = row.as_chunks::<LANES>();
    for (values, line) in whole.iter().zip(&mut lines) {
        store_words(line, _mm512_castps_si512(load(values)));
    }
    if let (false, Some(line)) = (rest.is_empty(), lines.next()) {
        store_words(line, _mm512_castps_si512(load_part(rest)));
    }
}

/// `sums[r][c] += line i + r · line j + c`, for every `rows` lines of the block.
#[target_feature(enable = "avx512f")]
fn add_products(block: &[Line], rows: usize, (i, j): (usize, usize), sums: &mut [Line; GRAM_SUMS]) {
    let mut totals = [_mm512_setzero_ps(); GRAM_SUMS];
    for (total, sum) in totals.iter_mut().zip(&*sums) {
        *total = _mm512_castsi512_ps(load_words(sum));
    }
    for lines in block.chunks_exact(rows) {
        let (left, right) = (&lines[i..i + GRAM_ROWS], &lines[j..j + GRAM_COLS]);
        let mut vectors = [_mm512_setzero_ps(); GRAM_ROWS];
        for r in 0..GRAM_ROWS {
            vectors[r] = _mm512_castsi512_ps(load_words(&left[r]));
        }
        for c in 0..GRAM_COLS {
            let right = _mm512_castsi512_ps(load_words(&right[c]));
            for r in 0..GRAM_ROWS {
                let total = &mut totals[r * GRAM_COLS + c];
                *total = _mm512_fmadd_ps(vectors[r], right, *total);
            }
        }
    }
    for (sum, total) in sums.iter_mut().zip(totals) {
        store_words(sum, _mm512_castps_si512(total));
    }
}

#[target_feature(enable = "avx512f")]
fn apply(q: &[f32], x: &[f32], factors: [f32; 2], m: usize, out: &mut [f32], panels: &mut Panels) {
    let n = x.len() / m;
    // Where rows are whole cache lines, a narrow first strip aligns the others.
    let lead = if n.is_multiple_of(LANES) { out.as_ptr().align_offset(64) % LANES } else { 0 };
    let (mut col, mut end) = (0, n.min(if lead > 0 { lead } else { APPLY_COLS }));
    let lines = at_least(&mut panels.left, 2 * m);
    let (lines, _) = lines.as_chunks_mut();
    while col < n {
        for (lines, x) in lines.iter_mut().zip(x.chunks_exact(n)) {
            copy(&x[col..], end - col, lines);
        }
        let strip = Strip { q, m, x: lines, factors };
        let mut row = 0;
        while row < m {
            let at = row * n + col;
            let (from, out) = (&x[at..], &mut out[at..]);
            let target = Target { out, from, stride: n, width: end - col };
            row += match m - row {
                APPLY_ROWS.. => strip.tile::<APPLY_ROWS>(row, target),
                8.. => strip.tile::<8>(row, target),
                4.. => strip.tile::<4>(row, target),
                _ => strip.tile::<1>(row, target),
            };
        }
        (col, end) = (end, n.min(end + APPLY_COLS));
    }
}

/// A row of a strip; lanes past its width are of no use.
#[inline]
#[target_feature(enable = "avx512f")]
fn copy(row: &[f32], width: usize, [low, high]: &mut [Line; 2]) {
    if let Some([values_low, values_high]) = row.as_chunks().0.first_chunk() {
        store_words(low, _mm512_castps_si512(load(values_low)));
        store_words(high, _mm512_castps_si512(load(values_high)));
    } else {
        let (values_low, values_high) = row[..width].split_at(width.min(LANES));
        store_words(low, _mm512_castps_si512(load_part(values_low)));
        store_words(high, _mm512_castps_si512(load_part(values_high)));
    }
}

/// A strip of `X`, copied so that its rows do not evict each other from the cache, and `Q`.
struct Strip<'a> {
    q: &'a [f32],
    m: usize,
    x: &'a [[Line; 2]],
    factors: [f32; 2],
}

/// Where a tile goes: rows `stride` apart from its first element on.
struct Target<'a> {
    out: &'a mut [f32],
    /// The same rows and columns of `X`; strips further on are fetched while sums run.
    from: &'a [f32],
    stride: usize,
    width: usize,
}

impl Strip<'_> {
    /// `ROWS` rows of the result from `row` on. Returns `ROWS`.
    #[target_feature(enable = "avx512f")]
    fn tile<const ROWS: usize>(&self, row: usize, target: Target<'_>) -> usize {
        let sums = self.sums::<ROWS>(row, &target);
        let Target { out, stride, width, .. } = target;
        let [alpha, beta] = self.factors.map(|factor| _mm512_set1_ps(factor));
        let rows = self.x[row..].iter().zip(out.chunks_mut(stride));
        for (sums, (x, out)) in sums.iter().zip(rows) {
            let mut values = sums.map(|sum| _mm512_mul_ps(alpha, sum));
            if self.factors[1] != 0.0 {
                let [low, high] = halves(x);
                values[0] = _mm512_fmadd_ps(beta, low, values[0]);
                values[1] = _mm512_fmadd_ps(beta, high, values[1]);
            }
            if let ([low, high], []) = out[..width].as_chunks_mut() {
                store(low, values[0]);
                store(high, values[1]);
            } else {
                let (low, high) = out[..width].split_at_mut(width.min(LANES));
                store_part(low, values[0]);
                store_part(high, values[1]);
            }
        }
        ROWS
    }

    /// Rows of `Q X`; rows of `Q` are columns by symmetry.
    ///
    /// A function of its own: what visits the sums one by one would keep them out of registers.
    #[inline(never)]
    #[target_feature(enable = "avx512f")]
    fn sums<const ROWS: usize>(&self, row: usize, target: &Target<'_>) -> [[__m512; 2]; ROWS] {
        let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
        for (k, (q, x)) in self.q[row..].chunks(self.m).zip(self.x).enumerate() {
            let Some(q) = q.first_chunk::<ROWS>() else { break };
            if k < ROWS {
                target.fetch(k * target.stride + AHEAD);
            }
            let [low, high] = halves(x);
            for (sums, &q) in sums.iter_mut().zip(q) {
                let q = _mm512_set1_ps(q);
                sums[0] = _mm512_fmadd_ps(q, low, sums[0]);
                sums[1] = _mm512_fmadd_ps(q, high, sums[1]);
            }
        }
        sums
    }
}

impl Target<'_> {
    /// Asks for the 32 columns at an offset of both matrices.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn fetch(&self, at: usize) {
        prefetch(self.from, at);
        prefetch(self.from, at + LANES);
        prefetch(self.out, at);
        prefetch(self.out, at + LANES);
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn halves([low, high]: &[Line; 2]) -> [__m512; 2] {
    [_mm512_castsi512_ps(load_words(low)), _mm512_castsi512_ps(load_words(high))]
}
