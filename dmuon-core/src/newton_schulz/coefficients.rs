//! Coefficient sets: one odd quintic `a·σ + b·σ³ + c·σ⁵` a step; no set is stretched silently.

use super::NumericsError;

/// Polar Express as published; scaled by [`POLAR_EXPRESS_SAFETY`] before use.
const POLAR_EXPRESS_RAW: [[f64; 3]; 5] = [
    [8.28721201814563, -23.595886519098837, 17.300387312530933],
    [4.107059111542203, -2.9478499167379106, 0.5448431082926601],
    [3.9486908534822946, -2.908902115962949, 0.5518191394370137],
    [3.3184196573706015, -2.488488024314874, 0.51004894012372],
    [2.300652019954817, -1.6689039845747493, 0.4188073119525673],
];

/// Polar Express assumes σ ≤ 1. Rounding can push σ above the interval each triple was fitted to,
/// where the quintics grow fast; evaluating them at σ / 1.05 leaves room for it.
const POLAR_EXPRESS_SAFETY: f64 = 1.05;

const JORDAN: [f64; 3] = [3.4445, -4.7750, 2.0315];

const YOU: [[f64; 3]; 5] = [
    [4.0848, -6.8946, 2.9270],
    [3.9505, -6.3029, 2.6377],
    [3.7418, -5.5913, 2.3037],
    [2.8769, -3.1427, 1.2046],
    [2.8366, -3.0525, 1.2012],
];

/// Points on which a band is searched: the extrema of a composition of five quintics are some
/// hundred on (0, 1], and they crowd towards 0, so the grid is geometric.
const BAND_POINTS: usize = 20_000;

/// Which quintics the Newton–Schulz steps apply.
///
/// # Lengths
/// `Jordan` repeats one triple, so it has any length from 1. `PolarExpress` and `You` have
/// lengths 1 to 5: a shorter schedule is the *prefix* of the published one. For Polar Express a
/// prefix is itself the greedy optimum of that length. For both sets a prefix only lifts small
/// singular values less; [`Coefficients::band`] gives the numbers for any length.
///
/// More than five steps are refused, not repeated: the Polar Express paper continues with three
/// more triples, the last of which (15/8, −5/4, 3/8) is the one it repeats. The fifth triple does
/// not have 1 as its fixed point, so repeating it would settle beside the polar factor. Whoever
/// wants a longer schedule writes it out as `Custom`.
///
/// # Source
/// Polar Express: Amsel, Persson, Musco, Gower, arXiv 2505.16932, algorithm 1 (with the safety
/// factor of Gram Newton–Schulz, 1.05). Jordan: Keller Jordan's Muon. You: Jiacheng You.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Coefficients {
    /// Polar Express divided by (1.05, 1.05³, 1.05⁵); band [0.846, 1.124] after five steps.
    #[default]
    PolarExpress,
    /// Keller Jordan's triple (3.4445, −4.7750, 2.0315) at every step.
    Jordan,
    /// Jiacheng You's five triples; band [0.978, 1.145] after five steps.
    You,
    /// One triple `[a, b, c]` a step; a shorter run uses a prefix, a longer one is refused.
    Custom(Vec<[f64; 3]>),
}

/// Range of output singular values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Band {
    /// Smallest output singular value.
    pub low: f64,
    /// Largest output singular value.
    pub high: f64,
}

impl Coefficients {
    /// The triples `[a, b, c]` of a run of `steps` steps, in order.
    ///
    /// # Errors
    /// [`NumericsError::ScheduleLength`] for a length the set does not have, 0 included, and
    /// [`NumericsError::NonFiniteCoefficient`] for a custom NaN or infinity.
    pub fn schedule(&self, steps: usize) -> Result<Vec<[f64; 3]>, NumericsError> {
        let longest = self.longest().unwrap_or(usize::MAX);
        if steps == 0 || steps > longest {
            return Err(NumericsError::ScheduleLength { set: self.name(), asked: steps, longest });
        }
        let schedule: Vec<_> = (0..steps).map(|step| self.triple(step)).collect();
        match schedule.iter().position(|t| t.iter().any(|v| !v.is_finite())) {
            Some(step) => Err(NumericsError::NonFiniteCoefficient { step, triple: schedule[step] }),
            None => Ok(schedule),
        }
    }

