//! The iteration: segments of steps on `m × m` matrices, between which the whole matrix is touched.
//!
//! ```text
//! for each segment of the schedule:
//!     R = X Xᵀ                                                 m²n
//!     for i, (a, b, c):
//!         Z = bR + cR²                                         m³
//!         Q ← aQ + ZQ            (first of a segment: aI + Z)  m³
//!         if R is needed again:  T = aR + RZ; R ← aT + ZT      2m³
//!     X ← Q X                                                  2m²n
//! ```
//!
//! The Gram form has a segment from restart to restart; the direct form has one for every step,
//! and needs neither `Z` beside `Q` nor `T`. `R`, `Z` and `Q` are polynomials of one symmetric
//! matrix: they commute, every product of two is symmetric, and one triangle suffices.
//!
//! The norm is not computed by a pass of its own: `‖X‖²` is the trace of the first `R`.
//!
//! Source: Gram Newton–Schulz (Dao-AILab); the direct form is Keller Jordan's Muon.

use std::mem::swap;

use super::workspace::Scratch;
use crate::kernels::{Products, sum_of_squares};

/// Squared norms for which the first Gram matrix is trusted without a look at the input.
///
/// Within, no product of elements that matter beside the largest leaves the normal numbers of
/// `f32`, so a power of two in the input cancels to the bit.
const TRUSTED_SQUARED_NORM: std::ops::Range<f64> = 1e-20..1e30;

/// Bound on what the last product may reach.
const LARGEST: f64 = 1e37;

/// Share of the sum of squares of `R` that its mean eigenvalue must explain to be taken out.
///
/// A square Gaussian matrix starts at a half and a wide one higher; rank one at `1 / m`.
const CENTRED: f64 = 0.4;

/// Why a matrix has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The squared norm lies outside the trusted range: zero, tiny, huge, or not a number.
    Scale,
    /// NaN or an infinity in the input.
    Input,
    /// The iteration left the finite numbers.
    Diverged,
}

/// A schedule and the steps before which it starts anew.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan<'a> {
    pub(super) schedule: &'a [[f32; 3]],
    pub(super) restarts: &'a [usize],
}

impl Plan<'_> {
    /// Square buffers needed: `R` and `Q`, and beyond one step a segment also `Z` and `T`.
    pub(super) fn num_squares(&self) -> usize {
        if self.restarts.len() + 1 == self.schedule.len() { 2 } else { 4 }
    }

    /// Whether the matrix needs a second buffer to alternate with.
    pub(super) fn needs_x(&self) -> bool {
        !self.restarts.is_empty()
    }

    /// Runs the schedule on `input / ‖input‖`; the result lands in `out`.
    ///
    /// With [`Fault::Scale`] nothing has been written to `out`.
    pub(super) fn run(
        self,
        products: &mut Products<'_>,
        scratch: Scratch<'_>,
        input: &[f32],
        out: &mut [f32],
    ) -> Result<(), Fault> {
        let mut squares = Squares::new(products, scratch.squares);
        let num_segments = self.restarts.len() + 1;
        // The matrix alternates between two buffers: start so that the last product ends in `out`.
        let (mut next, mut last) = (out, scratch.x);
        if num_segments.is_multiple_of(2) {
            swap(&mut next, &mut last);
        }
        let mut start = 0;
        for end in self.restarts.iter().copied().chain([self.schedule.len()]) {
            let first = start == 0;
            let x: &[f32] = if first { input } else { last };
            squares.products.gram(x, squares.r);
            let norm = squares.trace().sqrt();
            if first {
                squares.normalize(norm)?;
            }
            let identity = squares.segment(&self.schedule[start..end]);
            if end == self.schedule.len() {
                squares.check(identity, if first { 1.0 } else { norm })?;
            }
            let scale = if first { norm.recip() as f32 } else { 1.0 };
            squares.products.apply(squares.q, x, [scale, identity * scale], next);
            swap(&mut next, &mut last);
            start = end;
        }
        Ok(())
    }
}

/// The square matrices of a segment.
struct Squares<'a, 'p> {
    products: &'a mut Products<'p>,
    m: usize,
    r: &'a mut [f32],
    q: &'a mut [f32],
    z: &'a mut [f32],
    t: &'a mut [f32],
}

