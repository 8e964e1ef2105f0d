//! What the device holds: in Z3 nothing borrowed between passes, in Z2 all of it after forward.

use crate::device::hold;
use crate::support::*;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use dmuon::runtime::Call;
use dmuon::{Dedicate, Hooked, Mesh, Mode, MuonConfig, World};

const LAYERS: usize = 6;
const WIDE: usize = 128;

/// Weights of one layer, in bytes: far more than its activations.
const LAYER_BYTES: u64 = (2 * 4 * WIDE * WIDE * size_of::<f32>()) as u64;

#[derive(Module, Debug)]
struct Wide {
    up: Linear,
    down: Linear,
}

#[derive(Module, Debug)]
struct Stack {
    layers: Vec<Hooked<Wide>>,
}

impl Stack {
    fn new(device: &Device) -> Self {
        let linear = |rows, cols| LinearConfig::new(rows, cols).with_bias(false).init(device);
        let wide = || Wide { up: linear(WIDE, 4 * WIDE), down: linear(4 * WIDE, WIDE) };
        Self { layers: (0..LAYERS).map(|_| Hooked::new(wide())).collect() }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let run = |wide: &Wide, x: Tensor<2>| wide.down.forward(relu(wide.up.forward(x)));
        self.layers.iter().fold(x, |x, layer| layer.run(x, run))
    }
}

fn barrier(world: &World) {
    let call = Call::barrier("a reading of the device's memory");
    world.group().start(call, None).unwrap().wait(DEADLINE).unwrap();
}

/// Bytes in use on the device, by all ranks, with nothing under way.
fn reading(world: &World, device: &Device) -> u64 {
    device.sync().unwrap();
    barrier(world);
    let usage = device.memory_pool_usage().unwrap();
    barrier(world);
    usage.bytes_in_use
}

/// Growth since before the second step's forward, of both ranks together: after forward, after
/// backward, after the step.
fn growth(mode: Mode) -> [u64; 3] {
    let held = hold();
    let ad = held.device.clone().autodiff().gradient_checkpointing();
    let stack = seeded(1, |flex| Stack::new(&flex.clone().gradient_checkpointing()));
    let readings = on_ranks(2, |world| {
        let (mut stack, handle) =
            Dedicate::new(&Mesh::new(&world)?).mode(mode).apply(stack.clone().fork(&ad))?;
        let mut muon = MuonConfig::new().init(&handle)?;
        let read = || reading(&world, &held.device);
        let mut readings = [0; 3];
        for _ in 0..2 {
            let before = read();
            let loss = stack.forward(Tensor::ones([2, WIDE], &ad)).square().mean();
            let forward = read();
            let backward = loss.backward();
            let gradients = GradientsParams::from_grads(backward, &stack);
            let backward = read();
            stack = muon.step(0.02, stack, gradients)?;
            readings = [forward, backward, read()].map(|bytes| bytes.saturating_sub(before));
        }
        Ok(readings)
    });
    readings.unwrap()[0]
}

#[test]
fn z3_keeps_nothing_borrowed_on_the_device() {
    let all = LAYERS as u64 * LAYER_BYTES;
    let ([z2, ..], [z3, gradients, step]) = (growth(Mode::Z2), growth(Mode::Z3));
    // Each of two ranks borrows what the other owns: all weights once.
    assert!(z2 >= all, "z2 after forward: {z2} of {all}");
    assert!(z3 < LAYER_BYTES / 4, "z3 after forward: {z3}, a layer has {LAYER_BYTES}");
    // Averages are there until the step takes them: each on its owner.
    assert!(gradients < all + LAYER_BYTES / 4, "z3 after backward: {gradients} of {all}");
    assert!(step < LAYER_BYTES / 4, "z3 after the step: {step}");
}
