//! Which form evaluates the steps, and where the Gram form restarts; by shape and schedule alone.

use super::{NumericsError, Precision};
use serde::{Deserialize, Serialize};

/// Unit roundoff of `f32`.
const ROUNDOFF: f64 = 1.0 / (1 << 24) as f64;

/// Rounding noise that the Gram matrix may carry into its last use, relative to its norm.
///
/// Each update maps a small eigenvalue λ of R to about a²·λ, noise included, so noise grows by
/// the product of a². At 1 % the polynomial of the noisy eigenvalue still lies in the band; some
/// ten times more and negative eigenvalues start to diverge.
const NOISE_LIMIT: f64 = 0.01;

/// How the steps are evaluated. Both forms compute the same function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// By shape and precision. In `f32`: `Gram` where the matrix is not square, `Direct` where it
    /// is. With bf16 products: `Direct` below `n = 3·m`, `Gram` from there on.
    ///
    /// With `m ≤ n` and triangular products `s` steps cost `3s·m²n + s·m³` direct and
    /// `3m²n + (4s−3)·m³` Gram; they meet at `m = n`, with any number of restarts. Bf16 products
    /// halve the time of the direct form alone, which moves the meeting point: for five steps to
    /// `n = 3·m` (measured: 2.75 for m = 512, 3.0 for m = 1024).
    #[default]
    Auto,
    /// Iterate on the `m × n` matrix: `A = XXᵀ`, `X ← (aI + bA + cA²)X`.
    Direct,
    /// Iterate on the `m × m` Gram matrix and touch the `m × n` matrix twice.
    Gram,
}

/// Before which steps the Gram form recomputes its Gram matrix from the matrix itself.
///
/// A restart stops the growth of rounding noise for `3m²n − 3m³` more flops.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Restart {
    /// As few as keep rounding noise below one percent: none for up to five steps of the named
    /// coefficient sets in `f32`, then about every five steps.
    #[default]
    Auto,
    /// Never. Long runs can diverge, which is reported as an error.
    None,
    /// Before these steps, counted from 0; strictly increasing, within `1..ns_steps`.
    At(Vec<usize>),
}

impl Form {
    /// The form used for a `rows × cols` matrix in `f32`; never `Auto`.
    pub fn resolve(self, rows: usize, cols: usize) -> Form {
        self.resolve_for(Precision::F32, rows, cols)
    }

    /// The form used for a `rows × cols` matrix in a precision; never `Auto`.
    pub fn resolve_for(self, precision: Precision, rows: usize, cols: usize) -> Form {
        let (m, n) = (rows.min(cols), rows.max(cols));
        match (self, precision) {
            (Form::Auto, Precision::F32) if m == n => Form::Direct,
            (Form::Auto, Precision::Bf16Products) if n < 3 * m => Form::Direct,
            (Form::Auto, _) => Form::Gram,
            (chosen, _) => chosen,
        }
    }

    /// Floating-point operations of `steps` steps with `restarts` restarts, a multiply-add
    /// counted as two and each symmetric product as one triangle. There is at least one step, and
    /// a step on either side of a restart.
    pub fn flops(self, rows: usize, cols: usize, steps: usize, restarts: usize) -> u64 {
        let (m, n) = (rows.min(cols) as u64, rows.max(cols) as u64);
        let steps = steps.max(1) as u64;
        let starts = 1 + (restarts as u64).min(steps - 1);
        match self.resolve(rows, cols) {
            Form::Gram => 3 * starts * m * m * n + (4 * steps - 3 * starts) * m * m * m,
            _ => steps * (3 * m * m * n + m * m * m),
        }
    }
}

impl Restart {
    /// The restart positions for a schedule.
    ///
    /// # Errors
    /// [`NumericsError::InvalidRestarts`] for positions that do not rise strictly in `1..steps`.
    pub fn positions(&self, schedule: &[[f64; 3]]) -> Result<Vec<usize>, NumericsError> {
        match self {
            Restart::Auto => Ok(automatic(schedule)),
            Restart::None => Ok(Vec::new()),
            Restart::At(restarts) => {
                let steps = schedule.len();
                let rising = restarts.windows(2).all(|pair| pair[0] < pair[1]);
                if rising && restarts.iter().all(|r| (1..steps).contains(r)) {
                    Ok(restarts.clone())
                } else {
                    Err(NumericsError::InvalidRestarts { steps, restarts: restarts.clone() })
                }
            }
        }
    }
}

/// Restarts as late as the noise limit allows.
fn automatic(schedule: &[[f64; 3]]) -> Vec<usize> {
    let mut noise = ROUNDOFF;
    let mut restarts = Vec::new();
    for step in 1..schedule.len() {
        noise *= schedule[step - 1][0].powi(2).max(1.0);
        if noise > NOISE_LIMIT {
            restarts.push(step);
            noise = ROUNDOFF;
        }
    }
    restarts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::newton_schulz::Coefficients;

    fn restarts(set: Coefficients, steps: usize) -> Vec<usize> {
        Restart::Auto.positions(&set.schedule(steps).unwrap()).unwrap()
    }

    #[test]
    fn five_steps_need_no_restart_and_more_do() {
        for set in [Coefficients::PolarExpress, Coefficients::You, Coefficients::Jordan] {
            assert!(restarts(set, 5).is_empty());
        }
        assert_eq!(restarts(Coefficients::Jordan, 6), [5]);
        assert_eq!(restarts(Coefficients::Jordan, 12), [5, 10]);
    }

    #[test]
    fn positions_outside_the_run_are_refused() {
        let schedule = Coefficients::You.schedule(5).unwrap();
        for bad in [vec![0], vec![5], vec![2, 2], vec![3, 1]] {
            assert!(Restart::At(bad).positions(&schedule).is_err());
        }
        assert_eq!(Restart::At(vec![2]).positions(&schedule).unwrap(), [2]);
    }

    #[test]
    fn flops_follow_the_stated_formulas() {
        let (m, n) = (512, 2048);
        let (m2n, m3) = ((m * m * n) as u64, (m * m * m) as u64);
        assert_eq!(Form::Direct.flops(n, m, 5, 0), 15 * m2n + 5 * m3);
        assert_eq!(Form::Gram.flops(m, n, 5, 0), 3 * m2n + 17 * m3);
        assert_eq!(Form::Gram.flops(m, n, 5, 1), 6 * m2n + 14 * m3);
        assert_eq!(Form::Direct.flops(m, m, 5, 0), Form::Gram.flops(m, m, 5, 0));
        assert_eq!(Form::Auto.resolve(m, m), Form::Direct);
        assert_eq!(Form::Auto.resolve(n, m), Form::Gram);
    }

    #[test]
    fn bf16_products_keep_the_direct_form_below_three_to_one() {
        let resolve = |rows, cols| Form::Auto.resolve_for(Precision::Bf16Products, rows, cols);
        assert_eq!(resolve(512, 512), Form::Direct);
        assert_eq!(resolve(1535, 512), Form::Direct);
        assert_eq!(resolve(512, 1536), Form::Gram);
        assert_eq!(Form::Gram.resolve_for(Precision::Bf16Products, 512, 512), Form::Gram);
    }
}
