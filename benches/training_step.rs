//! Whole training steps of a stack of layers: plain Burn on one thread, and dedicated ranks.
//!
//! Every variant does the same arithmetic on the same number of rows, so the ratios say what
//! ownership costs or saves: `cargo bench --bench training_step`.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use criterion::{Criterion, criterion_group, criterion_main};
use dmuon::prelude::*;
use std::time::{Duration, Instant};

const LAYERS: usize = 4;
const WIDTH: usize = 256;
/// Rows a step, all ranks together.
const ROWS: usize = 2048;

#[derive(Module, Debug)]
struct Stack {
    layers: Vec<Hooked<Linear>>,
}

impl Stack {
    fn new(device: &Device) -> Self {
        let layer = || Hooked::new(LinearConfig::new(WIDTH, WIDTH).init(device));
        let stack = Self { layers: (0..LAYERS).map(|_| layer()).collect() };
        dmuon::initialize(&stack);
        stack
    }

    fn loss(&self, rows: usize, device: &Device) -> Tensor<1> {
        let x = Tensor::<2>::ones([rows, WIDTH], device);
        let layer = |linear: &Linear, x: Tensor<2>| x.clone() + relu(linear.forward(x));
        self.layers.iter().fold(x, |x, l| l.run(x, layer)).square().mean()
    }
}

/// `iters` steps of plain Burn with AdamW.
fn plain(iters: u64) -> Duration {
    let device = Device::flex().autodiff();
    let mut stack = Stack::new(&device);
    let mut adamw = AdamWConfig::new().init();
    let started = Instant::now();
    for _ in 0..iters {
        let backward = stack.loss(ROWS, &device).backward();
        let gradients = GradientsParams::from_grads(backward, &stack);
        stack = adamw.step(1e-3, stack, gradients);
    }
    started.elapsed()
}

/// `iters` dedicated steps on rank threads; the slowest rank counts.
fn dedicated(num_ranks: usize, mode: Mode, iters: u64) -> Duration {
    let stack = Stack::new(&Device::flex().autodiff());
    let times = dmuon::launch(num_ranks, |world| -> dmuon::Result<Duration> {
        let device = Device::flex().autodiff();
        let mesh = Mesh::new(&world)?;
        let (mut stack, dedicated) =
            Dedicate::new(&mesh).mode(mode).apply(stack.clone().fork(&device))?;
        let mut muon = MuonConfig::new().init(&dedicated)?;
        let started = Instant::now();
        for _ in 0..iters {
            let backward = stack.loss(ROWS / num_ranks, &device).backward();
            let gradients = GradientsParams::from_grads(backward, &stack);
            stack = muon.step(1e-3, stack, gradients)?;
        }
        Ok(started.elapsed())
    });
    times.ok().and_then(|times| times.into_iter().max()).unwrap_or_default()
}

fn steps(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("training_step");
    group.sample_size(10);
    group.bench_function("plain-adamw", |bench| bench.iter_custom(plain));
    for num_ranks in [1, 2, 4] {
        for mode in [Mode::Z2, Mode::Z3] {
            group.bench_function(format!("muon-{mode}/{num_ranks}-ranks"), |bench| {
                bench.iter_custom(|iters| dedicated(num_ranks, mode, iters));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, steps);
criterion_main!(benches);
