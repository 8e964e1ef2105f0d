//! The optimizer's settings, in Burn's dialect.

use crate::control::digest;
use crate::dedicated::Dedicated;
use crate::error::{Error, Result};
use crate::groups::OptimizerGroup;
use crate::muon::Muon;
use crate::orthogonalize::Arithmetic;
use dmuon_core::World;
use dmuon_core::newton_schulz::{
    Coefficients, Form, NewtonSchulzConfig, Parallelism, Precision, Restart,
};
use dmuon_core::update::{AdamW, MomentumRule, UpdateScale};
use std::num::NonZeroUsize;
use std::thread;

/// What to do when an averaged gradient is infinite or not a number; alike on every rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NonFinite {
    /// Return an error naming the parameter; no rank steps.
    #[default]
    Error,
    /// Skip the step on every rank: weights, momentum and moments stay as they are.
    Skip,
    /// Step all the same: the parameter becomes NaN, as with any other optimizer.
    Proceed,
}

/// Configuration of [`Muon`].
///
/// ```
/// use dmuon_burn::{MuonConfig, UpdateScale};
/// use dmuon_core::newton_schulz::Coefficients;
///
/// let config = MuonConfig::new()
///     .with_ns_steps(5)
///     .with_coefficients(Coefficients::PolarExpress)
///     .with_scale(UpdateScale::MatchRmsAdamW)
///     .with_momentum(0.95)
///     .with_weight_decay(0.1);
/// ```
#[derive(Clone, Debug)]
pub struct MuonConfig {
    pub(crate) momentum: f64,
    pub(crate) nesterov: bool,
    pub(crate) weight_decay: f64,
    pub(crate) scale: UpdateScale,
    pub(crate) newton_schulz: NewtonSchulzConfig,
    pub(crate) adamw: AdamW,
    pub(crate) non_finite: NonFinite,
    pub(crate) arithmetic: Arithmetic,
    pub(crate) threads: Option<NonZeroUsize>,
    pub(crate) smallest_sigma: f64,
    pub(crate) groups: Vec<OptimizerGroup>,
    /// Patterns of parameters without decay.
    pub(crate) no_decay: Vec<String>,
    pub(crate) max_norm: Option<f64>,
}

impl Default for MuonConfig {
    fn default() -> Self {
        Self::new()
    }
}

impl MuonConfig {
    /// Momentum 0.95 with Nesterov, decay 0.1, five PolarExpress steps, updates scaled to AdamW's
    /// RMS, so that one learning rate serves both; AdamW with betas (0.9, 0.95), eps 1e-8 and no
    /// decay for the rest, which holds norms and biases.
    pub fn new() -> Self {
        Self {
            momentum: 0.95,
            nesterov: true,
            weight_decay: 0.1,
            scale: UpdateScale::default(),
            newton_schulz: NewtonSchulzConfig::default(),
            adamw: AdamW { weight_decay: 0.0, ..AdamW::default() },
            non_finite: NonFinite::default(),
            arithmetic: Arithmetic::default(),
            threads: None,
            // Singular values below this are noise in f32: an update is called full rank without.
            smallest_sigma: 2e-3,
            groups: Vec::new(),
            no_decay: Vec::new(),
            max_norm: None,
        }
    }

    /// Sets the momentum factor μ, in `[0, 1)`.
    #[must_use]
    pub fn with_momentum(mut self, momentum: f64) -> Self {
        self.momentum = momentum;
        self
    }

    /// Sets whether Newton–Schulz is given `g + μ·buf` rather than `buf`.
    #[must_use]
    pub fn with_nesterov(mut self, nesterov: bool) -> Self {
        self.nesterov = nesterov;
        self
    }

    /// Sets Muon's decoupled weight decay.
    #[must_use]
    pub fn with_weight_decay(mut self, weight_decay: f64) -> Self {
        self.weight_decay = weight_decay;
        self
    }

    /// Sets how large an orthogonalized update is made.
    #[must_use]
    pub fn with_scale(mut self, scale: UpdateScale) -> Self {
        self.scale = scale;
        self
    }

    /// Sets the coefficient set.
    #[must_use]
    pub fn with_coefficients(mut self, coefficients: Coefficients) -> Self {
        self.newton_schulz = self.newton_schulz.with_coefficients(coefficients);
        self
    }

    /// Sets the number of Newton–Schulz steps; [`init`](Self::init) refuses a number that the
    /// coefficient set does not have.
    #[must_use]
    pub fn with_ns_steps(mut self, ns_steps: usize) -> Self {
        self.newton_schulz = self.newton_schulz.with_ns_steps(ns_steps);
        self
    }

    /// Sets the form of the iteration.
    #[must_use]
    pub fn with_form(mut self, form: Form) -> Self {
        self.newton_schulz = self.newton_schulz.with_form(form);
        self
    }

