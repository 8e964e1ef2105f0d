//! The three products of the iteration, on the kernel that suits the CPU and the shape.

use super::avx512::{MAX_SMALL_ORDER, Product};
use super::{Avx512, Operand, Panels, Precision, Team, View, portable};
use serde::{Deserialize, Serialize};

/// What computes the products of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kernel {
    /// faer, on any CPU.
    Portable,
    /// Packed panels in 512-bit vectors, in `f32` or bf16.
    Avx512,
    /// 512-bit vectors without packing, for a short side of at most 64, in `f32`.
    Avx512Small,
}

/// The kernels of this machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Engine {
    avx512: Option<Avx512>,
}

impl Engine {
    pub(crate) const PORTABLE: Self = Self { avx512: None };

    pub(crate) fn detect() -> Self {
        Self { avx512: Avx512::detect() }
    }

    pub(crate) fn kernel(self, view: View) -> Kernel {
        match self.avx512 {
            None => Kernel::Portable,
            Some(_) if view.m() <= MAX_SMALL_ORDER => Kernel::Avx512Small,
            Some(_) => Kernel::Avx512,
        }
    }

    /// Whether the matrix must lie in rows along its long side.
    pub(crate) fn wants_turned(self, view: View) -> bool {
        view.is_tall() && self.kernel(view) == Kernel::Avx512Small
    }

    /// The precision in force where `asked` is allowed.
    pub(crate) fn precision(self, asked: Precision, view: View) -> Precision {
        let able = self.avx512.is_some_and(Avx512::has_bf16);
        if able && view.m() > MAX_SMALL_ORDER { asked } else { Precision::F32 }
    }
}

/// The products of one matrix.
///
/// Invariant: all products of a matrix run on one kernel. Symmetric results are whole on some and
/// lower triangles on others, and each kernel reads only what it writes.
pub(crate) struct Products<'a> {
    pub(crate) engine: Engine,
    pub(crate) view: View,
    pub(crate) precision: Precision,
    pub(crate) panels: &'a mut Panels,
    pub(crate) team: Team,
}

impl Products<'_> {
    /// `out ← X Xᵀ`, `m × m`.
    pub(crate) fn gram(&mut self, x: &[f32], out: &mut [f32]) {
        let Some(avx512) = self.small() else {
            let left = self.rows_of(x);
            return match self.engine.avx512 {
                Some(_) => self.packed(left, None, [1.0, 0.0], (&[], true), out),
                None => portable::gram(self.view, x, out, self.team),
            };
        };
        avx512.small_gram(x, self.view.m(), out, self.panels);
    }

    /// `out ← alpha · L R + beta · R`, where `L` and `R` are polynomials of one symmetric matrix,
    /// so that they commute and the result is symmetric.
    pub(crate) fn square(&mut self, l: &[f32], r: &[f32], factors: [f32; 2], out: &mut [f32]) {
        let m = self.view.m();
        if let Some(avx512) = self.small() {
            return avx512.small_square(l, r, factors, m, out, self.panels);
        }
        if self.engine.avx512.is_none() {
            return portable::square(l, r, factors, m, out, self.team);
        }
        let operand = |data| Operand::Symmetric { data, order: m };
        let right = (!std::ptr::eq(l, r)).then(|| operand(r));
        self.packed(operand(l), right, factors, (r, true), out);
    }

    /// `out ← alpha · Q X + beta · X` with a symmetric `m × m` matrix `Q`.
    pub(crate) fn apply(&mut self, q: &[f32], x: &[f32], factors: [f32; 2], out: &mut [f32]) {
        let m = self.view.m();
        if let Some(avx512) = self.small() {
            return avx512.small_apply(q, x, factors, m, out, self.panels);
        }
        if self.engine.avx512.is_none() {
            return portable::apply(self.view, q, x, factors, out, self.team);
        }
        let q = Operand::Symmetric { data: q, order: m };
        if self.view.is_tall() {
            self.packed(Operand::Rows { data: x, len: m }, Some(q), factors, (x, false), out);
        } else {
            let x_columns = Operand::Columns { data: x, count: self.view.cols };
            self.packed(q, Some(x_columns), factors, (x, false), out);
        }
    }

    /// The AVX-512 kernels, if this matrix takes the small ones.
    fn small(&self) -> Option<Avx512> {
        self.engine.avx512.filter(|_| self.engine.kernel(self.view) == Kernel::Avx512Small)
    }

    /// The rows of the `m × n` matrix.
    fn rows_of<'x>(&self, x: &'x [f32]) -> Operand<'x> {
        let View { cols, .. } = self.view;
        if self.view.is_tall() {
            Operand::Columns { data: x, count: cols }
        } else {
            Operand::Rows { data: x, len: cols }
        }
    }

    fn packed(
        &mut self,
        left: Operand<'_>,
        right: Option<Operand<'_>>,
        [alpha, beta]: [f32; 2],
        (plus, lower): (&[f32], bool),
        out: &mut [f32],
    ) {
        let Some(avx512) = self.engine.avx512 else { return };
        let plus = (beta != 0.0).then_some((beta, plus));
        let product = Product { left, right, alpha, plus, lower, precision: self.precision };
        avx512.multiply(product, out, self.panels, self.team);
    }
}
