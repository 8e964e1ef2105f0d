//! What decoupled decay makes of a weight whose updates have a known size: a ceiling for updates
//! that all agree, and an equilibrium for updates driven by nothing but noise.
//!
//! One step is `W ← q·W − η·U` with `q = 1 − ηλ`, learning rate η, decay λ and `rms(U) = u`, which
//! for Muon is 0.2 whatever the shape and the gradient.
//!
//! * **Ceiling.** By the triangle inequality `rms(W') ≤ q·rms(W) + η·u`, and from `rms(W) = u/λ` on
//!   the right side is no larger than `rms(W)`: a weight that starts below `u/λ` stays below,
//!   whatever the gradients. Updates that all point the same way bring it there.
//! * **Equilibrium.** Where updates are uncorrelated, squares add: `w² = q²·w² + η²·u²`, so
//!   `w = u·√(η² / (1 − q²))`, about `u·√(η/2λ)`. Momentum correlates them even where gradients are
//!   noise: with `E⟨Uₜ, Uₜ₋ₖ⟩ = ρₖ·u²` the square gains the factor `1 + 2·Σ qᵏ·ρₖ`.
//! * **Without decay**, `q = 1`, both cases grow without bound: as `η·u·t`, and as `η·u·√t` times
//!   the root of that factor.

/// RMS of a Muon update, before the learning rate: Moonlight's 0.2.
pub(crate) const UPDATE_RMS: f64 = 0.2;

/// Momentum of the default `MuonConfig`, which is Nesterov's: `buf = μ·buf + g; d = g + μ·buf`.
const MOMENTUM: f64 = 0.95;

/// The RMS that no weight exceeds; infinite without decay.
pub(crate) fn ceiling(decay: f64) -> f64 {
    UPDATE_RMS / decay
}

/// The RMS at which weights settle when gradients are noise; infinite without decay.
///
/// `d = (1 + μ)·gₜ + Σ μʲ⁺¹·gₜ₋ⱼ` over `j ≥ 1`, so that `var = (1 + μ)² + μ⁴ / (1 − μ²)`,
/// `ρ₁ = μ²·(1 + μ + μ³ / (1 − μ²)) / var` and `ρₖ = ρ₁·μᵏ⁻¹`.
pub(crate) fn equilibrium(lr: f64, decay: f64) -> f64 {
    let (mu, keep) = (MOMENTUM, 1.0 - lr * decay);
    let tail = 1.0 - mu * mu;
    let variance = (1.0 + mu).powi(2) + mu.powi(4) / tail;
    let first = mu.powi(2) * (1.0 + mu + mu.powi(3) / tail) / variance;
    let persistence = 1.0 + 2.0 * first * keep / (1.0 - keep * mu);
    UPDATE_RMS * lr * (persistence / (1.0 - keep * keep)).sqrt()
}

/// The RMS after each step from `start`, when gradients are noise and `rates` those of the steps:
/// the second moments of weight and momentum, carried on exactly.
pub(crate) fn noise(rates: impl Iterator<Item = f64>, decay: f64, start: f64) -> Vec<f64> {
    let mu = MOMENTUM;
    // E[w²], E[w·buf] and E[buf²] per element, with gradients of variance 1.
    let (mut square, mut cross, mut buffer) = (start * start, 0.0, 0.0);
    let step = |lr: f64| {
        let keep = 1.0 - lr * decay;
        let variance = (1.0 + mu).powi(2) + mu.powi(4) * buffer;
        let scale = lr * UPDATE_RMS / variance.sqrt();
        square =
            keep * keep * square - 2.0 * keep * scale * mu * mu * cross + scale * scale * variance;
        cross = keep * mu * cross - scale * (mu.powi(3) * buffer + 1.0 + mu);
        buffer = mu * mu * buffer + 1.0;
        square.sqrt()
    };
    rates.map(step).collect()
}
