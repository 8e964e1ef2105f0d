//! The inner loop of the packed products: 16 × 16 sums in registers, then one visit of the result.
//!
//! ```text
//! for each k:  b = 16 words of the right panel            one load
//!              for i in 0..16:  sums[i] += left[k][i] · b one broadcast, one multiply-add
//! ```
//! Sixteen sums hide the latency of the multiply-add; each is one chain over `k`, so its bits do
//! not depend on where the tile lies.

use std::arch::x86_64::*;

use super::vector::{LANES, Line, as_bf16, load_part, load_words, prefetch, store_part};

type Sums = [__m512; LANES];

/// Where a tile goes: `out ← keep·out + alpha·sums + beta·plus`.
pub(super) struct Target<'a> {
    /// The result from the tile's first element on, rows `stride` apart.
    pub(super) out: &'a mut [f32],
    /// What is added, laid out alike.
    pub(super) plus: Option<(f32, &'a [f32])>,
    pub(super) stride: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) alpha: f32,
    /// Whether `out` holds the sums over earlier `k`.
    pub(super) accumulate: bool,
}

/// A tile with words of one `f32`.
#[target_feature(enable = "avx512f")]
pub(super) fn multiply_f32(left: &[Line], right: &[Line], target: Target<'_>) {
    expect(&target);
    let mut sums = [_mm512_setzero_ps(); LANES];
    for (left, right) in left.iter().zip(right) {
        let right = _mm512_castsi512_ps(load_words(right));
        for (sum, &word) in sums.iter_mut().zip(&left.0) {
            *sum = _mm512_fmadd_ps(_mm512_set1_ps(word), right, *sum);
        }
    }
    finish(sums, target);
}

/// A tile with words of two bf16: products of neighbours in `k` are summed in `f32`.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) fn multiply_bf16(left: &[Line], right: &[Line], target: Target<'_>) {
    expect(&target);
    let mut sums = [_mm512_setzero_ps(); LANES];
    for (left, right) in left.iter().zip(right) {
        let right = as_bf16(load_words(right));
        for (sum, &word) in sums.iter_mut().zip(&left.0) {
            let left = as_bf16(_mm512_set1_epi32(word.to_bits().cast_signed()));
            // In this order the broadcast is part of the instruction.
            *sum = _mm512_dpbf16_ps(*sum, right, left);
        }
    }
    finish(sums, target);
}

/// Fetches what `finish` will touch while the sums run.
#[inline]
#[target_feature(enable = "avx512f")]
fn expect(target: &Target<'_>) {
    for row in 0..target.rows {
        prefetch(target.out, row * target.stride);
        if let Some((_, plus)) = target.plus {
            prefetch(plus, row * target.stride);
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn finish(sums: Sums, target: Target<'_>) {
    let Target { out, plus, stride, rows, cols, alpha, accumulate } = target;
    let alpha = _mm512_set1_ps(alpha);
    for (row, sum) in sums.into_iter().take(rows).enumerate() {
        let at = row * stride..row * stride + cols;
        let mut value = _mm512_mul_ps(alpha, sum);
        if accumulate {
            value = _mm512_add_ps(value, load_part(&out[at.clone()]));
        }
        if let Some((beta, plus)) = plus {
            value = _mm512_fmadd_ps(_mm512_set1_ps(beta), load_part(&plus[at.clone()]), value);
        }
        store_part(&mut out[at], value);
    }
}