impl<'a, 'p> Squares<'a, 'p> {
    fn new(products: &'a mut Products<'p>, [r, q, z, t]: [&'a mut [f32]; 4]) -> Self {
        let m = products.view.m();
        Self { products, m, r, q, z, t }
    }

    fn trace(&self) -> f64 {
        self.r.iter().step_by(self.m + 1).map(|&v| f64::from(v)).sum()
    }

    /// Makes `r` the Gram matrix of the matrix divided by its norm.
    fn normalize(&mut self, norm: f64) -> Result<(), Fault> {
        if !TRUSTED_SQUARED_NORM.contains(&(norm * norm)) {
            return Err(Fault::Scale);
        }
        let factor = (norm * norm).recip() as f32;
        self.r.iter_mut().for_each(|v| *v *= factor);
        Ok(())
    }

    /// Leaves in `q` the polynomial of `r` that the steps apply, short of the multiple of `I` that
    /// it returns. With bf16 products that part is kept apart and added in `f32`, so that what the
    /// rounding of the matrix adds stays within its range.
    fn segment(&mut self, steps: &[[f32; 3]]) -> f32 {
        if let ([step], true) = (steps, self.products.precision.is_bf16()) {
            return self.centred(*step);
        }
        for (i, &[a, b, c]) in steps.iter().enumerate() {
            if i == 0 {
                self.products.square(self.r, self.r, [c, b], self.q);
                self.z.copy_from_slice(&self.q[..self.z.len()]);
                self.q.iter_mut().step_by(self.m + 1).for_each(|v| *v += a);
            } else {
                self.products.square(self.r, self.r, [c, b], self.z);
                self.products.square(self.z, self.q, [1.0, a], self.t);
                swap(&mut self.q, &mut self.t);
            }
            if i + 1 < steps.len() {
                self.advance_r(a);
            }
        }
        0.0
    }

    /// One step about the mean eigenvalue `μ` of `r`: with `E = R − μI`,
    ///
    /// ```text
    /// aI + bR + cR² = (a + bμ + cμ²)I + (b + 2cμ)E + cE²
    /// ```
    /// The first term is returned, to be applied in `f32`. What is rounded to bf16 is `E`, which
    /// vanishes as the matrix becomes orthogonal. Where most eigenvalues are tiny, `μ = 0`
    /// instead: `E` would be no smaller, and no longer vanish where the matrix does.
    fn centred(&mut self, [a, b, c]: [f32; 3]) -> f32 {
        let mean = self.trace() / self.m as f64;
        let explained = mean * mean * self.m as f64 / symmetric_sum_of_squares(self.r, self.m);
        let mean = if explained < CENTRED { 0.0 } else { mean as f32 };
        self.r.iter_mut().step_by(self.m + 1).for_each(|v| *v -= mean);
        self.products.square(self.r, self.r, [c, b + 2.0 * c * mean], self.q);
        a + mean * (b + c * mean)
    }

    /// `R ← (aI + Z) R (aI + Z)`.
    fn advance_r(&mut self, a: f32) {
        self.products.square(self.z, self.r, [1.0, a], self.t);
        self.products.square(self.z, self.t, [1.0, a], self.r);
    }

    /// Whether `q + identity·I` times a matrix of norm `norm` stays finite. What goes wrong in an
    /// earlier segment shows in the last: through the Gram matrix it reaches `q` and `norm`.
    fn check(&self, identity: f32, norm: f64) -> Result<(), Fault> {
        let norm_q = symmetric_sum_of_squares(self.q, self.m).sqrt();
        let largest = (norm_q + f64::from(identity).abs()) * norm;
        if largest < LARGEST { Ok(()) } else { Err(Fault::Diverged) }
    }
}

/// Sum of squares of a symmetric matrix, from its lower triangle.
fn symmetric_sum_of_squares(values: &[f32], m: usize) -> f64 {
    let rows = values.chunks_exact(m).enumerate();
    rows.map(|(i, row)| 2.0 * sum_of_squares(&row[..i]) + f64::from(row[i]).powi(2)).sum()
}
