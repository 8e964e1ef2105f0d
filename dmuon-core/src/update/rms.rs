//! The size of an update, and what its scale promises about it; a report, never a correction.

use crate::kernels::sum_of_squares;
use crate::newton_schulz::Band;

/// What rounding may add to a singular value in the Gram form: one percent, by its restart policy.
/// Faults (a wrong factor, a step that never ran) are far larger.
const SLACK: f64 = 1e-2;

/// Root mean square, accumulated in `f64` in a fixed order; 0 for an empty slice.
pub fn rms(values: &[f32]) -> f64 {
    if values.is_empty() { 0.0 } else { (sum_of_squares(values) / values.len() as f64).sqrt() }
}

/// What a scale promises about the RMS of `scale·O`.
///
/// An `m × n` matrix with `r` singular values in `[low, high]` and the rest 0 has an RMS between
/// `low·√(r / mn)` and `high·√(r / mn)`. `r = min(m, n)` gives the bounds below.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsPromise {
    /// No update is larger, whatever its rank.
    pub upper: f64,
    /// An update of full rank is not smaller. One of lower rank, or with singular values below
    /// the band's inputs, is.
    pub full_rank_lower: f64,
}

/// How a measured RMS compares with the promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RmsVerdict {
    /// Between the bounds of a full-rank update.
    FullRank,
    /// Below: a low-rank gradient. To be reported; no fault.
    LowRank,
    /// Above what the scale allows, or not a number: Newton–Schulz did not make this update.
    TooLarge,
}

impl RmsPromise {
    /// The promise for a `rows × cols` direction with singular values in `band`, times `scale`.
    pub fn new(scale: f64, band: Band, rows: usize, cols: usize) -> Self {
        let per_element = scale / (rows.max(cols).max(1) as f64).sqrt();
        Self { upper: band.high * per_element, full_rank_lower: band.low * per_element }
    }

    /// Compares a measured RMS of `scale·O`, without the learning rate.
    pub fn judge(&self, measured: f64) -> RmsVerdict {
        if measured.is_nan() || measured > self.upper * (1.0 + SLACK) {
            RmsVerdict::TooLarge
        } else if measured < self.full_rank_lower * (1.0 - SLACK) {
            RmsVerdict::LowRank
        } else {
            RmsVerdict::FullRank
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rms_of_an_orthogonal_matrix_meets_its_promise() {
        let identity = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0];
        let promise = RmsPromise::new(1.0, Band { low: 1.0, high: 1.0 }, 2, 3);
        assert!((rms(&identity) - promise.upper).abs() < 1e-15);
        assert_eq!(promise.judge(rms(&identity)), RmsVerdict::FullRank);
        assert_eq!(promise.judge(rms(&identity[..3]) / 2.0), RmsVerdict::LowRank);
        assert_eq!(promise.judge(1.02 * promise.upper), RmsVerdict::TooLarge);
        assert_eq!(promise.judge(f64::NAN), RmsVerdict::TooLarge);
    }

    #[test]
    fn the_rms_of_tiny_and_huge_values_neither_vanishes_nor_overflows() {
        assert_eq!(rms(&[]), 0.0);
        assert_eq!(rms(&[f32::MAX; 9]), f64::from(f32::MAX));
        assert_eq!(rms(&[f32::MIN_POSITIVE; 9]), f64::from(f32::MIN_POSITIVE));
    }
}
