//! Decoupled decay and the update of the weights; the decay never sees the scale.

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
    /// Updates the weights in one pass.
    ///
    /// `1 − lr·wd` and `lr·scale` are formed in `f64` and rounded once; each element is then
    /// multiplied, rounded, and reduced by the product with its direction, in `f32`.
    ///
    /// # Shapes
    /// Two slices of one length, `f32`.
    ///
    /// # Errors
    /// [`NumericsError::LengthMismatch`].
    pub fn apply(&self, weight: &mut [f32], direction: &[f32]) -> Result<(), NumericsError> {
        check_same_len(weight.len(), [("direction", direction.len())])?;
        let keep = (1.0 - self.lr * self.weight_decay) as f32;
        let step = (self.lr * self.scale) as f32;
        for (w, &o) in weight.iter_mut().zip(direction) {
            *w = *w * keep - step * o;
        }
        Ok(())
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
    fn without_a_direction_the_weight_only_decays() {
        let update = ApplyUpdate { lr: 0.5, weight_decay: 0.5, scale: 100.0 };
        let mut weight = [4.0f32];
        update.apply(&mut weight, &[0.0]).unwrap();
        assert_eq!(weight, [3.0]);
    }
}
