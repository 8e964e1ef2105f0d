//! Packing: sixteen vectors of an operand interleaved, so that the inner loop reads in order.
//!
//! A *panel* holds 16 vectors; its line `w` holds word `w` of each. A word is one element in
//! `f32`, or two neighbours rounded to bf16. Both sides of a product use the same layout, so a
//! matrix times itself is packed once. What lies past the edges of the operand is zeros.

use std::arch::x86_64::*;
use std::ops::Range;

use super::vector::{LANES, Line, load_part, store_words};
use crate::kernels::Operand;

/// Elements in a word.
pub(super) const fn word_elems(bf16: bool) -> usize {
    if bf16 { 2 } else { 1 }
}

/// Panels packed together, so that where vectors lie side by side whole cache lines are read.
pub(super) const GROUP: usize = 4;

/// Up to [`GROUP`] panels of one slab, one after the other.
pub(super) struct Panels<'a> {
    pub(super) lines: &'a mut [Line],
    /// Lines of one panel.
    pub(super) words: usize,
}

/// Packs the elements `range` of the vectors from `first` on.
///
/// `range` starts and `first` lies at a multiple of 32.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn pack<const BF16: bool>(
    operand: Operand<'_>,
    first: usize,
    range: Range<usize>,
    panels: Panels<'_>,
) {
    let Panels { lines, words } = panels;
    let vectors = first..operand.count().min(first + LANES * lines.len() / words);
    match operand {
        Operand::Rows { data, len } => {
            for (first, panel) in vectors.clone().step_by(LANES).zip(lines.chunks_exact_mut(words))
            {
                let end = vectors.end.min(first + LANES);
                rows::<BF16>(&data[first * len..end * len], len, range.clone(), panel);
            }
        }
        Operand::Columns { data, count } => {
            columns::<BF16>(data, count, vectors, range, Panels { lines, words }, 0);
        }
        Operand::Symmetric { data, order } => {
            symmetric::<BF16>(data, order, vectors, range, Panels { lines, words });
        }
    }
}

/// Left of the diagonal block by rows, below it by columns, and the block itself mirrored.
#[target_feature(enable = "avx512f,avx512bw")]
fn symmetric<const BF16: bool>(
    data: &[f32],
    order: usize,
    vectors: Range<usize>,
    range: Range<usize>,
    panels: Panels<'_>,
) {
    let clamp = |at: usize| at.clamp(range.start, range.end);
    let (start, end) = (clamp(vectors.start), clamp(vectors.end));
    let word = |at: usize| (at - range.start).div_ceil(word_elems(BF16));
    let Panels { lines, words } = panels;
    let firsts = vectors.clone().step_by(LANES);
    for (first, panel) in firsts.zip(lines.chunks_exact_mut(words)) {
        let vectors = first..vectors.end.min(first + LANES);
        if start > range.start {
            let data = &data[vectors.start * order..vectors.end * order];
            rows::<BF16>(data, order, range.start..start, &mut panel[..word(start)]);
        }
        let mut block = [0.0; LANES * LANES * GROUP];
        for (row, line) in vectors.clone().zip(block.chunks_exact_mut(LANES * GROUP)) {
            for (at, value) in (start..end).zip(line) {
                *value = data[row.max(at) * order + row.min(at)];
            }
        }
        let block = &block[..vectors.len() * LANES * GROUP];
        let panel = &mut panel[word(start)..word(end)];
        rows::<BF16>(block, LANES * GROUP, 0..end - start, panel);
    }
    if range.end > end {
        let panels = Panels { lines, words };
        columns::<BF16>(data, order, vectors, end..range.end, panels, word(end));
    }
}

/// Vectors that lie contiguous, `stride` apart: blocks of 16 × 16 words are transposed.
#[target_feature(enable = "avx512f,avx512bw")]
fn rows<const BF16: bool>(data: &[f32], stride: usize, range: Range<usize>, panel: &mut [Line]) {
    let step = LANES * word_elems(BF16);
    for (at, lines) in range.clone().step_by(step).zip(panel.chunks_mut(LANES)) {
        let end = range.end.min(at + step);
        let mut block = [_mm512_setzero_si512(); LANES];
        for (words, row) in block.iter_mut().zip(data.chunks_exact(stride)) {
            *words = words_along::<BF16>(&row[at..end]);
        }
        let block = transposed(block);
        for (line, words) in lines.iter_mut().zip(block) {
            store_words(line, words);
        }
    }
}

