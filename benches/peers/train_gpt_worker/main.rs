//! Trains the example's GPT a step at a time, when it is told to, so that another program can time
//! it beside its own.
//!
//! The first line of standard input is a [`Setup`] as JSON. Every further line asks for one step and
//! is answered by a [`StepTimes`]. `benches/peers/train_gpt.py` drives it.
#![forbid(unsafe_code)]

#[path = "../../../examples/common/model.rs"]
mod model;
mod tokens;
mod weights;

use std::error::Error;
use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::Device;
use dmuon::newton_schulz::Precision;
use dmuon::prelude::*;
use serde::{Deserialize, Serialize};

use model::{Gpt, GptConfig};
use tokens::Tokens;

/// What to train, and how.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Setup {
    model: GptConfig,
    ranks: usize,
    /// Sequences a step, on each rank.
    batch: usize,
    optimizer: OptimizerName,
    mode: ModeName,
    lr: f64,
    seed: u64,
    /// Bytes, `[steps, ranks, batch, seq_len + 1]`.
    tokens: PathBuf,
    /// Where the initial weights go, as safetensors.
    weights: Option<PathBuf>,
}

#[derive(Deserialize, Debug, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum OptimizerName {
    Muon,
    /// Muon with bf16 products, as its peers.
    MuonBf16,
    Adamw,
}

#[derive(Deserialize, Debug, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum ModeName {
    Z2,
    Z3,
}

/// One step of one rank; of all ranks the mean loss and the longest times.
#[derive(Serialize, Debug, Default, Clone, Copy)]
struct StepTimes {
    loss: f64,
    seconds: f64,
    /// From when the last rank has its gradients to when the step is done.
    optimizer_seconds: f64,
}

impl StepTimes {
    fn and(self, other: Self) -> Self {
        Self {
            loss: other.loss,
            seconds: self.seconds.max(other.seconds),
            optimizer_seconds: self.optimizer_seconds.max(other.optimizer_seconds),
        }
    }
}

enum Optimizer {
    Muon(Box<Muon>),
    Adamw(Box<ModuleOptimizer>),
}

impl Setup {
    fn device(&self) -> Device {
        match self.mode {
            ModeName::Z2 => Device::flex().autodiff(),
            ModeName::Z3 => Device::flex().autodiff().gradient_checkpointing(),
        }
    }

    /// The same weights for the same seed.
    fn initial(&self) -> Gpt {
        let device = self.device();
        device.seed(self.seed);
        let model = self.model.init(&device);
        dmuon::initialize(&model);
        model
    }

    /// Momentum, decay and scale as [`MuonConfig`] has them; AdamW as its peers.
    fn optimizer(&self, dedicated: &Dedicated) -> dmuon::Result<Optimizer> {
        let muon = |precision| MuonConfig::new().with_precision(precision).init(dedicated);
        Ok(match self.optimizer {
            OptimizerName::Muon => Optimizer::Muon(Box::new(muon(Precision::F32)?)),
            OptimizerName::MuonBf16 => Optimizer::Muon(Box::new(muon(Precision::Bf16Products)?)),
            OptimizerName::Adamw => {
                let adamw = AdamWConfig::new().with_beta_2(0.95).with_epsilon(1e-8);
                Optimizer::Adamw(Box::new(adamw.with_weight_decay(0.1).init()))
            }
        })
    }

    /// One rank: a step whenever `go` says so, until it is closed.
    fn train_rank(
        &self,
        world: &World,
        model: &Gpt,
        tokens: &Tokens,
        go: &Receiver<()>,
        done: &Sender<StepTimes>,
    ) -> dmuon::Result<()> {
        let device = self.device();
        let mesh = Mesh::new(world)?;
        let mode = match self.mode {
            ModeName::Z2 => Mode::Z2,
            ModeName::Z3 => Mode::Z3,
        };
        let (model, _) = Dedicate::new(&mesh).mode(mode).apply(model.clone().fork(&device))?;
        let (mut model, dedicated) = FullyShard::new(&mesh).apply(model)?;
        let mut optimizer = self.optimizer(&dedicated)?;
        let mut step = 0;
        while go.recv().is_ok() {
            let started = Instant::now();
            let [inputs, targets] = tokens.batch(step, world.rank().0, &device);
            let loss = model.loss(inputs, targets);
            let own: f64 = loss.clone().into_scalar();
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            // The sum makes ranks wait for each other: what follows is the optimizer's alone.
            let loss = dedicated.sum(&[own])?[0] / world.size() as f64;
            let backward = started.elapsed();
            model = match &mut optimizer {
                Optimizer::Muon(muon) => muon.step(self.lr, model, gradients)?,
                Optimizer::Adamw(adamw) => dedicated.step_with(adamw, self.lr, model, gradients)?,
            };
            let elapsed = started.elapsed();
            step += 1;
            let times = StepTimes {
                loss,
                seconds: elapsed.as_secs_f64(),
                optimizer_seconds: (elapsed - backward).as_secs_f64(),
            };
            if done.send(times).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// All ranks; ends when the gates are closed, or a rank fails.
    fn train(
        &self,
        model: &Gpt,
        tokens: &Tokens,
        gates: Vec<Receiver<()>>,
        done: Sender<StepTimes>,
    ) -> dmuon::Result<()> {
        let gates: Vec<_> = gates.into_iter().map(Mutex::new).collect();
        dmuon::launch(self.ranks, |world| -> dmuon::Result<()> {
            let gate = gates[world.rank().0].lock().unwrap_or_else(PoisonError::into_inner);
            self.train_rank(&world, model, tokens, &gate, &done)
        })?;
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut lines = io::stdin().lock().lines();
    let setup: Setup = serde_json::from_str(&lines.next().ok_or("no setup was given")??)?;
    let model = setup.initial();
    if let Some(path) = &setup.weights {
        weights::write(&model, path)?;
    }
    let tokens = Tokens::read(&setup.tokens, [setup.ranks, setup.batch, setup.model.seq_len])?;
    let (gates, receivers): (Vec<_>, Vec<_>) = (0..setup.ranks).map(|_| mpsc::channel()).unzip();
    let (done, times) = mpsc::channel();
    thread::scope(|scope| {
        let ranks = scope.spawn(|| setup.train(&model, &tokens, receivers, done));
        say(&"ready")?;
        for line in lines {
            line?;
            if gates.iter().any(|gate| gate.send(()).is_err()) {
                break;
            }
            let of_ranks: Vec<StepTimes> = times.iter().take(setup.ranks).collect();
            if of_ranks.len() < setup.ranks {
                break;
            }
            say(&of_ranks.into_iter().fold(StepTimes::default(), StepTimes::and))?;
        }
        drop(gates);
        ranks.join().map_err(|_| "the ranks' thread panicked")??;
        Ok(())
    })
}

fn say(answer: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(answer)?)?;
    out.flush()
}
