//! AdamW on host slices, for parameters that Muon does not take; state stays in `f32`.

use crate::newton_schulz::NumericsError;

use super::check_same_len;

/// AdamW with decoupled decay and bias correction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta_1: f64,
    /// Decay of the second moment.
    pub beta_2: f64,
    /// Added to the root of the corrected second moment.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

impl Default for AdamW {
    fn default() -> Self {
        Self {
            lr: 1e-3,
            beta_1: 0.9,
            beta_2: 0.95,
            eps: 1e-8,
            weight_decay: 0.0,
        }
    }
}

/// The moments of one parameter, borrowed for a step; both start as zeros.
#[derive(Debug)]
pub struct AdamWState<'a> {
    /// First moment.
    pub first: &'a mut [f32],
    /// Second moment.
    pub second: &'a mut [f32],
    /// Number of this step, counted from 1; 0 is taken as 1.
    pub step: u64,
}

impl AdamW {
    /// Updates parameters and moments in one pass.
    ///
    /// ```text
    /// p ← p·(1 − lr·wd)
    /// m ← β₁·m + (1 − β₁)·g;   v ← β₂·v + (1 − β₂)·g²
    /// p ← p − lr·(m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + eps)
    /// ```
    /// The scalars are formed in `f64` and rounded once; elements are computed in `f32`, in this
    /// order.
    ///
    /// # Shapes
    /// Four slices of one length, `f32`.
    ///
    /// # Errors
    /// [`NumericsError::LengthMismatch`].
    ///
    /// # Source
    /// Loshchilov and Hutter, arXiv 1711.05101, algorithm 2.
    pub fn step(
        &self,
        params: &mut [f32],
        grads: &[f32],
        state: AdamWState<'_>,
    ) -> Result<(), NumericsError> {
        let AdamWState {
            first,
            second,
            step,
        } = state;
        let others = [
            ("gradient", grads.len()),
            ("first moment", first.len()),
            ("second moment", second.len()),
        ];
        check_same_len(params.len(), others)?;
        let scalars = Scalars::new(self, step);
        let moments = first.iter_mut().zip(second);
        for ((p, &g), (m, v)) in params.iter_mut().zip(grads).zip(moments) {
            *p = scalars.element(*p, g, m, v);
        }
        Ok(())
    }
}

/// The settings of one step, rounded to `f32`.
struct Scalars {
    lr: f32,
    keep: f32,
    betas: [f32; 2],
    one_minus_betas: [f32; 2],
    corrections: [f32; 2],
    eps: f32,
}

impl Scalars {
    fn new(config: &AdamW, step: u64) -> Self {
        let betas = [config.beta_1, config.beta_2];
        let step = step.max(1) as f64;
        Self {
            lr: config.lr as f32,
            keep: (1.0 - config.lr * config.weight_decay) as f32,
            betas: betas.map(|beta| beta as f32),
            one_minus_betas: betas.map(|beta| (1.0 - beta) as f32),
            corrections: betas.map(|beta| (1.0 - beta.powf(step)) as f32),
            eps: config.eps as f32,
        }
    }

    #[inline]
    fn element(&self, p: f32, g: f32, m: &mut f32, v: &mut f32) -> f32 {
        *m = self.betas[0] * *m + self.one_minus_betas[0] * g;
        *v = self.betas[1] * *v + self.one_minus_betas[1] * (g * g);
        let denominator = (*v / self.corrections[1]).sqrt() + self.eps;
        p * self.keep - self.lr * (*m / self.corrections[0]) / denominator
    }
}
