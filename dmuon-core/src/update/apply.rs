//! Decoupled decay and the update of the weights; the decay never sees the scale.

use crate::kernels::{Pass, Squares, widest};
use crate::newton_schulz::NumericsError;

use super::check_same_len;

/// One update: `W ← W·(1 − lr·wd)`, then `W ← W − lr·scale·O`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ApplyUpdate {
    /// Learning rate.
    pub lr: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Factor of [`UpdateScale::factor`](super::UpdateScale::factor); it multiplies the update
    /// and not the decay.
    pub scale: f64,
}

impl ApplyUpdate {
    /// Updates the weights in one pass, and returns the RMS of `scale·O`, for
    /// [`RmsPromise::judge`](super::RmsPromise::judge): what [`rms`](super::rms) gives for the
    /// direction, times the scale, to the bit.
    ///
    /// `1 − lr·wd` and `lr·scale` are formed in `f64` and rounded once; each element is then
    /// multiplied, rounded, and reduced by the product with its direction, in `f32`.
    ///
    /// # Shapes
    /// Two slices of one length, `f32`.
    ///
    /// # Errors
    /// [`NumericsError::LengthMismatch`].
    pub fn apply(&self, weight: &mut [f32], direction: &[f32]) -> Result<f64, NumericsError> {
        check_same_len(weight.len(), [("direction", direction.len())])?;
        let keep = (1.0 - self.lr * self.weight_decay) as f32;
        let step = (self.lr * self.scale) as f32;
        let squares = widest(Update { keep, step, weight, direction });
        let mean = squares / direction.len().max(1) as f64;
        Ok(self.scale * mean.sqrt())
    }
}

/// The pass; its output is the sum of squares of the direction.
struct Update<'a> {
    keep: f32,
    step: f32,
    weight: &'a mut [f32],
    direction: &'a [f32],
}

impl Pass for Update<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let Self { keep, step, weight, direction } = self;
        let mut squares = Squares::default();
        let (weights, weight_rest) = weight.as_chunks_mut::<{ Squares::LANES }>();
        let (directions, direction_rest) = direction.as_chunks::<{ Squares::LANES }>();
        for (weight, direction) in weights.iter_mut().zip(directions) {
            for (w, &o) in weight.iter_mut().zip(direction) {
                *w = *w * keep - step * o;
            }
            squares.add(direction);
        }
        for (w, &o) in weight_rest.iter_mut().zip(direction_rest) {
            *w = *w * keep - step * o;
        }
        squares.add_rest(direction_rest);
        squares.total()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three roundings of 6e-8 a step on values below 4, over ten steps.
    const ROUNDING: f64 = 1e-5;

    #[test]
    fn ten_steps_decay_first_and_scale_only_the_direction() {
        let update = ApplyUpdate { lr: 0.02, weight_decay: 0.1, scale: 6.4 };
        let mut weight = [2.0f32, -3.0, 0.5];
        let mut exact = weight.map(f64::from);
        for step in 0..10 {
            let direction = [0.5, -0.25, 1.0].map(|o: f32| o * (4.5 - step as f32) / 4.5);
            update.apply(&mut weight, &direction).unwrap();
            for i in 0..3 {
                exact[i] *= 1.0 - 0.02 * 0.1;
                exact[i] -= 0.02 * 6.4 * f64::from(direction[i]);
                assert!((f64::from(weight[i]) - exact[i]).abs() < ROUNDING);
            }
        }
    }

    #[test]
    fn the_rms_of_the_update_comes_with_it() {
        for len in [0, 1, 15, 16, 100] {
            let update = ApplyUpdate { lr: 0.02, weight_decay: 0.1, scale: 6.4 };
            let direction: Vec<f32> = (0..len).map(|i| (i as f32).cos()).collect();
            let rms = update.apply(&mut vec![1.0; len], &direction).unwrap();
            assert_eq!(rms.to_bits(), (6.4 * crate::update::rms(&direction)).to_bits(), "{len}");
        }
    }

    #[test]
    fn the_wide_version_gives_the_bits_of_the_plain_one() {
        let direction: Vec<f32> = (0..1003).map(|i| (i as f32 * 0.3).sin()).collect();
        let (mut plain, mut wide) = (direction.clone(), direction.clone());
        let pass = |weight| Update { keep: 0.999, step: 0.013, weight, direction: &direction };
        let sums = [pass(&mut plain).run(), widest(pass(&mut wide))];
        assert_eq!(sums[0].to_bits(), sums[1].to_bits());
        assert!(plain.iter().zip(&wide).all(|(a, b)| a.to_bits() == b.to_bits()));
    }

    #[test]
    fn without_a_direction_the_weight_only_decays() {
        let update = ApplyUpdate { lr: 0.5, weight_decay: 0.5, scale: 100.0 };
        let mut weight = [4.0f32];
        update.apply(&mut weight, &[0.0]).unwrap();
        assert_eq!(weight, [3.0]);
    }
}
