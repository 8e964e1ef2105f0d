//! The training loop of one rank, and what rank 0 brings home.

use std::f64::consts::PI;
use std::path::Path;

use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::Tensor;
use dmuon::partition::{ElemBytes, Traffic};
use dmuon::prelude::*;
use dmuon::{Holding, MeshShape, OpKind, Route};

use crate::cli::{Args, Optimizer};
use crate::common::data::{Batch, Corpus, Sequences};
use crate::common::model::Gpt;
use crate::common::records;
use crate::error::Error;
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
    pub(crate) mesh: MeshShape,
    /// Of each rank.
    pub(crate) peak_weight_bytes: Vec<u64>,
    /// What the plan said that the run would move.
    pub(crate) bytes_predicted: u64,
}

/// Trains from a fresh model on all ranks; the records go to `folder`. Only the process of rank 0
/// brings something home.
pub(crate) fn train(
    args: &Args,
    optimizer: Optimizer,
    corpus: &Corpus,
    folder: &Path,
) -> Result<Option<Trained>, Error> {
    let device = args.device();
    // Burn draws from one generator for the whole process: the weights are drawn here, once in
    // every process, from one seed.
    device.seed(args.seed);
    let model = args.model().init(&device);
    dmuon::initialize(&model);
    let job = Job { args, optimizer, corpus, folder };
    let ranks = dmuon::launch(args.num_ranks(), |world| job.train_rank(world, model.clone()))?;
    Ok(ranks.into_iter().flatten().next())
}

/// What all ranks are told.
#[derive(Clone, Copy)]
struct Job<'a> {
    args: &'a Args,
    optimizer: Optimizer,
    corpus: &'a Corpus,
    folder: &'a Path,
}

impl Job<'_> {
    fn train_rank(self, world: World, model: Gpt) -> Result<Option<Trained>, Error> {
        let Self { args, optimizer, corpus, folder } = self;
        let device = args.device();
        let mesh = Mesh::with_shape(&world, args.mesh().map_err(dmuon::core::Error::from)?)?;
        let (mut model, dedicated) = Dedicate::new(&mesh)
            .mode(args.mode.into())
            .publish(args.publish())
            .prefetch(args.prefetch)
            .apply(model.fork(&device))?;
        let mut reporter = match world.rank() {
            Rank(0) => {
                self.tell_plan(&dedicated);
                records::write_json(&folder.join("routes.json"), dedicated.routes())?;
                Some(Reporter::start(folder, optimizer, args.steps)?)
            }
            _ => None,
        };
        let share = Sequences::of_rank(world.rank().0, args.batch, args.seq_len);
        let mut stepper = Stepper::new(optimizer, &dedicated)?;
        for step in 0..args.steps {
            let batch = Batch::new(&corpus.batch(args.seed, step, share), &device);
            let loss = model.loss(batch.inputs, batch.targets);
            let lr_share = lr_share(step, args.steps);
            let (mean, work);
            (model, mean, work) = stepper.step(args, step, lr_share, model, loss)?;
            if let Some(reporter) = &mut reporter {
                let tokens = args.num_ranks() * args.batch * args.seq_len;
                reporter.step(mean, lr_share, tokens, work)?;
            }
        }
        let peak_weight_bytes = peak_weight_bytes(&world, &dedicated)?;
        let bytes_predicted = predicted(&dedicated).total() * args.steps as u64;
        let steps = reporter.map(Reporter::finish);
        let full = dedicated.full_model(&model, Rank(0))?;
        Ok(full.zip(steps).map(|(model, steps)| Trained {
            model,
            steps,
            mesh: mesh.shape(),
            peak_weight_bytes,
            bytes_predicted,
        }))
    }

    fn tell_plan(&self, dedicated: &Dedicated) {
        let routes = dedicated.routes();
        let (matrices, elems) = routes.count(Route::Muon);
        let (others, other_elems) = routes.count(Route::Replicated);
        let trainer = self.optimizer.title();
        println!("\nroutes    {matrices} matrices ({elems} values) by {trainer} on their owners,");
        println!("          {others} other parameters ({other_elems}) by AdamW on every rank");
        if let Ok(balance) = dedicated.plan().balance(&dmuon::CostModel::NewtonSchulz) {
            println!(
                "plan      {} boundaries; owners by Newton-Schulz work:",
                dedicated.plan().boundaries().len()
            );
            balance.to_string().lines().for_each(|line| println!("          {line}"));
        }
        let Predicted { weights, gradients, replicate } = predicted(dedicated);
        println!(
            "traffic   a step, all ranks together ({}, mesh {}): {} MB of weights and {} MB of",
            dedicated.mode(),
            dedicated.mesh().shape(),
            megabytes(weights),
            megabytes(gradients)
        );
        println!("          gradients within replicas, {} MB between them", megabytes(replicate));
    }
}

/// Payload of one step, all ranks together, in bytes.
struct Predicted {
    /// Within replicas.
    weights: u64,
    /// Within replicas.
    gradients: u64,
    /// Gradients and new weights between replicas.
    replicate: u64,
}

