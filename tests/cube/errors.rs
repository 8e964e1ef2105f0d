//! Stale weights are noticed on a device too, and what it can't do is said before ranks talk.

use crate::device::hold;
use crate::support::*;
use burn::module::{Module, ModuleMapper, Param};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Tensor};
use dmuon::{
    Dedicate, Dedicated, Error, FloatType, FullyShard, Mesh, Mode, Muon, MuonConfig, Result,
};

/// What every rank of two says after `misuse`; one alone may own what is stale, and the other hears.
fn misused(
    mode: Mode,
    parts: &[&str],
    misuse: impl Fn(Net, &Dedicated, &mut Muon, Tensor<3>) -> Result<()> + Sync,
) {
    let held = hold();
    let ad = held.device.clone().autodiff();
    let net = seeded(1, |device| Net::new(2, device));
    let outcomes = dmuon::runtime::launch_each::<(), Error, _>(2, &options(), |world| {
        let (net, handle) =
            Dedicate::new(&Mesh::new(&world)?).mode(mode).apply(net.clone().fork(&ad))?;
        let mut muon = MuonConfig::new().init(&handle)?;
        let input = batch(0, world.rank().0).to_device(&held.device).autodiff();
        misuse(net, &handle, &mut muon, input)
    });
    for (rank, outcome) in outcomes.unwrap().iter().enumerate() {
        let message = outcome.as_ref().unwrap_err().to_string();
        for part in parts {
            assert!(message.contains(part), "rank {rank}: {message}");
        }
    }
}

fn backward(net: &Net, input: Tensor<3>) -> GradientsParams {
    GradientsParams::from_grads(loss(net.forward(input)).backward(), net)
}

const STALE: [&str; 2] = ["weight", "not the weight that was published last"];

#[test]
fn a_step_behind_dmuons_back_is_noticed() {
    for mode in [Mode::Z2, Mode::Z3] {
        misused(mode, &STALE, |net, _, _, input| {
            let gradients = backward(&net, input.clone());
            let net = SgdConfig::new().init().step(0.1, net, gradients);
            backward(&net, input);
            Ok(())
        });
    }
}

#[test]
fn an_older_model_is_noticed() {
    for mode in [Mode::Z2, Mode::Z3] {
        misused(mode, &STALE, |net, _, muon, input| {
            let older = net.clone();
            let gradients = backward(&net, input.clone());
            let net = muon.step(0.05, net, gradients)?;
            backward(&net, input.clone());
            drop(older.valid().forward(input.clone().without_autodiff()));
            backward(&older, input);
            Ok(())
        });
    }
}

/// Doubles what the module stores, in the memory that it has if Burn lets it.
struct Double;

impl ModuleMapper for Double {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| tensor.without_autodiff().mul_scalar(2.0).autodiff().require_grad())
    }
}

#[test]
fn a_weight_edited_in_place_is_noticed() {
    misused(Mode::Z2, &STALE, |net, _, _, input| {
        backward(&net.map(&mut Double), input);
        Ok(())
    });
    misused(Mode::Z2, &STALE, |net, handle, _, input| {
        let net = handle.publish(net.map(&mut Double))?;
        backward(&net, input);
        handle.full_model(&net.map(&mut Double), dmuon::Rank(0)).map(drop)
    });
}

#[test]
fn another_thread_uses_current_weights_and_is_told_of_old_ones() {
    misused(Mode::Z3, &STALE, |net, _, muon, input| {
        let older = net.clone();
        let elsewhere = |net: &Net| {
            let (net, input) = (net.valid(), input.clone().without_autodiff());
            std::thread::scope(|scope| {
                let run = || dmuon::catch(|| loss(net.forward(input)).into_scalar::<f32>());
                scope.spawn(run).join().unwrap()
            })
        };
        let here = loss(net.valid().forward(input.clone().without_autodiff()));
        assert_eq!(elsewhere(&net)?, here.into_scalar::<f32>());
        let gradients = backward(&net, input.clone());
        muon.step(0.05, net, gradients)?;
        elsewhere(&older)?;
        Ok(())
    });
}