    /// Sets what Newton–Schulz multiplies in, on CPUs and devices that can: bf16 products are faster and give
    /// directions to about one percent.
    #[must_use]
    pub fn with_precision(mut self, precision: Precision) -> Self {
        self.newton_schulz = self.newton_schulz.with_precision(precision);
        self
    }

    /// Sets where the Gram form restarts.
    #[must_use]
    pub fn with_restart(mut self, restart: Restart) -> Self {
        self.newton_schulz = self.newton_schulz.with_restart(restart);
        self
    }

    /// Accepted for parity with other implementations: normalization is scale-free, so it never
    /// changes an update.
    #[must_use]
    pub fn with_eps(mut self, eps: f64) -> Self {
        self.newton_schulz = self.newton_schulz.with_eps(eps);
        self
    }

    /// Sets AdamW for what Muon does not take; its `lr` is ignored in favour of the step's.
    #[must_use]
    pub fn with_adamw(mut self, adamw: AdamW) -> Self {
        self.adamw = adamw;
        self
    }

    /// Gives some parameters settings of their own. No parameter may be in two groups.
    #[must_use]
    pub fn with_group(mut self, group: OptimizerGroup) -> Self {
        self.groups.push(group);
        self
    }

    /// Exempts parameters whose full names match one of `patterns` from weight decay, whichever
    /// optimizer takes them and whatever their group says.
    #[must_use]
    pub fn without_decay<P: Into<String>>(mut self, patterns: impl IntoIterator<Item = P>) -> Self {
        self.no_decay.extend(patterns.into_iter().map(Into::into));
        self
    }

    /// Clips averaged gradients to this norm before anything else is made of them: taken over all
    /// parameters together, owned, sharded and replicated, each element counted once. `None`, the
    /// default, only measures it ([`StepReport::gradient_norm`](crate::StepReport::gradient_norm)).
    #[must_use]
    pub fn with_max_norm(mut self, max_norm: impl Into<Option<f64>>) -> Self {
        self.max_norm = max_norm.into();
        self
    }

    /// Sets what happens when a gradient is not finite.
    #[must_use]
    pub fn with_non_finite(mut self, policy: NonFinite) -> Self {
        self.non_finite = policy;
        self
    }

    /// Sets where Newton–Schulz runs.
    #[must_use]
    pub fn with_arithmetic(mut self, arithmetic: Arithmetic) -> Self {
        self.arithmetic = arithmetic;
        self
    }

    /// Sets how many threads a rank's host Newton–Schulz may use; by default the cores are divided
    /// among the ranks. Results do not depend on it.
    #[must_use]
    pub fn with_threads(mut self, threads: NonZeroUsize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// The optimizer for a dedicated model.
    ///
    /// # Errors
    /// A setting is out of range, or the coefficient set has no schedule of that length.
    pub fn init(&self, dedicated: &Dedicated) -> Result<Muon> {
        let unit = |value: f64| (0.0..1.0).contains(&value);
        let positive = |value: f64| value >= 0.0;
        in_range("momentum", self.momentum, "must be in [0, 1)", unit)?;
        in_range("weight decay", self.weight_decay, "must be 0 or more", positive)?;
        in_range("AdamW's beta 1", self.adamw.beta_1, "must be in [0, 1)", unit)?;
        in_range("AdamW's beta 2", self.adamw.beta_2, "must be in [0, 1)", unit)?;
        in_range("AdamW's eps", self.adamw.eps, "must be 0 or more", positive)?;
        in_range("AdamW's decay", self.adamw.weight_decay, "must be 0 or more", positive)?;
        let above_zero = |norm: f64| norm > 0.0;
        in_range("the max norm", self.max_norm.unwrap_or(1.0), "must be above 0", above_zero)?;
        Muon::new(self.clone(), dedicated)
    }

    /// Digest of everything that changes results.
    pub(crate) fn digest(&self) -> u64 {
        digest(format!("{:?}", Self { threads: None, ..self.clone() }).as_bytes())
    }

    pub(crate) fn newton_schulz(&self) -> NewtonSchulzConfig {
        self.newton_schulz.clone()
    }

    pub(crate) fn momentum_rule(&self) -> MomentumRule {
        match self.nesterov {
            true => MomentumRule::Nesterov,
            false => MomentumRule::HeavyBall,
        }
    }

    pub(crate) fn parallelism(&self, world: &World) -> Parallelism {
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let threads = self.threads.or_else(|| NonZeroUsize::new(cores / world.size()));
        threads.map_or(Parallelism::Serial, Parallelism::Threads)
    }
}

pub(crate) fn in_range(
    what: &'static str,
    value: f64,
    expected: &'static str,
    allowed: impl Fn(f64) -> bool,
) -> Result<()> {
    match (value as f32).is_finite() && allowed(value) {
        true => Ok(()),
        false => Err(Error::OutOfRange { what, value, expected }),
    }
}
