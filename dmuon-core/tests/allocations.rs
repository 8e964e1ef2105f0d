//! An owner's step, from momentum to the applied update, allocates nothing once it has run before.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test by it")]

use dhat::{Alloc, HeapStats, Profiler};
use dmuon_core::newton_schulz::{
    Form, NewtonSchulz, NewtonSchulzConfig, Parallelism, Precision, Workspace,
};
use dmuon_core::update::{AdamW, AdamWState, ApplyUpdate, Momentum};

#[global_allocator]
static ALLOCATOR: Alloc = Alloc;

/// Square, wide, tall, few rows, few columns, a batch, a batch of few rows, a vector.
const SHAPES: [[usize; 3]; 8] = [
    [1, 96, 96],
    [1, 80, 1100],
    [1, 300, 70],
    [1, 24, 1030],
    [1, 500, 24],
    [3, 70, 90],
    [5, 12, 40],
    [1, 1, 50],
];

/// What an owner keeps of a matrix.
struct Owner {
    shape: [usize; 3],
    weight: Vec<f32>,
    momentum: Vec<f32>,
    second: Vec<f32>,
    input: Vec<f32>,
    direction: Vec<f32>,
}

impl Owner {
    fn new(shape: [usize; 3]) -> Self {
        let len = shape.iter().product();
        let zeros = || vec![0.0; len];
        let [weight, momentum, second, input, direction] = std::array::from_fn(|_| zeros());
        Self { shape, weight, momentum, second, input, direction }
    }

    fn step(&mut self, run: &NewtonSchulz, workspace: &mut Workspace, gradient: &[f32]) {
        let gradient = &gradient[..self.weight.len()];
        Momentum::default().step(&mut self.momentum, gradient, &mut self.input).unwrap();
        run.orthogonalize_batch(workspace, &self.input, self.shape, &mut self.direction).unwrap();
        let update = ApplyUpdate { lr: 0.02, weight_decay: 0.1, scale: 6.4 };
        update.apply(&mut self.weight, &self.direction).unwrap();
    }

    fn adamw(&mut self, gradient: &[f32]) {
        let gradient = &gradient[..self.weight.len()];
        let state = AdamWState { first: &mut self.momentum, second: &mut self.second, step: 1 };
        AdamW::default().step(&mut self.weight, gradient, state).unwrap();
    }
}

/// One test, because the counters are those of the process.
#[test]
fn a_second_step_allocates_nothing() {
    let _profiler = Profiler::builder().testing().build();
    let gradient: Vec<f32> = (0..100_000).map(|i| (i as f32 * 0.37).sin()).collect();
    let tiny: Vec<f32> = gradient.iter().map(|g| g * 1e-15).collect();
    for precision in [Precision::F32, Precision::Bf16Products] {
        for form in [Form::Auto, Form::Direct, Form::Gram] {
            let config = NewtonSchulzConfig::new().with_form(form).with_precision(precision);
            let run = NewtonSchulz::new(config).unwrap();
            let mut workspace = Workspace::new(Parallelism::Serial);
            let mut owners = SHAPES.map(Owner::new);
            let mut all = |gradient: &[f32]| {
                for owner in &mut owners {
                    owner.step(&run, &mut workspace, gradient);
                    owner.adamw(gradient);
                    owner.momentum.fill(0.0);
                }
            };
            // A gradient too small to square takes a buffer of its own.
            let gradients = [&gradient, &tiny];
            gradients.into_iter().for_each(|gradient| all(gradient));
            let before = HeapStats::get().total_blocks;
            gradients.into_iter().for_each(|gradient| all(gradient));
            let blocks = HeapStats::get().total_blocks - before;
            assert!(before > 0, "the allocator is not counting");
            assert_eq!(blocks, 0, "{precision:?} {form:?}");
        }
    }
}
