//! One run with one decay: the training loop of each rank, probed on rank 0.

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use dmuon::AdamW;
use dmuon::prelude::*;

use crate::bf16;
use crate::cli::Args;
use crate::common::data::{Batch, Corpus, Sequences};
use crate::common::model::Gpt;
use crate::common::records;
use crate::error::Error;
use crate::probe::Probe;
use crate::report::{Record, Reporter};

/// The step, from 1, at which the learning rates have risen to where they stay.
pub(crate) const WARM_UP: usize = 20;

/// What rank 0 brings home.
#[derive(Debug)]
pub(crate) struct Trained {
    pub(crate) records: Vec<Record>,
    pub(crate) weights_sha256: String,
}

/// What all ranks of a run are told.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) args: &'a Args,
    pub(crate) corpus: &'a Corpus,
    pub(crate) probe: &'a Probe,
    pub(crate) decay: f64,
}

impl Job<'_> {
    /// Trains from fresh weights, the same for every decay.
    pub(crate) fn train(self, reporter: &Reporter) -> Result<Trained, Error> {
        let device = Device::flex().autodiff();
        // Burn draws from one generator for the whole process: the weights are drawn here, once.
        device.seed(self.args.seed);
        let model = self.args.model().init(&device);
        dmuon::initialize(&model);
        let rank = |world| self.train_rank(world, model.clone(), reporter);
        let ranks = dmuon::launch(self.args.ranks, rank)?;
        let trained = ranks.into_iter().flatten().next();
        Ok(trained.unwrap_or_else(|| unreachable!("rank 0 gathers the model")))
    }

    fn train_rank(
        self,
        world: World,
        model: Gpt,
        reporter: &Reporter,
    ) -> Result<Option<Trained>, Error> {
        let device = Device::flex().autodiff();
        let mesh = Mesh::new(&world)?;
        let (model, _) = Dedicate::new(&mesh).apply(model.fork(&device))?;
        let (mut model, handle) = FullyShard::new(&mesh).apply(model)?;
        let mut muon = self.optimizer().init(&handle)?;
        let mut records = Vec::new();
        let mut losses = Vec::new();
        for step in 1..=self.args.steps {
            let is_recorded = self.args.is_recorded(step);
            let before = if is_recorded { handle.full_model(&model, Rank(0))? } else { None };
            let loss;
            (model, loss) = self.step(step, &mut muon, &handle, model)?;
            losses.push(loss);
            if is_recorded {
                let update_rms = update_rms(&muon, &handle)?;
                let after = handle.full_model(&model, Rank(0))?;
                if let Some((before, after)) = before.zip(after) {
                    let losses = std::mem::take(&mut losses);
                    let record = self.record(step, &losses, update_rms, [&before, &after]);
                    reporter.record(&record)?;
                    records.push(record);
                }
            }
        }
        let full = handle.full_model(&model, Rank(0))?;
        Ok(full.map(|model| Trained { records, weights_sha256: records::weights_sha256(&model) }))
    }

    /// The same decay for what Muon takes and what AdamW takes, and none for norms.
    fn optimizer(self) -> MuonConfig {
        let adamw = AdamW { weight_decay: self.decay, ..AdamW::default() };
        MuonConfig::new().with_weight_decay(self.decay).with_adamw(adamw).without_decay(["*norm*"])
    }

    /// Returns the next model and the mean loss of all ranks.
    fn step(
        self,
        step: usize,
        muon: &mut Muon,
        handle: &Dedicated,
        model: Gpt,
    ) -> Result<(Gpt, f64), Error> {
        let Self { args, corpus, decay, .. } = self;
        let world = handle.mesh().world();
        let share = Sequences::of_rank(world.rank().0, args.batch, args.seq_len);
        let sequences = corpus.batch(args.seed, step, share);
        let batch = Batch::new(&sequences, &Device::flex().autodiff());
        let loss: Tensor<1> = model.loss(batch.inputs, batch.targets);
        let own: f64 = loss.clone().into_scalar();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        let share = lr_share(step);
        let rates = Rates { muon: args.muon_lr * share, adamw: args.adamw_lr * share };
        let model = muon.step(rates, model, gradients)?;
        let loss = handle.sum(&[own])?[0] / world.size() as f64;
        match loss.is_finite() {
            true => Ok((model, loss)),
            false => Err(Error::Diverged { decay, step, loss }),
        }
    }

    fn record(
        self,
        step: usize,
        losses: &[f64],
        update_rms: f64,
        [before, after]: [&Gpt; 2],
    ) -> Record {
        let [old, new] = [before, after].map(bf16::block_matrices);
        Record {
            decay: self.decay,
            step,
            epochs: self.args.epochs(step),
            train_loss: losses.iter().sum::<f64>() / losses.len() as f64,
            update_rms,
            lost_updates: bf16::lost_updates(&old, &new),
            sizes: self.probe.measure(after),
        }
    }
}

/// What part of the learning rates is in force at a step.
pub(crate) fn lr_share(step: usize) -> f64 {
    (step as f64 / WARM_UP as f64).min(1.0)
}

/// The mean over all matrices of the RMS of Muon's last update, before the learning rate.
fn update_rms(muon: &Muon, handle: &Dedicated) -> Result<f64, Error> {
    let updates = &muon.report().updates;
    let own = [updates.iter().map(|update| update.rms).sum(), updates.len() as f64];
    let sums = handle.sum(&own)?;
    Ok(sums[0] / sums[1])
}