/// Half precision keeps 8 or 11 bits of every weight and activation; losses here are below 1.
const HALF_TOLERANCE: f32 = 3e-2;

/// Losses of two steps with weights in `float`.
fn train(device: &Device, float: FloatType) -> Result<Vec<Vec<f32>>> {
    let net = seeded(1, |device| Net::new(2, device));
    on_ranks(2, |world| {
        let ad = device.clone().autodiff();
        let request = Dedicate::new(&Mesh::new(&world)?).mode(Mode::Z3).compute_type(float);
        let (mut net, handle) = request.apply(net.clone().fork(&ad))?;
        let mut muon = MuonConfig::new().init(&handle)?;
        let mut losses = Vec::new();
        for step in 0..2 {
            let input = batch(step, world.rank().0).to_device(device).autodiff();
            let output = net.forward(input.cast(floats(float)));
            let loss = loss(output.cast(floats(FloatType::F32)));
            losses.push(loss.clone().into_scalar());
            let gradients = GradientsParams::from_grads(loss.backward(), &net);
            net = muon.step(0.02, net, gradients)?;
        }
        Ok(losses)
    })
}

fn floats(float: FloatType) -> burn::tensor::FloatDType {
    match float {
        FloatType::F32 => burn::tensor::FloatDType::F32,
        FloatType::F16 => burn::tensor::FloatDType::F16,
        FloatType::Bf16 => burn::tensor::FloatDType::BF16,
    }
}

#[test]
fn half_precision_works_or_is_refused_with_the_devices_name() {
    let held = hold();
    for float in [FloatType::F16, FloatType::Bf16] {
        let ours = train(&held.device, float);
        if !held.device.supports_dtype(floats(float)) {
            let message = ours.unwrap_err().to_string();
            for part in ["stem.weight", "Wgpu", "can't compute in", &float.to_string()] {
                assert!(message.contains(part), "{message}");
            }
            continue;
        }
        let flex = train(&Device::flex(), float).unwrap();
        for (ours, flex) in ours.unwrap().iter().flatten().zip(flex.iter().flatten()) {
            assert!((ours - flex).abs() < HALF_TOLERANCE, "{float}: {ours} is not {flex}");
        }
    }
}

#[test]
fn a_model_on_two_devices_is_refused() {
    let held = hold();
    let ad = held.device.clone().autodiff();
    let mut net = seeded(1, |device| Net::new(2, device)).fork(&ad);
    net.head = net.head.fork(&device());
    let outcome = on_ranks(1, |world| Dedicate::new(&Mesh::new(&world)?).apply(net.clone()));
    let message = outcome.unwrap_err().to_string();
    for part in ["\"stem.weight\" is on", "Wgpu", "\"head.weight\" is on", "Flex", "one device"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_dedicated_model_may_be_moved_before_it_is_sharded() {
    let held = hold();
    let ad = held.device.clone().autodiff();
    let net = seeded(2, |device| Net::new(2, device));
    let train = |moved: bool| {
        let ranks = on_ranks(2, |world| {
            let mesh = Mesh::new(&world)?;
            let home = if moved { device() } else { ad.clone() };
            let (net, _) = Dedicate::new(&mesh).mode(Mode::Z3).apply(net.clone().fork(&home))?;
            let (mut net, handle) = FullyShard::new(&mesh).apply(net.fork(&ad))?;
            let mut muon = MuonConfig::new().init(&handle)?;
            let mut losses = Vec::new();
            for step in 0..3 {
                let input = batch(step, world.rank().0).to_device(&held.device).autodiff();
                let loss = loss(net.forward(input));
                losses.push(loss.clone().into_scalar::<f32>());
                let gradients = GradientsParams::from_grads(loss.backward(), &net);
                net = muon.step(0.02, net, gradients)?;
            }
            Ok(losses)
        });
        ranks.unwrap()
    };
    assert_eq!(train(true), train(false));
}
