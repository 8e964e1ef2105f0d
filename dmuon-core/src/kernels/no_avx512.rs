//! What stands in for the AVX-512 kernels on other architectures: nothing that could be called.

use super::{Operand, Precision, Team};

/// No CPU of this architecture has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Avx512 {}

pub(crate) const MAX_SMALL_ORDER: usize = 0;

#[derive(Debug, Default)]
pub(crate) struct Panels;

impl Panels {
    pub(crate) fn allocated_bytes(&self) -> usize {
        0
    }
}

#[expect(dead_code, reason = "the fields are read by the kernels that are absent")]
pub(crate) struct Product<'a> {
    pub(crate) left: Operand<'a>,
    pub(crate) right: Option<Operand<'a>>,
    pub(crate) alpha: f32,
    pub(crate) plus: Option<(f32, &'a [f32])>,
    pub(crate) lower: bool,
    pub(crate) precision: Precision,
}

impl Avx512 {
    pub(crate) fn detect() -> Option<Self> {
        None
    }

    pub(crate) fn has_bf16(self) -> bool {
        match self {}
    }

    pub(crate) fn multiply(self, _: Product<'_>, _: &mut [f32], _: &mut Panels, _: Team) {
        match self {}
    }

    pub(crate) fn small_gram(self, _: &[f32], _: usize, _: &mut [f32], _: &mut Panels) {
        match self {}
    }

    pub(crate) fn small_square(
        self,
        _: &[f32],
        _: &[f32],
        _: [f32; 2],
        _: usize,
        _: &mut [f32],
        _: &mut Panels,
    ) {
        match self {}
    }

    pub(crate) fn small_apply(
        self,
        _: &[f32],
        _: &[f32],
        _: [f32; 2],
        _: usize,
        _: &mut [f32],
        _: &mut Panels,
    ) {
        match self {}
    }
}
