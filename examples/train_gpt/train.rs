//! The training loop of one rank, and what it brings home.

use std::f64::consts::PI;
use std::path::Path;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::{AdamWConfig, AdjustLrFn, GradientsParams, ModuleOptimizer, MuonConfig};
use burn::tensor::{Device, Tensor};

use crate::cli::{Args, Optimizer};
use crate::data::{Batch, Corpus, Sequences};
use crate::error::Error;
use crate::model::Gpt;
use crate::report::{Reporter, StepRecord, Work};

/// Share of the steps in which the learning rates rise.
const WARM_UP: f64 = 0.05;

/// Share of the peak learning rates that is left at the end.
const LAST_LR_SHARE: f64 = 0.05;

/// What rank 0 brings home.
#[derive(Debug)]
pub(crate) struct Trained {
    /// With all weights in full.
    pub(crate) model: Gpt,
    pub(crate) steps: Vec<StepRecord>,
    /// Of each rank.
    pub(crate) peak_weight_bytes: Vec<u64>,
    /// What the plan said that the run would move.
    pub(crate) bytes_predicted: u64,
}

/// This rank, among how many.
#[derive(Debug, Clone, Copy)]
struct World {
    rank: usize,
    size: usize,
}

/// Trains from a fresh model; the steps go to `folder`.
pub(crate) fn train(
    args: &Args,
    optimizer: Optimizer,
    corpus: &Corpus,
    folder: &Path,
) -> Result<Trained, Error> {
    let device = Device::flex().autodiff();
    // Burn draws from one generator for the whole process: the weights are drawn here, once.
    device.seed(args.seed);
    let model = args.model().init(&device).materialize();
    let reporter = Reporter::start(folder, optimizer, args.steps)?;
    // One rank reads the sequences of all, until the collectives are in.
    let world = World { rank: 0, size: 1 };
    train_rank(world, model, optimizer, args, corpus, reporter)
}

fn train_rank(
    world: World,
    mut model: Gpt,
    optimizer: Optimizer,
    args: &Args,
    corpus: &Corpus,
    mut reporter: Reporter,
) -> Result<Trained, Error> {
    let device = Device::flex().autodiff();
    let share = Sequences::of_rank(
        world.rank,
        args.ranks * args.batch / world.size,
        args.seq_len,
    );
    let tokens = args.ranks * args.batch * args.seq_len;
    let mut optimizers = Optimizers::new(optimizer, &model);

    for step in 0..args.steps {
        let batch = Batch::new(&corpus.batch(args.seed, step, share), &device);
        let loss = model.loss(batch.inputs, batch.targets);
        let loss_value: f64 = loss.clone().into_scalar();
        if !loss_value.is_finite() {
            return Err(Error::Diverged {
                step: step + 1,
                loss: loss_value,
            });
        }
        let lr_share = lr_share(step, args.steps);
        let work;
        (model, work) = optimizers.step(args, lr_share, model, &loss);
        reporter.step(loss_value, lr_share, tokens, work)?;
    }
    let peak_weight_bytes = vec![4 * Module::num_params(&model) as u64];
    Ok(Trained {
        model,
        steps: reporter.finish(),
        peak_weight_bytes,
        bytes_predicted: 0,
    })
}

/// Rises in a line, then falls along half a cosine.
fn lr_share(step: usize, steps: usize) -> f64 {
    let warm_up = (WARM_UP * steps as f64).ceil();
    let step = step as f64;
    if step < warm_up {
        return (step + 1.0) / (warm_up + 1.0);
    }
    let progress = (step - warm_up) / (steps as f64 - warm_up).max(1.0);
    LAST_LR_SHARE + (1.0 - LAST_LR_SHARE) * 0.5 * (1.0 + (PI * progress).cos())
}

/// Muon for the matrices of the blocks, if it is asked for, and AdamW for the rest.
struct Optimizers {
    matrices: Vec<ParamId>,
    muon: ModuleOptimizer,
    rest: Vec<ParamId>,
    adamw: ModuleOptimizer,
}

impl Optimizers {
    fn new(optimizer: Optimizer, model: &Gpt) -> Self {
        let mut split = Split {
            optimizer,
            path: vec![],
            matrices: vec![],
            rest: vec![],
        };
        model.visit(&mut split);
        Self {
            matrices: split.matrices,
            muon: MuonConfig::new()
                .with_adjust_lr_fn(AdjustLrFn::MatchRmsAdamW)
                .init(),
            rest: split.rest,
            adamw: AdamWConfig::new()
                .with_beta_2(0.95)
                .with_epsilon(1e-8)
                .init(),
        }
    }

    fn step(&mut self, args: &Args, lr_share: f64, model: Gpt, loss: &Tensor<1>) -> (Gpt, Work) {
        let mut grads = loss.backward();
        let matrices = GradientsParams::from_params(&mut grads, &model, &self.matrices);
        let rest = GradientsParams::from_params(&mut grads, &model, &self.rest);
        let model = self.muon.step(args.muon_lr * lr_share, model, matrices);
        let model = self.adamw.step(args.adamw_lr * lr_share, model, rest);
        (
            model,
            Work {
                ns_calls: self.matrices.len() as u64,
                bytes_moved: 0,
            },
        )
    }
}

/// Tells the matrices inside the blocks from all other parameters.
struct Split {
    optimizer: Optimizer,
    path: Vec<String>,
    matrices: Vec<ParamId>,
    rest: Vec<ParamId>,
}

impl ModuleVisitor for Split {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let in_block = self.path.first().is_some_and(|name| name == "layers");
        if D == 2 && in_block && self.optimizer == Optimizer::Muon {
            self.matrices.push(param.id);
        } else {
            self.rest.push(param.id);
        }
    }
}
