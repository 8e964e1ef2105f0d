//! One training step: micro-batches, rates, optimizer; and what all ranks learn of it.

use burn::lr_scheduler::LrSchedulerConfig::{Cosine, Linear};
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::lr_scheduler::sequential::SequentialLrSchedulerConfig;
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::Tensor;
use dmuon::LossScaler;
use dmuon::prelude::*;

use crate::cli::{Args, Compute, Optimizer};
use crate::common::model::Gpt;
use crate::error::Error;
use crate::report::Work;
use crate::traffic;

/// Share of the peak learning rates that is left at the end.
const LAST_LR_SHARE: f64 = 0.05;

/// What turns micro-batches into the next model.
pub(crate) struct Stepper<'a> {
    args: &'a Args,
    dedicated: Dedicated,
    optimizer: AnyOptimizer,
    /// Gives shares of the peak learning rates.
    schedule: ModuleLrScheduler,
    scaler: Option<LossScaler>,
    steps: usize,
    bytes_moved: u64,
}

enum AnyOptimizer {
    /// Muon for the matrices of the blocks, AdamW for the rest.
    Muon(Box<Muon>),
    /// Burn's AdamW for everything, on the same owners and over the same traffic.
    AdamW(Box<ModuleOptimizer>),
}

impl<'a> Stepper<'a> {
    pub(crate) fn new(
        args: &'a Args,
        optimizer: Optimizer,
        dedicated: &Dedicated,
    ) -> Result<Self, Error> {
        let scaler = match args.compute {
            Compute::F16 => Some(LossScaler::new(dedicated)?),
            Compute::F32 | Compute::Bf16 => None,
        };
        let optimizer = match optimizer {
            Optimizer::Muon => AnyOptimizer::Muon(Box::new(muon(args).init(dedicated)?)),
            Optimizer::Adamw => {
                let adamw = AdamWConfig::new().with_beta_2(0.95).with_epsilon(1e-8);
                AnyOptimizer::AdamW(Box::new(adamw.with_weight_decay(0.1).init()))
            }
        };
        Ok(Self {
            args,
            optimizer,
            schedule: schedule(args.warmup(), args.steps).map_err(Error::Schedule)?,
            scaler,
            steps: 0,
            bytes_moved: traffic::moved(dedicated),
            dedicated: dedicated.clone(),
        })
    }

    /// Trains on the micro-batches whose losses `loss` gives. Returns the next model and what the
    /// ranks did together.
    pub(crate) fn step(
        &mut self,
        model: Gpt,
        loss: impl Fn(&Gpt, usize) -> Tensor<1>,
    ) -> Result<(Gpt, Work), Error> {
        self.steps += 1;
        let mut own_loss = 0.0;
        let mut backward = |micro| {
            // The mean over micro-batches: gradients of all of them add up.
            let loss = loss(&model, micro).div_scalar(self.args.accumulate as f64);
            own_loss += loss.clone().into_scalar::<f64>();
            let loss = self.scaler.as_ref().map_or(loss.clone(), |scaler| scaler.scaled(loss));
            GradientsParams::from_grads(loss.backward(), &model)
        };
        let last = self.args.accumulate - 1;
        self.dedicated.no_sync(|| (0..last).for_each(|micro| drop(backward(micro))));
        let gradients = backward(last);
        let lr_share = self.schedule.step().base();
        let (model, ns_calls, skipped) = self.update(lr_share, model, gradients)?;
        let work = self.together(own_loss, ns_calls, skipped)?;
        Ok((model, Work { lr_share, ..work }))
    }

    /// Returns the next model, the Newton–Schulz calls of this rank, and whether the step was
    /// skipped, which ranks agree on.
    fn update(
        &mut self,
        lr_share: f64,
        model: Gpt,
        gradients: GradientsParams,
    ) -> Result<(Gpt, usize, bool), Error> {
        let rates =
            Rates { muon: self.args.muon_lr * lr_share, adamw: self.args.adamw_lr * lr_share };
        let muon = match &mut self.optimizer {
            AnyOptimizer::Muon(muon) => muon,
            AnyOptimizer::AdamW(adamw) => {
                let model = self.dedicated.step_with(adamw, rates.adamw, model, gradients)?;
                return Ok((model, 0, false));
            }
        };
        let model = muon.step(rates, model, gradients)?;
        let report = muon.report();
        if !report.missing.is_empty() {
            let parameters = report.missing.clone();
            return Err(Error::NotUpdated { step: self.steps, parameters });
        }
        if let Some(scaler) = &mut self.scaler {
            scaler.update(report)?;
        }
        Ok((model, report.ns_calls, report.skipped.is_some()))
    }

    /// Sums over ranks, and makes sure that Muon ran.
    fn together(&mut self, loss: f64, ns_calls: usize, skipped: bool) -> Result<Work, Error> {
        let moved = traffic::moved(&self.dedicated);
        let own = [loss, ns_calls as f64, (moved - self.bytes_moved) as f64];
        self.bytes_moved = moved;
        let sums = self.dedicated.sum(&own)?;
        let ranks = self.dedicated.mesh().shape().world_size();
        let (step, loss, found) = (self.steps, sums[0] / ranks as f64, sums[1] as u64);
        if !loss.is_finite() {
            return Err(Error::Diverged { step, loss });
        }
        let planned = match self.optimizer {
            AnyOptimizer::Muon(_) if !skipped => self.dedicated.routes().count(Route::Muon).0,
            _ => 0,
        };
        if found != planned as u64 {
            return Err(Error::Orthogonalized { step, found, planned });
        }
        Ok(Work { loss, ns_calls: found, bytes_moved: sums[2] as u64, skipped, lr_share: 0.0 })
    }
}

fn muon(args: &Args) -> MuonConfig {
    let non_finite = match args.compute {
        // The loss scaler counts on it.
        Compute::F16 => NonFinite::Skip,
        Compute::F32 | Compute::Bf16 => NonFinite::Error,
    };
    MuonConfig::new().with_max_norm(args.clip).with_non_finite(non_finite)
}

/// Rises in a line, then falls along half a cosine.
fn schedule(warmup: usize, steps: usize) -> Result<ModuleLrScheduler, String> {
    let cosine = CosineAnnealingLrSchedulerConfig::new(1.0, (steps - warmup).max(1))
        .with_min_lr(LAST_LR_SHARE);
    if warmup == 0 {
        return cosine.init();
    }
    let linear = LinearLrSchedulerConfig::new((warmup as f64 + 1.0).recip(), 1.0, warmup);
    SequentialLrSchedulerConfig::new(vec![Linear(linear), Cosine(cosine)], vec![warmup]).init()
}
