//! Kernels for CPUs with AVX-512; a value of [`Avx512`] is the proof that this is one.

mod pack;
mod packed;
mod small;
mod tile;
mod vector;

use std::ops::Range;

pub(crate) use packed::{Panels, Product};
pub(crate) use small::MAX_ORDER as MAX_SMALL_ORDER;
use tile::Target;
use vector::Line;

use super::{Operand, Precision};

/// Proof that the CPU has AVX-512 F, BW, DQ and VL; made by [`Avx512::detect`] alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Avx512 {
    bf16: bool,
}

impl Avx512 {
    pub(crate) fn detect() -> Option<Self> {
        let all = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        all.then(|| Self { bf16: is_x86_feature_detected!("avx512bf16") })
    }

    /// Whether it multiplies bf16.
    pub(crate) fn has_bf16(self) -> bool {
        self.bf16
    }

    fn pack(
        self,
        precision: Precision,
        operand: Operand<'_>,
        first: usize,
        range: Range<usize>,
        panels: pack::Panels<'_>,
    ) {
        match precision {
            // SAFETY: `self` proves AVX-512 F and BW.
            Precision::F32 => unsafe { pack::pack::<false>(operand, first, range, panels) },
            // SAFETY: as above; rounding to bf16 takes integer instructions.
            Precision::Bf16Products => unsafe {
                pack::pack::<true>(operand, first, range, panels);
            },
        }
    }

    fn multiply_tile(
        self,
        precision: Precision,
        left: &[Line],
        right: &[Line],
        target: Target<'_>,
    ) {
        if precision == Precision::F32 {
            // SAFETY: `self` proves AVX-512 F.
            return unsafe { tile::multiply_f32(left, right, target) };
        }
        assert!(self.bf16, "bf16 products were asked of a CPU without them");
        // SAFETY: AVX512-BF16 was detected.
        unsafe { tile::multiply_bf16(left, right, target) }
    }
}
