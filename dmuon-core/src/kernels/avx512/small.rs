//! Products with a short side of at most 64: a few sums in registers, nothing packed.
//!
//! The square matrices live in the first-level cache, and a wide matrix is read once a product.
//! Results are written whole, both triangles.

use std::arch::x86_64::*;

use super::Avx512;
use super::vector::{LANES, load, load_part, store, store_part};

/// Largest short side for which these beat the packed products.
pub(crate) const MAX_ORDER: usize = 64;

/// Rows and columns of a Gram tile: 24 sums and 6 + 1 loaded vectors fill the registers.
const GRAM_ROWS: usize = 6;
const GRAM_COLS: usize = 4;

/// Rows of a tile of `apply`, two vectors wide.
const APPLY_ROWS: usize = 12;

impl Avx512 {
    /// `out ← X Xᵀ` for a row-major `m × n` matrix.
    pub(crate) fn small_gram(self, x: &[f32], m: usize, out: &mut [f32]) {
        // SAFETY: `self` proves AVX-512 F.
        unsafe { gram(x, m, out) }
    }

    /// `out ← alpha · Q X + beta · X`, with `Q` row-major `m × m` and `X`, `out` row-major `m × n`.
    pub(crate) fn small_apply(
        self,
        q: &[f32],
        x: &[f32],
        factors: [f32; 2],
        m: usize,
        out: &mut [f32],
    ) {
        // SAFETY: `self` proves AVX-512 F.
        unsafe { apply(q, x, factors, m, out) }
    }
}

#[target_feature(enable = "avx512f")]
fn gram(x: &[f32], m: usize, out: &mut [f32]) {
    let n = x.len() / m;
    // Rows past the end repeat the last one; what they give is not stored.
    let row = |i: usize| &x[i.min(m - 1) * n..][..n];
    for i in (0..m).step_by(GRAM_ROWS) {
        let left: [&[f32]; GRAM_ROWS] = std::array::from_fn(|r| row(i + r));
        for j in (0..m.min(i + GRAM_ROWS)).step_by(GRAM_COLS) {
            let right: [&[f32]; GRAM_COLS] = std::array::from_fn(|c| row(j + c));
            let sums = inner_products(left, right);
            for (i, sums) in (i..m).zip(sums) {
                for (j, sum) in (j..m).zip(sums) {
                    out[i * m + j] = sum;
                    out[j * m + i] = sum;
                }
            }
        }
    }
}

#[target_feature(enable = "avx512f")]
fn inner_products(
    left: [&[f32]; GRAM_ROWS],
    right: [&[f32]; GRAM_COLS],
) -> [[f32; GRAM_COLS]; GRAM_ROWS] {
    let mut sums = [[_mm512_setzero_ps(); GRAM_COLS]; GRAM_ROWS];
    let (left, left_rest) = split(left);
    let (right, right_rest) = split(right);
    let len = left[0].len();
    let (left, right) = (left.map(|v| &v[..len]), right.map(|v| &v[..len]));
    for k in 0..len {
        let right = right.map(|v| load(&v[k]));
        add_products(&mut sums, left.map(|v| load(&v[k])), right);
    }
    if !left_rest[0].is_empty() {
        add_products(&mut sums, left_rest.map(|v| load_part(v)), right_rest.map(|v| load_part(v)));
    }
    sums.map(|sums| sums.map(|sum| _mm512_reduce_add_ps(sum)))
}

fn split<const N: usize>(rows: [&[f32]; N]) -> ([&[[f32; LANES]]; N], [&[f32]; N]) {
    (rows.map(|row| row.as_chunks().0), rows.map(|row| row.as_chunks::<LANES>().1))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn add_products(
    sums: &mut [[__m512; GRAM_COLS]; GRAM_ROWS],
    left: [__m512; GRAM_ROWS],
    right: [__m512; GRAM_COLS],
) {
    for (sums, left) in sums.iter_mut().zip(left) {
        for (sum, right) in sums.iter_mut().zip(right) {
            *sum = _mm512_fmadd_ps(left, right, *sum);
        }
    }
}

#[target_feature(enable = "avx512f")]
fn apply(q: &[f32], x: &[f32], factors: [f32; 2], m: usize, out: &mut [f32]) {
    let n = x.len() / m;
    for col in (0..n).step_by(2 * LANES) {
        let mut row = 0;
        while row < m {
            row += match m - row {
                APPLY_ROWS.. => tile::<APPLY_ROWS>(q, x, factors, [m, n, row, col], out),
                8.. => tile::<8>(q, x, factors, [m, n, row, col], out),
                4.. => tile::<4>(q, x, factors, [m, n, row, col], out),
                _ => tile::<1>(q, x, factors, [m, n, row, col], out),
            };
        }
    }
}

/// `ROWS` rows and up to 32 columns of the result; returns `ROWS`.
#[target_feature(enable = "avx512f")]
fn tile<const ROWS: usize>(
    q: &[f32],
    x: &[f32],
    [alpha, beta]: [f32; 2],
    [m, n, row, col]: [usize; 4],
    out: &mut [f32],
) -> usize {
    let width = (2 * LANES).min(n - col);
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    let q: [&[f32]; ROWS] = std::array::from_fn(|i| &q[(row + i) * m..][..m]);
    for (k, x) in x.chunks_exact(n).enumerate().take(m) {
        let x = read(&x[col..col + width]);
        for (sums, q) in sums.iter_mut().zip(q) {
            let q = _mm512_set1_ps(q[k]);
            *sums = [_mm512_fmadd_ps(q, x[0], sums[0]), _mm512_fmadd_ps(q, x[1], sums[1])];
        }
    }
    for (i, sums) in (row..).zip(sums) {
        let at = i * n + col..i * n + col + width;
        let x = read(&x[at.clone()]).map(|x| _mm512_mul_ps(_mm512_set1_ps(beta), x));
        let alpha = _mm512_set1_ps(alpha);
        let [low, high] = [0, 1].map(|half| _mm512_fmadd_ps(alpha, sums[half], x[half]));
        write(&mut out[at], [low, high]);
    }
    ROWS
}

#[inline]
#[target_feature(enable = "avx512f")]
fn read(values: &[f32]) -> [__m512; 2] {
    match values.as_chunks() {
        ([low, high], []) => [load(low), load(high)],
        ([low], rest) => [load(low), load_part(rest)],
        _ => [load_part(values), _mm512_setzero_ps()],
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn write(values: &mut [f32], [low, high]: [__m512; 2]) {
    match values.as_chunks_mut() {
        ([first, second], []) => {
            store(first, low);
            store(second, high);
        }
        ([first], rest) => {
            store(first, low);
            store_part(rest, high);
        }
        _ => store_part(values, low),
    }
}
