//! In which arithmetic the products run; storage, norms and sums stay in `f32` or better.

use serde::{Deserialize, Serialize};

/// The arithmetic of the products.
///
/// Matrices are read and written in `f32` either way, sums run in `f32`, and norms in `f32` or
/// better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Precision {
    /// Factors and sums in `f32`.
    #[default]
    F32,
    /// Factors rounded to bf16 where that is both accurate and faster, sums in `f32`.
    ///
    /// It is a permission, not a command: the direct form uses it on CPUs with AVX512-BF16, from
    /// a short side of 65 on. Elsewhere the run falls back to [`Precision::F32`], which is more
    /// accurate; [`NewtonSchulz::precision`] says what is in force. The Gram form always runs in
    /// `f32`: its `m × m` matrices lose small singular values in bf16.
    ///
    /// [`NewtonSchulz::precision`]: crate::newton_schulz::NewtonSchulz::precision
    Bf16Products,
}

impl Precision {
    pub(crate) fn is_bf16(self) -> bool {
        self == Self::Bf16Products
    }
}
