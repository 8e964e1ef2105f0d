//! The momentum buffer and the Newton–Schulz input it gives; it never averages with `1 − μ`.

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
        Self {
            mu: 0.95,
            rule: MomentumRule::Nesterov,
        }
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
        let mu = self.mu;
        let ahead = match self.rule {
            MomentumRule::Nesterov => |g: f32, mu: f32, buf: f32| g + mu * buf,
            MomentumRule::HeavyBall => |_: f32, _: f32, buf: f32| buf,
        };
        for ((buf, &g), out) in buf.iter_mut().zip(grad).zip(out) {
            *buf = mu * *buf + g;
            *out = ahead(g, mu, *buf);
        }
        Ok(())
    }
}
