//! AdamW on host slices, for parameters that Muon does not take; state stays in `f32`.

use crate::kernels::{Pass, widest};
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
        Self { lr: 1e-3, beta_1: 0.9, beta_2: 0.95, eps: 1e-8, weight_decay: 0.0 }
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
        let AdamWState { first, second, step } = state;
        let others = [
            ("gradient", grads.len()),
            ("first moment", first.len()),
            ("second moment", second.len()),
        ];
        check_same_len(params.len(), others)?;
        widest(Step { scalars: Scalars::new(self, step), params, grads, first, second });
        Ok(())
    }
}

/// The pass.
struct Step<'a> {
    scalars: Scalars,
    params: &'a mut [f32],
    grads: &'a [f32],
    first: &'a mut [f32],
    second: &'a mut [f32],
}

impl Pass for Step<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { scalars, params, grads, first, second } = self;
        let moments = first.iter_mut().zip(second);
        for ((p, &g), (m, v)) in params.iter_mut().zip(grads).zip(moments) {
            *p = scalars.element(*p, g, m, v);
        }
    }
}

/// The settings of one step, rounded to `f32`.
#[derive(Clone, Copy)]
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

    #[inline(always)]
    fn element(&self, p: f32, g: f32, m: &mut f32, v: &mut f32) -> f32 {
        *m = self.betas[0] * *m + self.one_minus_betas[0] * g;
        *v = self.betas[1] * *v + self.one_minus_betas[1] * (g * g);
        let denominator = (*v / self.corrections[1]).sqrt() + self.eps;
        p * self.keep - self.lr * (*m / self.corrections[0]) / denominator
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some ten roundings of 6e-8 a step on values below 1, over twenty steps.
    const ROUNDING: f64 = 2e-5;

    /// AdamW in `f64`, written as the paper has it.
    struct Oracle {
        p: f64,
        m: f64,
        v: f64,
    }

    impl Oracle {
        fn step(&mut self, c: &AdamW, g: f64, t: i32) {
            self.p -= c.lr * c.weight_decay * self.p;
            self.m = c.beta_1 * self.m + (1.0 - c.beta_1) * g;
            self.v = c.beta_2 * self.v + (1.0 - c.beta_2) * g * g;
            let corrected_m = self.m / (1.0 - c.beta_1.powi(t));
            let corrected_v = self.v / (1.0 - c.beta_2.powi(t));
            self.p -= c.lr * corrected_m / (corrected_v.sqrt() + c.eps);
        }
    }

    #[test]
    fn twenty_steps_follow_the_formula() {
        let config = AdamW { lr: 0.01, weight_decay: 0.1, ..AdamW::default() };
        let mut params = [0.7f32, -0.4, 1e-3];
        let (mut first, mut second) = ([0.0f32; 3], [0.0f32; 3]);
        let mut oracles = params.map(|p| Oracle { p: f64::from(p), m: 0.0, v: 0.0 });
        for step in 1..=20u64 {
            let grads = [0.3, -20.0, 1e-4].map(|g: f32| g * (step as f32 - 7.5));
            let state = AdamWState { first: &mut first, second: &mut second, step };
            config.step(&mut params, &grads, state).unwrap();
            for (i, oracle) in oracles.iter_mut().enumerate() {
                oracle.step(&config, f64::from(grads[i]), step as i32);
                let error = (f64::from(params[i]) - oracle.p).abs();
                assert!(error < ROUNDING, "step {step}, parameter {i}: {error:.1e}");
            }
        }
    }

    #[test]
    fn the_first_step_moves_by_the_learning_rate_whatever_the_gradient() {
        let config = AdamW { lr: 0.25, ..AdamW::default() };
        let mut params = [0.0f32; 3];
        let state = AdamWState { first: &mut [0.0; 3], second: &mut [0.0; 3], step: 1 };
        config.step(&mut params, &[1e-3, -5.0, 1e5], state).unwrap();
        for (p, expected) in params.iter().zip([-0.25, 0.25, -0.25]) {
            assert!((p - expected).abs() < 1e-5, "{params:?}");
        }
    }

    #[test]
    fn the_wide_version_gives_the_bits_of_the_plain_one() {
        let grads: Vec<f32> = (0..1003).map(|i| (i as f32 * 0.3).sin()).collect();
        let run = |wide: bool| {
            let mut state = [grads.clone(), vec![0.1; 1003], vec![0.2; 1003]];
            let [params, first, second] = &mut state;
            let scalars = Scalars::new(&AdamW::default(), 3);
            let step = Step { scalars, params, grads: &grads, first, second };
            if wide {
                widest(step)
            } else {
                step.run()
            }
            state.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        assert_eq!(run(true), run(false));
    }

    #[test]
    fn moments_of_another_length_are_refused() {
        let state = AdamWState { first: &mut [0.0; 2], second: &mut [0.0; 1], step: 1 };
        let error = AdamW::default().step(&mut [0.0; 2], &[0.0; 2], state).unwrap_err();
        assert_eq!(error.to_string(), "second moment holds 1 elements where the shape asks for 2");
    }
}