/// Vectors that lie side by side in rows `stride` long: a line is a piece of one or two rows.
/// The first line written is line `line` of every panel.
#[target_feature(enable = "avx512f,avx512bw")]
fn columns<const BF16: bool>(
    data: &[f32],
    stride: usize,
    vectors: Range<usize>,
    range: Range<usize>,
    panels: Panels<'_>,
    line: usize,
) {
    let piece = |at: usize| &data[at * stride + vectors.start..at * stride + vectors.end];
    for (at, line) in range.clone().step_by(word_elems(BF16)).zip(line..) {
        let even = piece(at);
        let odd = if BF16 && at + 1 < range.end { piece(at + 1) } else { &[] };
        let panels = panels.lines.iter_mut().skip(line).step_by(panels.words);
        for (i, line) in (0..even.len()).step_by(LANES).zip(panels) {
            let end = even.len().min(i + LANES);
            let odd = if BF16 && !odd.is_empty() { &odd[i..end] } else { odd };
            store_words(line, words_across::<BF16>(&even[i..end], odd));
        }
    }
}

/// Up to 16 words from elements of two vectors' positions: `even` below, `odd` above.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn words_across<const BF16: bool>(even: &[f32], odd: &[f32]) -> __m512i {
    let even = load_part(even);
    if !BF16 {
        return _mm512_castps_si512(even);
    }
    let odd = _mm512_and_si512(rounded(load_part(odd)), _mm512_set1_epi32(!0xffff));
    _mm512_or_si512(odd, _mm512_srli_epi32::<16>(rounded(even)))
}

/// Up to 16 words from neighbouring elements.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn words_along<const BF16: bool>(values: &[f32]) -> __m512i {
    if !BF16 {
        return _mm512_castps_si512(load_part(values));
    }
    let (low, high) = values.split_at(values.len().min(LANES));
    let low = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded(load_part(low))));
    let high = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded(load_part(high))));
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

/// Rounds to bf16, ties to even; it lands in the upper half of each lane, the lower is noise.
///
/// A NaN must stay one, whatever its payload: the trace of the first product is what finds it.
#[inline]
#[target_feature(enable = "avx512f")]
fn rounded(values: __m512) -> __m512i {
    let bits = _mm512_castps_si512(values);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(values, values);
    _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x0040_0000))
}

/// Transposes 16 × 16 words: pairs, quadruples, then halves of 128-bit lanes trade places.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed(rows: [__m512i; LANES]) -> [__m512i; LANES] {
    let mut pairs = rows;
    for i in (0..LANES).step_by(2) {
        pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    let mut quads = pairs;
    for i in (0..LANES).step_by(4) {
        quads[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
        quads[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        quads[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        quads[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    // `quads[4g + c]` holds columns c, c + 4, c + 8, c + 12 of rows 4g to 4g + 3, a lane each.
    let mut columns = quads;
    for c in 0..4 {
        let [q0, q1, q2, q3] = [quads[c], quads[4 + c], quads[8 + c], quads[12 + c]];
        let low = _mm512_shuffle_i32x4::<0b10_00_10_00>(q0, q1);
        let low_odd = _mm512_shuffle_i32x4::<0b11_01_11_01>(q0, q1);
        let high = _mm512_shuffle_i32x4::<0b10_00_10_00>(q2, q3);
        let high_odd = _mm512_shuffle_i32x4::<0b11_01_11_01>(q2, q3);
        columns[c] = _mm512_shuffle_i32x4::<0b10_00_10_00>(low, high);
        columns[4 + c] = _mm512_shuffle_i32x4::<0b10_00_10_00>(low_odd, high_odd);
        columns[8 + c] = _mm512_shuffle_i32x4::<0b11_01_11_01>(low, high);
        columns[12 + c] = _mm512_shuffle_i32x4::<0b11_01_11_01>(low_odd, high_odd);
    }
    columns
}