    /// Name of the set, as errors and reports print it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::PolarExpress => "PolarExpress",
            Self::Jordan => "Jordan",
            Self::You => "You",
            Self::Custom(_) => "Custom",
        }
    }

    /// Longest schedule of the set; `None` where there is no limit.
    pub fn longest(&self) -> Option<usize> {
        match self {
            Self::PolarExpress => Some(POLAR_EXPRESS_RAW.len()),
            Self::Jordan => None,
            Self::You => Some(YOU.len()),
            Self::Custom(triples) => Some(triples.len()),
        }
    }

    /// Where `steps` steps send the singular value `sigma` of the normalized matrix, in `f64`.
    ///
    /// # Errors
    /// As [`Coefficients::schedule`].
    pub fn gain(&self, steps: usize, sigma: f64) -> Result<f64, NumericsError> {
        Ok(compose(&self.schedule(steps)?, sigma))
    }

    /// Band of output singular values for inputs in `[sigma_min, 1]`, found on a fine grid
    /// (to about 1e-5). `sigma_min` is clamped to `[1e-12, 1]`; `band.high` with a tiny
    /// `sigma_min` bounds the outputs of every input.
    ///
    /// # Errors
    /// As [`Coefficients::schedule`].
    pub fn band(&self, steps: usize, sigma_min: f64) -> Result<Band, NumericsError> {
        let schedule = self.schedule(steps)?;
        let sigma_min = sigma_min.clamp(1e-12, 1.0);
        let outputs = (0..=BAND_POINTS).map(|i| {
            let exponent = 1.0 - i as f64 / BAND_POINTS as f64;
            compose(&schedule, sigma_min.powf(exponent))
        });
        let empty = Band { low: f64::INFINITY, high: f64::NEG_INFINITY };
        Ok(outputs.fold(empty, |band, v| Band { low: band.low.min(v), high: band.high.max(v) }))
    }

    fn triple(&self, step: usize) -> [f64; 3] {
        match self {
            Self::PolarExpress => {
                let [a, b, c] = POLAR_EXPRESS_RAW[step];
                let s = POLAR_EXPRESS_SAFETY;
                [a / s, b / s.powi(3), c / s.powi(5)]
            }
            Self::Jordan => JORDAN,
            Self::You => YOU[step],
            Self::Custom(triples) => triples[step],
        }
    }
}

/// Applies the quintics of `schedule` to one singular value, in `f64`.
pub(super) fn compose(schedule: &[[f64; 3]], sigma: f64) -> f64 {
    schedule.iter().fold(sigma, |s, &[a, b, c]| {
        let s2 = s * s;
        s * (a + s2 * (b + s2 * c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published bands carry three decimals.
    const BAND_DIGITS: f64 = 6e-4;

    fn assert_band(set: Coefficients, sigma_min: f64, low: f64, high: f64) {
        let band = set.band(5, sigma_min).unwrap();
        assert!((band.low - low).abs() < BAND_DIGITS, "{set:?}: {band:?}");
        assert!((band.high - high).abs() < BAND_DIGITS, "{set:?}: {band:?}");
    }

    #[test]
    fn five_steps_reach_the_stated_bands() {
        assert_band(Coefficients::PolarExpress, 0.002, 0.846, 1.124);
        assert_band(Coefficients::You, 0.003, 0.978, 1.145);
    }

    #[test]
    fn shorter_schedules_are_prefixes_and_stay_bounded() {
        for set in [Coefficients::PolarExpress, Coefficients::You, Coefficients::Jordan] {
            let full = set.schedule(5).unwrap();
            for steps in 1..=5 {
                assert_eq!(set.schedule(steps).unwrap(), full[..steps]);
                let band = set.band(steps, 1e-9).unwrap();
                assert!(band.low > 0.0 && band.high < 2.2, "{set:?} {steps}: {band:?}");
            }
        }
    }

    #[test]
    fn lengths_a_set_does_not_have_are_refused_with_the_cure() {
        let error = Coefficients::PolarExpress.schedule(6).unwrap_err();
        let message = error.to_string();
        for part in ["PolarExpress", "1 to 5", "6 were asked", "Jordan", "Custom"] {
            assert!(message.contains(part), "{message}");
        }
        for set in [Coefficients::You, Coefficients::Custom(vec![JORDAN; 3])] {
            assert!(set.schedule(0).is_err() && set.schedule(6).is_err());
        }
        assert!(Coefficients::Jordan.schedule(0).is_err());
        assert_eq!(Coefficients::Jordan.schedule(9).unwrap(), vec![JORDAN; 9]);
    }

    #[test]
    fn a_custom_nan_is_refused_by_step() {
        let set = Coefficients::Custom(vec![JORDAN, [f64::NAN, 0.0, 0.0]]);
        let error = set.schedule(2).unwrap_err();
        assert!(matches!(error, NumericsError::NonFiniteCoefficient { step: 1, .. }), "{error}");
        assert!(set.schedule(1).is_ok());
    }
}
