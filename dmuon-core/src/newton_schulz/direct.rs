//! The direct form: every step multiplies the whole matrix.
//!
//! ```text
//! for (a, b, c):  A = X Xᵀ                one triangle   m²n
//!                 B = aI + bA + cA²       one triangle   m³
//!                 X ← B X                                2m²n
//! ```
//!
//! `aI` sits inside `B`, so `X ← aX + BX` is one product and no pass over `X`.

use std::mem::swap;

use faer::MatRef;

use super::product::{SymmetricProduct, product};
use super::view::View;
use super::workspace::Scratch;

/// Square buffers the form needs.
pub(super) const NUM_SQUARES: usize = 2;

/// Runs the schedule on the matrix that `load` writes; the result lands in `out`.
pub(super) fn run(
    schedule: &[[f32; 3]],
    view: View,
    scratch: Scratch<'_>,
    out: &mut [f32],
    load: impl FnOnce(&mut [f32]),
) {
    let m = view.m();
    let par = scratch.par;
    let [gram, poly, ..] = scratch.squares;
    // The matrix alternates between two buffers: start where an even walk ends in `out`.
    let (mut x, mut next) = (out, scratch.x);
    if schedule.len() % 2 == 1 {
        swap(&mut x, &mut next);
    }
    load(x);
    for &[a, b, c] in schedule {
        let xs = view.of(x);
        let xxt = SymmetricProduct {
            lhs: xs,
            rhs: xs.transpose(),
            alpha: 1.0,
            plus: None,
            diagonal: 0.0,
        };
        xxt.write(gram, par);
        let square = MatRef::from_row_major_slice(gram, m, m);
        let quintic = SymmetricProduct {
            lhs: square,
            rhs: square,
            alpha: c,
            plus: Some((b, gram)),
            diagonal: a,
        };
        quintic.write(poly, par);
        product(view.of_mut(next), MatRef::from_row_major_slice(poly, m, m), xs, par);
        swap(&mut x, &mut next);
    }
}
