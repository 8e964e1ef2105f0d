//! The optimizer of a dedicated model: Muon on the matrices this rank owns, AdamW on the rest.

use crate::binding::check_handle;
use crate::clip::Clip;
use crate::config::{MuonConfig, NonFinite};
use crate::control::digest;
use crate::dedicated::Dedicated;
use crate::error::{Error, Result};
use crate::groups::{Groups, Settings};
use crate::held::HeldGradients;
use crate::ops::Place;
use crate::orthogonalize::Orthogonalizer;
use crate::parameter::Parameter;
use crate::rates::{Rates, StepRates};
use crate::report::{MatrixUpdate, StepReport};
use crate::route::Route;
use crate::runtime::Runtime;
use crate::step::agree;
use crate::values::publish;
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Device;
use dmuon_core::newton_schulz::{Band, NumericsError};
use dmuon_core::update::{AdamW, AdamWState, ApplyUpdate, Momentum, RmsPromise, RmsVerdict, rms};
use dmuon_core::{Buffer, EventKind, OpKind};
use std::sync::Arc;
use std::time::Instant;

/// Muon for a dedicated model; made by [`MuonConfig::init`].
///
/// A step has three phases, in this order and nowhere else:
///
/// 1. **agree**: averaged gradients are taken from Burn's container and checked; all ranks learn
///    whether any is not finite, and the global norm;
/// 2. **update**: for every matrix this rank owns, in forward order: momentum → Newton–Schulz once →
///    decay → update, into a spare buffer; AdamW for every other parameter, alike on all ranks;
/// 3. **publish**, pack by pack: the spare buffer becomes the weights and is on its way to the other
///    replicas before the next pack is updated. Nothing is written into memory that peers may still
///    read.
#[derive(Debug)]
pub struct Muon {
    config: MuonConfig,
    groups: Groups,
    runtime: Arc<Runtime>,
    orthogonalizer: Orthogonalizer,
    band: Band,
    /// By parameter.
    states: Vec<Option<State>>,
    scratch: Scratch,
    /// Digest of what must be alike on every rank.
    settings: u64,
    report: StepReport,
    traffic: [u64; 5],
}

/// Memory that every update uses again.
#[derive(Debug, Default)]
struct Scratch {
    clipped: Vec<f32>,
    input: Vec<f32>,
    direction: Vec<f32>,
}

/// What the optimizer remembers of one parameter.
#[derive(Debug)]
enum State {
    Muon { momentum: Vec<f32> },
    AdamW { first: Vec<f32>, second: Vec<f32>, step: u64 },
}

