//! Clipping of averaged gradients, from norms that all ranks agree on.

/// What gradients are multiplied by, for each norm that is taken.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Clip {
    factors: Vec<f32>,
}

impl Clip {
    /// Factors that bring each norm down to its limit, where it has one: `max_norm / norm`, at most
    /// 1. `sums_of_squares` are over all ranks, each element counted once.
    pub(crate) fn new(max_norms: &[Option<f64>], sums_of_squares: &[f64]) -> Self {
        let factor = |(limit, sum): (&Option<f64>, &f64)| match (limit, sum.sqrt()) {
            (Some(limit), norm) if norm > *limit => (limit / norm) as f32,
            _ => 1.0,
        };
        Self { factors: max_norms.iter().zip(sums_of_squares).map(factor).collect() }
    }

    /// The gradient to step with: `gradient` itself, or a clipped copy in `scratch`.
    pub(crate) fn apply<'a>(
        &self,
        norm: usize,
        gradient: &'a [f32],
        scratch: &'a mut Vec<f32>,
    ) -> &'a [f32] {
        let factor = self.factors[norm];
        if factor == 1.0 {
            return gradient;
        }
        scratch.clear();
        scratch.extend(gradient.iter().map(|elem| elem * factor));
        scratch
    }

    /// The smallest factor.
    pub(crate) fn strongest(&self) -> f64 {
        self.factors.iter().fold(1.0, |smallest: f64, &factor| smallest.min(f64::from(factor)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_norms_above_their_limit_are_clipped() {
        let clip = Clip::new(&[Some(1.0), None, Some(3.0)], &[4.0, 100.0, 9.0]);
        let mut scratch = Vec::new();
        assert_eq!(clip.apply(0, &[2.0, -4.0], &mut scratch), [1.0, -2.0]);
        assert_eq!(clip.apply(1, &[2.0], &mut scratch), [2.0]);
        assert_eq!(clip.apply(2, &[2.0], &mut scratch), [2.0]);
        assert_eq!(clip.strongest(), 0.5);
    }
}
