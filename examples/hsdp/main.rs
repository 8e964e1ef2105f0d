//! HSDP by itself: two replicas of two ranks, a slow link between replicas, and publishing hidden
//! under the next forward.
//!
//! `cargo run --release --example hsdp` trains a stack of linear layers twice, waiting for new
//! weights at the end of each step (`sync`) and only where the next forward needs them (`async`),
//! checks that both give the same bits, and draws what one step looked like.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it talks to whoever runs it")]

mod timeline;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor, TensorData};
use dmuon::prelude::*;
use dmuon::runtime::{Event, Link};
use dmuon::{EngineOptions, MeshShape};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const LAYERS: usize = 6;
const WIDTH: usize = 512;
const ROWS: usize = 1024;
const STEPS: usize = 6;
const ROUNDS: usize = 3;

/// How long a link between replicas takes for one layer's weights: a good part of its forward.
const PUBLISH: Duration = Duration::from_millis(60);

#[derive(Module, Debug)]
struct Stack {
    layers: Vec<Hooked<Linear>>,
}

impl Stack {
    fn new(device: &Device) -> Self {
        let layer = || LinearConfig::new(WIDTH, WIDTH).with_bias(false).init(device);
        Self { layers: (0..LAYERS).map(|_| Hooked::new(layer())).collect() }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.layers
            .iter()
            .fold(x, |x, layer| layer.run(x, |linear, x| x.clone() + relu(linear.forward(x)) * 0.1))
    }
}

/// What runs of one kind leave behind.
#[derive(Default)]
struct Run {
    /// Of each step on rank 0, from the start of its forward to that of the next.
    times: Vec<Duration>,
    losses: Vec<f32>,
    /// Of each rank, the events of the last step and the forward after it.
    events: Vec<Vec<Event>>,
}

impl Run {
    fn add(&mut self, other: Run) {
        self.times.extend(other.times);
        (self.losses, self.events) = (other.losses, other.events);
    }

    fn median(&self) -> Duration {
        let mut times = self.times.clone();
        times.sort();
        times.get(times.len() / 2).copied().unwrap_or_default()
    }
}

fn main() -> ExitCode {
    match run(Path::new("out/hsdp")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(out: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let mesh = MeshShape::new(2, 2)?;
    println!("mesh {mesh}: two replicas of two ranks, {LAYERS} layers of {WIDTH}x{WIDTH}");
    let bytes_per_second = (4 * WIDTH * WIDTH) as f64 / PUBLISH.as_secs_f64();
    let slow = Link { latency: Duration::ZERO, bytes_per_second, groups: "replicate/weights" };
    let slow = EngineOptions::default().with_link(slow);
    let fast = EngineOptions::default();
    let [mut free, mut sync, mut hidden] = [(); 3].map(|()| Run::default());
    // In turn, so that whatever else the machine does falls on all three alike.
    for _ in 0..ROUNDS {
        free.add(train(mesh, &fast, ReplicatePublish::Async)?);
        sync.add(train(mesh, &slow, ReplicatePublish::Sync)?);
        hidden.add(train(mesh, &slow, ReplicatePublish::Async)?);
    }
    if sync.losses != hidden.losses || free.losses != hidden.losses {
        return Err("asynchronous publishing changed the result".into());
    }
    println!("a layer's weights take {} ms to another replica; per step:", PUBLISH.as_millis());
    let without = free.median().as_secs_f64();
    for (name, run) in [("no delay", &free), ("sync", &sync), ("async", &hidden)] {
        let step = run.median().as_secs_f64();
        println!("  {name:9} {:6.1} ms  {:.2}x", step * 1e3, step / without);
    }
    println!("the same losses to the bit, ending at {:.4}", hidden.losses[STEPS - 1]);
    let path = out.join("timeline.png");
    timeline::draw(&path, &hidden.events)?;
    println!("what one asynchronous step looked like: {}", path.display());
    Ok(())
}

fn train(
    mesh: MeshShape,
    options: &EngineOptions,
    publish: ReplicatePublish,
) -> Result<Run, dmuon::Error> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let stack = Stack::new(&device);
    dmuon::initialize(&stack);
    let ranks = dmuon::launch_with(mesh.world_size(), options, |world| {
        let mesh = Mesh::with_shape(&world, mesh)?;
        train_rank(&world, &mesh, stack.clone(), publish)
    })?;
    Ok(Run {
        times: ranks[0].0.clone(),
        losses: ranks[0].1.clone(),
        events: ranks.into_iter().map(|(_, _, events)| events).collect(),
    })
}

type OfRank = (Vec<Duration>, Vec<f32>, Vec<Event>);

fn train_rank(
    world: &World,
    mesh: &Mesh,
    stack: Stack,
    publish: ReplicatePublish,
) -> Result<OfRank, dmuon::Error> {
    let device = Device::flex().autodiff();
    let (mut stack, dedicated) =
        Dedicate::new(mesh).mode(Mode::Z3).publish(publish).apply(stack.fork(&device))?;
    let mut muon = MuonConfig::new().init(&dedicated)?;
    let (mut times, mut losses, mut last_step) = (Vec::new(), Vec::new(), 0);
    for step in 0..STEPS {
        let started = Instant::now();
        if step + 1 == STEPS {
            last_step = world.recorder().events().len();
        }
        let loss = stack.forward(batch(world.rank(), step, &device)).square().mean();
        losses.push(loss.clone().into_scalar());
        let gradients = GradientsParams::from_grads(loss.backward(), &stack);
        stack = muon.step(0.01, stack, gradients)?;
        times.push(started.elapsed());
    }
    // The forward after the last step shows where its publishes were hidden.
    let _ = stack.forward(batch(world.rank(), STEPS, &device));
    Ok((times, losses, world.recorder().events().split_off(last_step)))
}

fn batch(rank: Rank, step: usize, device: &Device) -> Tensor<2> {
    let elem = |i: usize| ((i * 7919 + rank.0 * 104_729 + step * 31) % 2003) as f32 / 2003.0 - 0.5;
    let elems: Vec<f32> = (0..ROWS * WIDTH).map(elem).collect();
    Tensor::from_data(TensorData::new(elems, [ROWS, WIDTH]), device)
}