impl Muon {
    pub(crate) fn new(config: MuonConfig, dedicated: &Dedicated) -> Result<Self> {
        let runtime = dedicated.runtime.clone();
        if !runtime.parameters().iter().any(|parameter| parameter.route == Route::Muon) {
            return Err(Error::NothingToTrain);
        }
        let ns = config.newton_schulz();
        // The band's upper end bounds the singular values of every update, whatever its rank.
        let band = ns.coefficients.band(ns.ns_steps, config.smallest_sigma)?;
        let parallelism = config.parallelism(runtime.world());
        let orthogonalizer = Orthogonalizer::new(ns, config.arithmetic, parallelism)?;
        let states = runtime.parameters().iter().map(|_| None).collect();
        Ok(Self {
            orthogonalizer,
            band,
            states,
            scratch: Scratch::default(),
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
                let runtime = self.runtime.clone();
                let update = |unit, pack| self.update((unit, pack), &rates, &gradients, &clip);
                publish(&runtime, update, model)?
            }
        };
        self.report.step_seconds = started.elapsed().as_secs_f64();
        Ok(model)
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

    /// The new weights of one pack; `None` if it was never published, which `apply` rules out.
    fn update(
        &mut self,
        (unit, pack): (usize, usize),
        rates: &[f64],
        gradients: &HeldGradients,
        clip: &Clip,
    ) -> Result<Option<Buffer>> {
        let runtime = self.runtime.clone();
        let Some(published) = runtime.published(unit, pack) else { return Ok(None) };
        runtime.recorder().mark(EventKind::OwnerStep, runtime.unit_name(unit));
        let mut buffer = runtime.spare(unit, pack);
        for &index in runtime.in_pack(unit, pack) {
            let held = runtime.held_place(index, published.clone());
            let Some(Place { storage, slot }) = held else { continue };
            let weight = &mut buffer.as_f32_mut()[slot.range()];
            weight.copy_from_slice(storage.slot(&slot));
            let Some(gradient) = gradients.get(index) else { continue };
            let mut clipped = std::mem::take(&mut self.scratch.clipped);
            let norm = self.groups.settings[index].norm;
            let gradient = clip.apply(norm, gradient, &mut clipped);
            let parameter = runtime.parameter(index);
            match parameter.route {
                Route::Frozen => {}
                Route::AdamWOwned | Route::AdamWSharded | Route::Replicated => {
                    self.adamw(index, rates[index], weight, gradient)?
                }
                Route::Muon => {
                    let device = gradients.device();
                    self.muon(index, parameter, rates[index], weight, gradient, device)?;
                }
            }
            self.scratch.clipped = clipped;
        }
        Ok(Some(buffer))
    }

    fn muon(
        &mut self,
        index: usize,
        parameter: &Parameter,
        lr: f64,
        weight: &mut [f32],
        gradient: &[f32],
        device: &Device,
    ) -> Result<()> {
        let Some(view) = parameter.matrix else { return Ok(()) };
        let state = self.states[index]
            .get_or_insert_with(|| State::Muon { momentum: vec![0.0; weight.len()] });
        let State::Muon { momentum } = state else { return Ok(()) };
        let Settings { momentum: mu, weight_decay, .. } = self.groups.settings[index];
        let Scratch { input, direction, .. } = &mut self.scratch;
        input.resize(weight.len(), 0.0);
        direction.resize(weight.len(), 0.0);
        let rule = Momentum { mu: mu as f32, rule: self.config.momentum_rule() };
        rule.step(momentum, gradient, input)?;
        let proceed = self.config.non_finite == NonFinite::Proceed;
        let before = self.orthogonalizer.num_runs();
        match self.orthogonalizer.run(device, view, input, direction) {
            Err(NumericsError::NonFiniteInput { .. }) if proceed => {
                direction.fill(f32::NAN);
                self.orthogonalizer.count(view);
            }
            outcome => outcome.map_err(|source| Error::Update {
                rank: self.runtime.rank(),
                parameter: parameter.name.to_string(),
                source,
            })?,
        }
        let calls = self.orthogonalizer.num_runs() - before;
        if calls != view.batch {
            return Err(Error::NotUpdated { parameter: parameter.name.to_string(), calls });
        }
        let scale = self.config.scale.factor(view.fans.fan_out, view.fans.fan_in);
        ApplyUpdate { lr, weight_decay, scale }.apply(weight, direction)?;
        let promise = RmsPromise::new(scale, self.band, view.rows, view.cols);
        let rms = scale * rms(direction);
        let verdict = promise.judge(rms);
        self.report.updates.push(MatrixUpdate {
            name: parameter.name.to_string(),
            rms,
            upper: promise.upper,
            full_rank_lower: promise.full_rank_lower,
            low_rank: verdict == RmsVerdict::LowRank,
            too_large: verdict == RmsVerdict::TooLarge,
        });
        self.report.ns_calls += calls;
        self.report.muon_updated += 1;
        Ok(())
    }

    fn adamw(&mut self, index: usize, lr: f64, weight: &mut [f32], gradient: &[f32]) -> Result<()> {
        let state = self.states[index].get_or_insert_with(|| State::AdamW {
            first: vec![0.0; weight.len()],
            second: vec![0.0; weight.len()],
            step: 0,
        });
        let State::AdamW { first, second, step } = state else { return Ok(()) };
        *step += 1;
        let adamw = AdamW { lr, ..self.groups.settings[index].adamw };
        adamw.step(weight, gradient, AdamWState { first, second, step: *step })?;
        self.report.adamw_updated += 1;
        Ok(())
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
