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
