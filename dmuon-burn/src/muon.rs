//! The optimizer of a dedicated model: Muon on the matrices this rank owns, AdamW on the rest.

use crate::binding::check_handle;
use crate::clip::Clip;
use crate::config::{MuonConfig, NonFinite};
use crate::control::digest;
use crate::dedicated::Dedicated;
use crate::error::{Error, Result};
use crate::groups::Groups;
use crate::held::HeldGradients;
use crate::rates::{Rates, StepRates};
use crate::report::StepReport;
use crate::route::Route;
use crate::runtime::Runtime;
use crate::step::agree;
use crate::update::{Terms, Updater};
use crate::values::publish;
use burn::module::Module;
use burn::optim::GradientsParams;
use dmuon_core::{FloatType, OpKind};
use std::sync::Arc;
use std::time::Instant;

/// Muon for a dedicated model; made by [`MuonConfig::init`].
///
/// A step has three phases, in this order and nowhere else:
///
/// 1. **agree**: averaged gradients are taken from Burn's container and checked; all ranks learn
///    whether any is not finite, and the global norm;
/// 2. **update**: for every matrix this rank owns, in forward order: momentum → Newton–Schulz once →
///    decay → update, into a spare buffer, matrices of one shape together; AdamW for every other
///    parameter that this rank holds, or its piece of it;
/// 3. **publish**, pack by pack: the spare buffer becomes the weights and is on its way to the other
///    replicas before the next pack is updated. Nothing is written into memory that peers may still
///    read.
#[derive(Debug)]
pub struct Muon {
    config: MuonConfig,
    groups: Groups,
    runtime: Arc<Runtime>,
    updater: Updater,
    /// Digest of what must be alike on every rank.
    settings: u64,
    report: StepReport,
    traffic: [u64; 5],
}

impl Muon {
    pub(crate) fn new(config: MuonConfig, dedicated: &Dedicated) -> Result<Self> {
        let runtime = dedicated.runtime.clone();
        // A model that was never dedicated has no matrices for Muon, and is trained with AdamW.
        let steps = |route: Route| match runtime.setup().request.matrices {
            Some(_) => route == Route::Muon,
            None => route != Route::Frozen,
        };
        if !runtime.parameters().iter().any(|parameter| steps(parameter.route)) {
            return Err(Error::NothingToTrain);
        }
        Ok(Self {
            updater: Updater::new(&config, &runtime)?,
            settings: config.digest(),
            groups: Groups::resolve(&config, runtime.parameters())?,
            report: StepReport::default(),
            traffic: traffic(&runtime),
            config,
            runtime,
        })
    }

    /// Updates and publishes the model. `rates`: one learning rate for everything, [`Rates`], or what
    /// one of Burn's schedulers returns; see [`StepRates`].
    ///
    /// # Collective
    /// Every rank, after a backward.
    ///
    /// # Errors
    /// A gradient is not finite and the policy is [`NonFinite::Error`] (then no rank has stepped);
    /// the model is not the dedicated one; a group has failed.
    pub fn step<M: Module>(
        &mut self,
        rates: impl Into<StepRates>,
        model: M,
        gradients: GradientsParams,
    ) -> Result<M> {
        let _span = tracing::trace_span!("step").entered();
        if self.report.step == 0 {
            self.warn_of_unscaled_halves();
        }
        let started = Instant::now();
        let rates = rates.into().checked()?;
        self.runtime.check_accumulated()?;
        check_handle(&self.runtime, &model)?;
        let gradients = HeldGradients::take(&self.runtime, &model, gradients)?;
        let Rates { muon, adamw } = rates.base();
        let rates = rates.of_parameters(self.runtime.parameters(), &self.groups);
        let mut findings = gradients.examine(&self.runtime, &self.groups);
        findings.terms.rates = [muon, adamw];
        findings.terms.scale = self.runtime.gradient_scale();
        let all_rates = bytemuck::cast_slice(&rates);
        findings.terms.settings = digest(&[&self.settings.to_le_bytes(), all_rates].concat());
        let agreement = agree(&self.runtime, &findings)?;
        let clip = Clip::new(&self.groups.max_norms, &agreement.sums_of_squares);
        self.report = StepReport {
            step: self.report.step + 1,
            gradient_norm: agreement.sums_of_squares.iter().sum::<f64>().sqrt(),
            clip_factor: clip.strongest(),
            missing: gradients.missing(&self.runtime),
            ..StepReport::default()
        };
        self.count_traffic();
        let model = match (agreement.non_finite, self.config.non_finite) {
            (Some((rank, index)), NonFinite::Error) => {
                self.runtime.skip()?;
                let parameter = self.runtime.name(index);
                return Err(Error::NonFiniteGradient { rank, parameter });
            }
            (Some((_, index)), NonFinite::Skip) => {
                self.report.skipped = Some(self.runtime.name(index));
                self.runtime.skip()?;
                model
            }
            _ => {
                let Self { runtime, groups, updater, report, .. } = self;
                let (gradients, clip, rates) = (&gradients, &clip, &rates[..]);
                let terms = Terms { runtime, groups, gradients, clip, rates };
                updater.begin_step();
                publish(runtime, |unit, pack| updater.pack(&terms, (unit, pack), report), model)?
            }
        };
        self.report.step_seconds = started.elapsed().as_secs_f64();
        Ok(model)
    }

    /// Bytes of optimizer state on this rank so far: momentum of the matrices it owns, moments of
    /// what it holds of everything else.
    pub fn state_bytes(&self) -> usize {
        self.updater.state_bytes()
    }

    fn warn_of_unscaled_halves(&self) {
        let is_half = self.runtime.weight_float() == FloatType::F16;
        if is_half && self.runtime.gradient_scale() == 1.0 && self.runtime.rank().0 == 0 {
            tracing::warn!(
                "weights are used in f16 without a loss scale: gradients below 6e-8 are lost; use \
                 `LossScaler`, or bf16"
            );
        }
    }

    /// Changes what a group's learning rate is multiplied by, from the next step on.
    ///
    /// # Collective
    /// Every rank, alike; the next step checks that.
    ///
    /// # Errors
    /// There is no such group, or the scale is negative or not finite.
    pub fn set_lr_scale(&mut self, group: &str, scale: f64) -> Result<()> {
        self.groups.set_lr_scale(group, scale)
    }

    /// What the last step did on this rank.
    pub fn report(&self) -> &StepReport {
        &self.report
    }

    /// The recorder's counters may have been reset since.
    fn count_traffic(&mut self) {
        let now = traffic(&self.runtime);
        let [broadcast, reduce, all_reduce, all_gather, reduce_scatter] =
            [0, 1, 2, 3, 4].map(|op| now[op].saturating_sub(self.traffic[op]));
        self.traffic = now;
        self.report.broadcast_bytes = broadcast;
        self.report.reduce_bytes = reduce;
        self.report.all_reduce_bytes = all_reduce;
        self.report.all_gather_bytes = all_gather;
        self.report.reduce_scatter_bytes = reduce_scatter;
        self.report.wait_seconds = self.runtime.take_waited().as_secs_f64();
    }
}

/// Payload this rank has moved so far: received by broadcasts and all-gathers, sent by the others.
fn traffic(runtime: &Runtime) -> [u64; 5] {
    use OpKind::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
    let counters = runtime.recorder().counters();
    [Broadcast, Reduce, AllReduce, AllGather, ReduceScatter].map(|op| counters.op(op).payload_bytes)
}
