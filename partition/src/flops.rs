//! Floating-point operations of Newton–Schulz by form and shape, and the form that a shape prefers.
//!
//! Counted for `X` of `m × n`, `m ≤ n`, a multiply-add as two operations, lower-order terms left
//! out. A symmetric result costs half: only one triangle of it is computed.
//!
//! | step | direct form | Gram form |
//! |---|---|---|
//! | before the first step and after each restart | – | `R = XXᵀ`: `m²n` |
//! | every step | `XXᵀ`, `A²`, `BX`: `3m²n + m³` | `R²`: `m³` |
//! | every step but the first after a (re)start | – | `ZQ`: `m³` |
//! | every step but the last before a restart or the end | – | `RZ`, `ZT`: `2m³` |
//! | before each restart and at the end | – | `QX`: `2m²n` |
//!
//! With `s` steps and `r` restarts that is `s(3m²n + m³)` against
//! `3(1 + r)m²n + (4s − 3(1 + r))m³`. Their difference is `3(s − 1 − r)·m²(n − m)`, so **the two
//! forms cost the same at `m = n` whatever the number of steps and restarts, and the Gram form is
//! cheaper for every other shape.**

use serde::{Deserialize, Serialize};

/// Steps of Newton–Schulz that the cost model assumes.
pub const DEFAULT_STEPS: usize = 5;

/// How Newton–Schulz is evaluated.
///
/// # Source
/// Direct: Jordan's Muon. Gram: Gram Newton–Schulz (Dao-AILab), restarted for accuracy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Every step multiplies the `m × n` matrix.
    Direct,
    /// Steps run on the `m × m` Gram matrix; the `m × n` matrix is touched at (re)starts only.
    Gram {
        /// How often the Gram matrix is formed anew, in between two steps.
        restarts: usize,
    },
}

impl Form {
    /// Operations of `steps` steps on one `rows × cols` matrix, with symmetric products computed
    /// as one triangle. Orientation does not matter.
    ///
    /// A restart needs a step on either side, so at most `steps − 1` restarts count.
    pub fn flops(self, rows: usize, cols: usize, steps: usize) -> f64 {
        if steps == 0 {
            return 0.0;
        }
        let (square, cube) = powers(rows, cols);
        let s = steps as f64;
        match self {
            Self::Direct => s * (3.0 * square + cube),
            Self::Gram { restarts } => {
                let starts = (1 + restarts.min(steps - 1)) as f64;
                3.0 * starts * square + (4.0 * s - 3.0 * starts) * cube
            }
        }
    }

    /// Operations with every product computed in full, as a plain GEMM does.
    pub fn flops_without_triangles(self, rows: usize, cols: usize, steps: usize) -> f64 {
        if steps == 0 {
            return 0.0;
        }
        let (square, cube) = powers(rows, cols);
        let s = steps as f64;
        match self {
            Self::Direct => s * (4.0 * square + 2.0 * cube),
            Self::Gram { restarts } => {
                let starts = (1 + restarts.min(steps - 1)) as f64;
                4.0 * starts * square + 2.0 * (4.0 * s - 3.0 * starts) * cube
            }
        }
    }
}

/// The form to run on a `rows × cols` matrix: direct for a square, Gram with one restart otherwise.
///
/// The rule needs no threshold: the forms cost the same at `m = n` and Gram is cheaper beyond, for
/// any number of steps. Where they tie, the direct form rounds less. One restart keeps the Gram
/// form accurate and gives up a part of its advantage, never all of it.
///
/// ```
/// use dmuon_partition::{Form, preferred_form};
///
/// assert_eq!(preferred_form(4096, 4096), Form::Direct);
/// assert_eq!(preferred_form(14336, 4096), Form::Gram { restarts: 1 });
/// ```
pub fn preferred_form(rows: usize, cols: usize) -> Form {
    if rows == cols { Form::Direct } else { Form::Gram { restarts: 1 } }
}

/// The balance cost of one `rows × cols` matrix: the cheapest form at the default five steps,
/// `min(15m²n + 5m³, 3m²n + 17m³)`.
pub fn newton_schulz_flops(rows: usize, cols: usize) -> f64 {
    let direct = Form::Direct.flops(rows, cols, DEFAULT_STEPS);
    direct.min(Form::Gram { restarts: 0 }.flops(rows, cols, DEFAULT_STEPS))
}

/// `(m²n, m³)` with `m` the smaller dimension.
fn powers(rows: usize, cols: usize) -> (f64, f64) {
    let (m, n) = (rows.min(cols) as f64, rows.max(cols) as f64);
    (m * m * n, m * m * m)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPES: [(usize, usize); 6] =
        [(1, 1), (1, 9), (64, 64), (128, 896), (896, 4864), (4096, 14336)];

    fn terms(square: f64, cube: f64, m: usize, n: usize) -> f64 {
        let (m, n) = (m as f64, n as f64);
        square * m * m * n + cube * m * m * m
    }

    #[test]
    fn five_steps_match_the_published_polynomials() {
        for (m, n) in SHAPES {
            let gram = |restarts| Form::Gram { restarts };
            assert_eq!(Form::Direct.flops(m, n, 5), terms(15.0, 5.0, m, n));
            assert_eq!(gram(0).flops(m, n, 5), terms(3.0, 17.0, m, n));
            assert_eq!(gram(1).flops(m, n, 5), terms(6.0, 14.0, m, n));
            assert_eq!(Form::Direct.flops_without_triangles(m, n, 5), terms(20.0, 10.0, m, n));
            assert_eq!(gram(1).flops_without_triangles(m, n, 5), terms(8.0, 28.0, m, n));
        }
    }

    #[test]
    fn forms_tie_on_squares_and_gram_wins_beyond() {
        for steps in 2..9 {
            for restarts in 0..steps - 1 {
                let gram = Form::Gram { restarts };
                assert_eq!(gram.flops(64, 64, steps), Form::Direct.flops(64, 64, steps));
                assert!(gram.flops(64, 65, steps) < Form::Direct.flops(64, 65, steps));
            }
        }
    }

    #[test]
    fn orientation_does_not_matter() {
        for (m, n) in SHAPES {
            assert_eq!(newton_schulz_flops(m, n), newton_schulz_flops(n, m));
            assert_eq!(preferred_form(m, n), preferred_form(n, m));
        }
    }

    #[test]
    fn a_restart_needs_a_step_on_either_side() {
        let endless = Form::Gram { restarts: 99 };
        assert_eq!(endless.flops(8, 24, 3), Form::Gram { restarts: 2 }.flops(8, 24, 3));
        assert_eq!(endless.flops(8, 24, 0), 0.0);
        // Restarting at every step is the direct form.
        assert_eq!(endless.flops(8, 24, 3), Form::Direct.flops(8, 24, 3));
    }

    #[test]
    fn the_preferred_form_is_never_dearer_than_direct() {
        for (m, n) in SHAPES {
            let preferred = preferred_form(m, n).flops(m, n, DEFAULT_STEPS);
            assert!(preferred <= Form::Direct.flops(m, n, DEFAULT_STEPS));
        }
    }
}
