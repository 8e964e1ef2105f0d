//! The Gram form: the steps run on `m × m` matrices, the whole matrix is touched twice a segment.
//!
//! ```text
//! R = X Xᵀ; Q = I                                              m²n
//! for i, (a, b, c):
//!     if i is a restart:  X ← Q X; R ← X Xᵀ; Q ← I             3m²n
//!     Z = bR + cR²                                             m³
//!     Q ← aQ + ZQ            (first of a segment: Q ← aI + Z)  m³
//!     if R is needed again:  T = aR + RZ; R ← aT + ZT          2m³
//! X ← Q X                                                      2m²n
//! ```
//!
//! `R`, `Z` and `Q` are polynomials of one symmetric matrix: they commute, every product of two is
//! symmetric, and one triangle suffices. `R` is needed again unless the next step is a restart or
//! there is none.
//!
//! Source: Gram Newton–Schulz (Dao-AILab).

use std::mem::swap;

use faer::{MatRef, Par};

use super::product::{SymmetricProduct, product};
use super::view::View;
use super::workspace::Scratch;

/// Square buffers the form needs.
pub(super) const NUM_SQUARES: usize = 4;

/// The square matrices of a segment.
struct Squares<'a> {
    m: usize,
    par: Par,
    r: &'a mut [f32],
    q: &'a mut [f32],
    z: &'a mut [f32],
    t: &'a mut [f32],
}

/// Runs the schedule on the matrix that `load` writes; the result lands in `out`.
pub(super) fn run(
    (schedule, restarts): (&[[f32; 3]], &[usize]),
    view: View,
    scratch: Scratch<'_>,
    out: &mut [f32],
    load: impl FnOnce(&mut [f32]),
) {
    let par = scratch.par;
    let [r, q, z, t] = scratch.squares;
    let mut squares = Squares { m: view.m(), par, r, q, z, t };
    // `X ← QX` alternates between two buffers, once a segment: start so that it ends in `out`.
    let (mut x, mut next) = (out, scratch.x);
    if restarts.len() % 2 == 0 {
        swap(&mut x, &mut next);
    }
    load(x);
    let mut start = 0;
    for end in restarts.iter().copied().chain([schedule.len()]) {
        squares.segment(&schedule[start..end], view.of(x));
        product(view.of_mut(next), square(squares.q, squares.m), view.of(x), par);
        swap(&mut x, &mut next);
        start = end;
    }
}

impl Squares<'_> {
    /// Leaves in `q` the polynomial that the steps apply to `x`.
    fn segment(&mut self, steps: &[[f32; 3]], x: MatRef<'_, f32>) {
        let xxt =
            SymmetricProduct { lhs: x, rhs: x.transpose(), alpha: 1.0, plus: None, diagonal: 0.0 };
        xxt.write(self.r, self.par);
        for (i, &[a, b, c]) in steps.iter().enumerate() {
            let r = square(self.r, self.m);
            let z = SymmetricProduct {
                lhs: r,
                rhs: r,
                alpha: c,
                plus: Some((b, self.r)),
                diagonal: 0.0,
            };
            z.write(self.z, self.par);
            self.advance_q(a, i == 0);
            if i + 1 < steps.len() {
                self.advance_r(a);
            }
        }
    }

    /// `Q ← aQ + ZQ`.
    fn advance_q(&mut self, a: f32, first: bool) {
        if first {
            self.q.copy_from_slice(self.z);
            self.q.iter_mut().step_by(self.m + 1).for_each(|v| *v += a);
        } else {
            affine(self.z, self.q, a, self.m).write(self.t, self.par);
            swap(&mut self.q, &mut self.t);
        }
    }

    /// `R ← (aI + Z) R (aI + Z)`.
    fn advance_r(&mut self, a: f32) {
        affine(self.z, self.r, a, self.m).write(self.t, self.par);
        affine(self.z, self.t, a, self.m).write(self.r, self.par);
    }
}

fn square(data: &[f32], m: usize) -> MatRef<'_, f32> {
    MatRef::from_row_major_slice(data, m, m)
}

/// `a·other + z·other`.
fn affine<'a>(z: &'a [f32], other: &'a [f32], a: f32, m: usize) -> SymmetricProduct<'a> {
    let (lhs, rhs) = (square(z, m), square(other, m));
    SymmetricProduct { lhs, rhs, alpha: 1.0, plus: Some((a, other)), diagonal: 0.0 }
}
