//! Loads and stores of whole vectors from slices; every pointer of the AVX-512 kernels is here.

use std::arch::x86_64::*;

use bytemuck::{Pod, Zeroable};

/// 32-bit lanes of a vector.
pub(super) const LANES: usize = 16;

/// One vector at home in one cache line: each lane an `f32`, or the bits of two bf16.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(super) [f32; LANES]);

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load(values: &[f32; LANES]) -> __m512 {
    // SAFETY: both types are 64 bytes without invalid values.
    unsafe { std::mem::transmute::<[f32; LANES], __m512>(*values) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store(values: &mut [f32; LANES], vector: __m512) {
    // SAFETY: both types are 64 bytes without invalid values.
    *values = unsafe { std::mem::transmute::<__m512, [f32; LANES]>(vector) };
}

/// Asks for the cache line of an element, which need not exist.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn prefetch(values: &[f32], at: usize) {
    _mm_prefetch::<_MM_HINT_T0>(values.as_ptr().wrapping_add(at).cast());
}

/// Loads up to a vector; the lanes past the slice are zeros.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_part(values: &[f32]) -> __m512 {
    // SAFETY: the mask admits no lane past the slice, and masked lanes are not accessed.
    unsafe { _mm512_maskz_loadu_ps(mask(values.len()), values.as_ptr()) }
}

/// Stores the first lanes, as many as the slice holds.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store_part(values: &mut [f32], vector: __m512) {
    // SAFETY: the mask admits no lane past the slice, and masked lanes are not accessed.
    unsafe { _mm512_mask_storeu_ps(values.as_mut_ptr(), mask(values.len()), vector) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_words(line: &Line) -> __m512i {
    // SAFETY: a line is 64 bytes at a multiple of 64.
    unsafe { _mm512_load_si512(line.0.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store_words(line: &mut Line, words: __m512i) {
    // SAFETY: a line is 64 bytes at a multiple of 64.
    unsafe { _mm512_store_si512(line.0.as_mut_ptr().cast(), words) }
}

/// The same bits, read as 32 bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) fn as_bf16(words: __m512i) -> __m512bh {
    // SAFETY: both types are 64 bytes without invalid values.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(words) }
}

fn mask(lanes: usize) -> __mmask16 {
    if lanes >= LANES { !0 } else { (1 << lanes) - 1 }
}
