//! The momentum buffer and the Newton–Schulz input it gives; it never averages with `1 − μ`.

use crate::kernels::{Pass, widest};
use crate::newton_schulz::NumericsError;

use super::check_same_len;

/// What Newton–Schulz is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MomentumRule {
    /// The gradient plus the decayed new buffer, `g + μ·buf`.
    #[default]
    Nesterov,
    /// The new buffer.
    HeavyBall,
}

/// Momentum of Muon: `buf ← μ·buf + g`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Momentum {
    /// The factor μ, usually 0.95.
    pub mu: f32,
    /// What Newton–Schulz is given.
    pub rule: MomentumRule,
}

impl Default for Momentum {
    fn default() -> Self {
        Self { mu: 0.95, rule: MomentumRule::Nesterov }
    }
}

impl Momentum {
    /// Advances the buffer and writes the Newton–Schulz input, in one pass.
    ///
    /// `buf ← μ·buf + g`, rounded to `f32`; then `out = g + μ·buf` with the new buffer (Nesterov)
    /// or `out = buf`. A new buffer is zeros, which makes the first buffer `g`.
    ///
    /// # Shapes
    /// Three slices of one length, `f32`.
    ///
    /// # Errors
    /// [`NumericsError::LengthMismatch`].
    pub fn step(
        &self,
        buf: &mut [f32],
        grad: &[f32],
        out: &mut [f32],
    ) -> Result<(), NumericsError> {
        check_same_len(buf.len(), [("gradient", grad.len()), ("out", out.len())])?;
        match self.rule {
            MomentumRule::Nesterov => widest(Step::<true> { mu: self.mu, buf, grad, out }),
            MomentumRule::HeavyBall => widest(Step::<false> { mu: self.mu, buf, grad, out }),
        }
        Ok(())
    }
}

/// The pass.
struct Step<'a, const NESTEROV: bool> {
    mu: f32,
    buf: &'a mut [f32],
    grad: &'a [f32],
    out: &'a mut [f32],
}

impl<const NESTEROV: bool> Pass for Step<'_, NESTEROV> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { mu, buf, grad, out } = self;
        for ((buf, &g), out) in buf.iter_mut().zip(grad).zip(out) {
            *buf = mu * *buf + g;
            *out = if NESTEROV { g + mu * *buf } else { *buf };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two roundings of 6e-8 a step on values below 8, over five steps.
    const ROUNDING: f64 = 1e-5;

    #[test]
    fn five_steps_follow_the_recurrence() {
        for rule in [MomentumRule::Nesterov, MomentumRule::HeavyBall] {
            let momentum = Momentum { mu: 0.95, rule };
            let (mut buf, mut out) = ([0.0f32; 3], [0.0f32; 3]);
            let mut exact = [0.0f64; 3];
            for step in 0..5 {
                let grad = [1.5, -0.25, 0.1].map(|g: f32| g * (step as f32 - 1.5));
                momentum.step(&mut buf, &grad, &mut out).unwrap();
                for i in 0..3 {
                    let g = f64::from(grad[i]);
                    exact[i] = 0.95 * exact[i] + g;
                    let ahead = match rule {
                        MomentumRule::Nesterov => g + 0.95 * exact[i],
                        MomentumRule::HeavyBall => exact[i],
                    };
                    assert!((f64::from(buf[i]) - exact[i]).abs() < ROUNDING);
                    assert!((f64::from(out[i]) - ahead).abs() < ROUNDING);
                }
            }
        }
    }

    #[test]
    fn the_first_buffer_is_the_gradient_and_a_zero_gradient_adds_nothing() {
        let momentum = Momentum::default();
        let (mut buf, mut out) = ([0.0f32; 2], [0.0f32; 2]);
        momentum.step(&mut buf, &[0.3, -7.0], &mut out).unwrap();
        assert_eq!(buf, [0.3, -7.0]);
        momentum.step(&mut buf, &[0.0, 0.0], &mut out).unwrap();
        assert_eq!(buf, [0.95 * 0.3, 0.95 * -7.0]);
        assert_eq!(out, buf.map(|b| 0.95 * b));
    }

    #[test]
    fn the_wide_version_gives_the_bits_of_the_plain_one() {
        let grad: Vec<f32> = (0..1003).map(|i| (i as f32 * 0.3).sin()).collect();
        let run = |wide: bool| {
            let (mut buf, mut out) = (grad.clone(), grad.clone());
            let step = Step::<true> { mu: 0.95, buf: &mut buf, grad: &grad, out: &mut out };
            if wide {
                widest(step)
            } else {
                step.run()
            }
            [buf, out].concat().into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        assert_eq!(run(true), run(false));
    }

    #[test]
    fn a_slice_of_another_length_is_refused_before_anything_is_written() {
        let mut buf = [1.0; 2];
        let error = Momentum::default().step(&mut buf, &[1.0; 3], &mut [0.0; 2]).unwrap_err();
        assert_eq!(error.to_string(), "gradient holds 3 elements where the shape asks for 2");
        assert_eq!(buf, [1.0; 2]);
    }
}
