//! The bounds that the example `weight_decay` draws, against a simulation of what they describe.

#[path = "../examples/weight_decay/theory.rs"]
mod theory;

use dmuon::runtime::update::{ApplyUpdate, rms};
use theory::{UPDATE_RMS, ceiling, equilibrium, noise};

const LR: f64 = 0.01;

/// Of a mean of 4096 squares: 1/√2048 of the RMS is one standard deviation, and this is some four.
const SAMPLING: f64 = 0.09;

/// Numbers of mean 0 and variance 1, sums of twelve uniform ones.
struct Gaussian(u64);

impl Gaussian {
    fn next(&mut self) -> f32 {
        let mut uniform = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 40) as f32 / (1u64 << 24) as f32
        };
        (0..12).map(|_| uniform()).sum::<f32>() - 6.0
    }
}

/// The RMS of weights after each step on gradients of noise, with Nesterov momentum and updates
/// normalized to an RMS of 0.2.
fn simulate(decay: f64, steps: usize) -> Vec<f64> {
    let (mut weight, mut buffer) = (vec![0.05f32; 4096], vec![0.0f32; 4096]);
    let mut random = Gaussian(7);
    let mut step = || {
        let mut direction = vec![0.0; weight.len()];
        for (direction, buffer) in direction.iter_mut().zip(&mut buffer) {
            let gradient = random.next();
            *buffer = 0.95 * *buffer + gradient;
            *direction = gradient + 0.95 * *buffer;
        }
        let scale = UPDATE_RMS / rms(&direction);
        ApplyUpdate { lr: LR, weight_decay: decay, scale }
            .apply(&mut weight, &direction)
            .expect("one length");
        rms(&weight)
    };
    (0..steps).map(|_| step()).collect()
}

#[test]
fn noise_grows_and_settles_as_simulated() {
    for decay in [0.0, 0.3, 3.0] {
        let steps = 400;
        let predicted = noise([LR; 400].into_iter(), decay, 0.05);
        let simulated = simulate(decay, steps);
        for (step, (a, b)) in predicted.iter().zip(simulated).enumerate() {
            assert!((a / b - 1.0).abs() < SAMPLING, "decay {decay}, step {step}: {a} and {b}");
        }
    }
}

#[test]
fn noise_settles_at_the_equilibrium() {
    for decay in [0.1, 1.0, 10.0] {
        let steps = (10.0 / (LR * decay)) as usize + 1000;
        let last = noise((0..steps).map(|_| LR), decay, 0.05).pop().unwrap();
        assert!((last / equilibrium(LR, decay) - 1.0).abs() < 1e-6, "decay {decay}: {last}");
    }
    assert!(equilibrium(LR, 0.0).is_infinite() && ceiling(0.0).is_infinite());
}

#[test]
fn aligned_updates_reach_the_ceiling_and_no_more() {
    let decay = 2.0;
    let mut weight = [0.05f32; 64];
    for _ in 0..2000 {
        let update = ApplyUpdate { lr: LR, weight_decay: decay, scale: UPDATE_RMS };
        update.apply(&mut weight, &[-1.0; 64]).unwrap();
        assert!(rms(&weight) < ceiling(decay) * (1.0 + 1e-6));
    }
    assert!(rms(&weight) > ceiling(decay) * 0.999);
}
