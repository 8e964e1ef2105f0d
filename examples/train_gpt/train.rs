//! The training loop of one rank, and what rank 0 brings home.

use std::collections::BTreeMap;
use std::path::Path;

use burn::module::Module;
use burn::tensor::Device;
use dmuon::prelude::*;
use dmuon::{Holding, MeshShape};

use crate::cli::{Args, Optimizer, Rest};
use crate::common::data::{Batch, Corpus, Sequences};
use crate::common::model::Gpt;
use crate::common::records;
use crate::device::DeviceName;
use crate::error::Error;
use crate::report::{OnRoute, Reporter, StepRecord};
use crate::stepper::Stepper;
use crate::traffic::{Predicted, megabytes};

/// What rank 0 brings home.
#[derive(Debug)]
pub(crate) struct Trained {
    /// With all weights in full.
    pub(crate) model: Gpt,
    pub(crate) steps: Vec<StepRecord>,
    pub(crate) mesh: MeshShape,
    /// What each route takes.
    pub(crate) routes: BTreeMap<Route, OnRoute>,
    /// Of each rank.
    pub(crate) peak_weight_bytes: Vec<u64>,
    /// What the plan and the routes said that the run would move.
    pub(crate) bytes_predicted: u64,
}

/// Trains from a fresh model on all ranks; the records go to `folder`. Only the process of rank 0
/// brings something home.
pub(crate) fn train(
    args: &Args,
    optimizer: Optimizer,
    device: &Device,
    corpus: &Corpus,
    folder: &Path,
) -> Result<Option<Trained>, Error> {
    // Burn draws from one generator for the whole process: the weights are drawn here, once in
    // every process, from one seed, and on Flex, so that every device begins with the same.
    let flex = args.with_tape(&Device::flex());
    flex.seed(args.seed);
    let drawn = args.model().init(&flex);
    dmuon::initialize(&drawn);
    let device = &args.with_tape(device);
    let model = match args.device {
        DeviceName::Flex => drawn,
        // Values alone: Burn can't move Flex's masks of booleans to a device.
        _ => args.model().init(device).load_record(drawn.into_record()),
    };
    let job = Job { args, optimizer, device, corpus, folder };
    let ranks = dmuon::launch(args.num_ranks(), |world| job.train_rank(world, model.clone()))?;
    Ok(ranks.into_iter().flatten().next())
}

/// What all ranks are told.
#[derive(Clone, Copy)]
struct Job<'a> {
    args: &'a Args,
    optimizer: Optimizer,
    /// With a tape.
    device: &'a Device,
    corpus: &'a Corpus,
    folder: &'a Path,
}

impl Job<'_> {
    fn train_rank(self, world: World, model: Gpt) -> Result<Option<Trained>, Error> {
        let Self { args, optimizer, device, corpus, folder } = self;
        let mesh = Mesh::with_shape(&world, args.mesh().map_err(dmuon::runtime::Error::from)?)?;
        let (mut model, dedicated) = self.distribute(&mesh, model.fork(device))?;
        let predicted = Predicted::new(&dedicated, args.compute.into());
        let mut reporter = match world.rank() {
            Rank(0) => {
                self.tell_plan(&dedicated, &predicted);
                records::write_json(&folder.join("routes.json"), dedicated.routes())?;
                Some(Reporter::start(folder, optimizer, args.steps)?)
            }
            _ => None,
        };
        let share = Sequences::of_rank(world.rank().0, args.batch, args.seq_len);
        let mut stepper = Stepper::new(args, optimizer, &dedicated)?;
        let mut skipped = 0;
        for step in 0..args.steps {
            let loss = |model: &Gpt, micro_batch| {
                let number = step * args.accumulate + micro_batch;
                let batch = Batch::new(&corpus.batch(args.seed, number, share), device);
                model.loss(batch.inputs, batch.targets)
            };
            let work;
            (model, work) = stepper.step(model, loss)?;
            skipped += u64::from(work.skipped);
            if let Some(reporter) = &mut reporter {
                reporter.step(args.tokens_per_step(), work)?;
            }
        }
        let peak_weight_bytes = peak_weight_bytes(&world, &dedicated)?;
        let steps = reporter.map(Reporter::finish);
        let full = dedicated.full_model(&model, Rank(0))?;
        Ok(full.zip(steps).map(|(model, steps)| Trained {
            model,
            steps,
            mesh: mesh.shape(),
            routes: on_routes(&dedicated),
            peak_weight_bytes,
            bytes_predicted: predicted.of_run(args.steps as u64, args.accumulate as u64, skipped),
        }))
    }

    /// Matrices get owners; then what no rank owns is sharded, or stays on every rank.
    fn distribute(self, mesh: &Mesh, model: Gpt) -> Result<(Gpt, Dedicated), Error> {
        let args = self.args;
        let (model, dedicated) = Dedicate::new(mesh)
            .mode(args.mode.into())
            .publish(args.publish())
            .prefetch(args.prefetch)
            .compute_type(args.compute.into())
            .apply(model)?;
        match args.rest {
            Rest::Sharded => Ok(FullyShard::new(mesh).apply(model)?),
            Rest::Replicated => Ok((model, dedicated)),
        }
    }

    fn tell_plan(self, dedicated: &Dedicated, predicted: &Predicted) {
        for (route, on_route) in on_routes(dedicated) {
            let OnRoute { parameters, values } = on_route;
            println!("routes    {:13} {parameters} parameters, {values} values", route.name());
        }
        let plan = dedicated.plan();
        if let Ok(balance) = plan.balance(&dmuon::CostModel::NewtonSchulz) {
            let boundaries = plan.boundaries().len();
            println!("plan      {boundaries} boundaries; owners by Newton-Schulz work:");
            balance.to_string().lines().for_each(|line| println!("          {line}"));
        }
        let [weights, gradients, replicate] = predicted.of_step().map(megabytes);
        println!(
            "traffic   a step of one micro-batch, all ranks together ({}, mesh {}): {weights} MB of",
            dedicated.mode(),
            dedicated.mesh().shape(),
        );
        println!("          weights and {gradients} MB of gradients within replicas,");
        println!("          {replicate} MB between them");
    }
}

/// What each route takes, for those that take anything.
fn on_routes(dedicated: &Dedicated) -> BTreeMap<Route, OnRoute> {
    let counts = Route::ALL.map(|route| (route, dedicated.routes().count(route)));
    let taken = counts.into_iter().filter(|(_, (parameters, _))| *parameters > 0);
    taken.map(|(route, (parameters, values))| (route, OnRoute { parameters, values })).collect()
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