impl Predicted {
    fn total(&self) -> u64 {
        self.weights + self.gradients + self.replicate
    }
}

fn predicted(dedicated: &Dedicated) -> Predicted {
    let traffic = Traffic::predict(dedicated.plan(), dedicated.mode(), ElemBytes::FP32);
    let replicas = dedicated.mesh().shape().replicate();
    Predicted {
        weights: (replicas * traffic.weights_per_micro_batch()) as u64,
        gradients: (replicas * traffic.gradients_per_sync()) as u64,
        replicate: (traffic.replicate_gradients_per_step() + traffic.publish_per_step()) as u64,
    }
}

/// Bytes as megabytes, for people.
pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

/// The most bytes of weights each rank held at once: its own, and what it borrowed.
fn peak_weight_bytes(world: &World, dedicated: &Dedicated) -> Result<Vec<u64>, Error> {
    // What is still on its way to this rank's column counts too.
    dedicated.drain()?;
    let ledger = world.ledger();
    let own = ledger.current_bytes(Holding::OwnedWeights) + ledger.peak_bytes(Holding::Weights);
    let mut of_ranks = vec![0.0; world.size()];
    of_ranks[world.rank().0] = own as f64;
    Ok(dedicated.sum(&of_ranks)?.into_iter().map(|bytes| bytes as u64).collect())
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

/// What turns a loss into the next model.
struct Stepper {
    optimizer: AnyOptimizer,
    dedicated: Dedicated,
    bytes_moved: u64,
}

enum AnyOptimizer {
    /// Muon for the matrices of the blocks, AdamW for the rest.
    Muon(Box<Muon>),
    /// Burn's AdamW for everything, on the same owners and over the same traffic.
    AdamW(Box<ModuleOptimizer>),
}

impl Stepper {
    fn new(optimizer: Optimizer, dedicated: &Dedicated) -> Result<Self, Error> {
        let optimizer = match optimizer {
            Optimizer::Muon => AnyOptimizer::Muon(Box::new(MuonConfig::new().init(dedicated)?)),
            Optimizer::Adamw => {
                let adamw = AdamWConfig::new().with_beta_2(0.95).with_epsilon(1e-8);
                AnyOptimizer::AdamW(Box::new(adamw.with_weight_decay(0.1).init()))
            }
        };
        let bytes_moved = bytes_moved(dedicated);
        Ok(Self { optimizer, dedicated: dedicated.clone(), bytes_moved })
    }

    /// Returns the next model, the mean loss of all ranks, and what they did together.
    fn step(
        &mut self,
        args: &Args,
        step: usize,
        lr_share: f64,
        model: Gpt,
        loss: Tensor<1>,
    ) -> Result<(Gpt, f64, Work), Error> {
        let own_loss: f64 = loss.clone().into_scalar();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        let (model, ns_calls) = match &mut self.optimizer {
            AnyOptimizer::Muon(muon) => {
                let rates =
                    Rates { muon: args.muon_lr * lr_share, adamw: args.adamw_lr * lr_share };
                let model = muon.step(rates, model, gradients)?;
                let missing = muon.report().missing.clone();
                if !missing.is_empty() {
                    return Err(Error::NotUpdated { step: step + 1, parameters: missing });
                }
                (model, muon.report().ns_calls)
            }
            AnyOptimizer::AdamW(adamw) => {
                let rate = args.adamw_lr * lr_share;
                (self.dedicated.step_with(adamw, rate, model, gradients)?, 0)
            }
        };
        let (loss, work) = self.together(step, own_loss, ns_calls)?;
        Ok((model, loss, work))
    }

    /// Sums over ranks, and makes sure that Muon ran.
    fn together(&mut self, step: usize, loss: f64, ns_calls: usize) -> Result<(f64, Work), Error> {
        let moved = bytes_moved(&self.dedicated);
        let own = [loss, ns_calls as f64, (moved - self.bytes_moved) as f64];
        self.bytes_moved = moved;
        let sums = self.dedicated.sum(&own)?;
        let (step, ranks) = (step + 1, self.dedicated.mesh().shape().world_size());
        let (loss, found) = (sums[0] / ranks as f64, sums[1] as u64);
        if !loss.is_finite() {
            return Err(Error::Diverged { step, loss });
        }
        let planned = self.dedicated.plan().num_matrices();
        if matches!(self.optimizer, AnyOptimizer::Muon(_)) && found != planned as u64 {
            return Err(Error::Orthogonalized { step, found, planned });
        }
        Ok((loss, Work { ns_calls: found, bytes_moved: sums[2] as u64 }))
    }
}

/// Payload this rank has moved between owners and the others: weights received, gradients sent.
fn bytes_moved(dedicated: &Dedicated) -> u64 {
    let counters = dedicated.mesh().world().recorder().counters();
    let moved = |group, op| counters.of_group(group, op).payload_bytes;
    moved("shard/weights", OpKind::Broadcast)
        + moved("shard/gradients", OpKind::Reduce)
        + moved("replicate/gradients", OpKind::Reduce)
        + moved("replicate/weights", OpKind::Broadcast)
}
