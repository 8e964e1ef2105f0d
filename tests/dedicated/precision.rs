//! Half-precision compute and communication with single-precision masters, to the bit.

use crate::support::*;
use burn::module::{Module, ModuleMapper, Param};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{DType, FloatDType, Tensor};
use dmuon::{
    Dedicate, Dedicated, FloatType, FullyShard, LossScaler, Mesh, Mode, MuonConfig, NonFinite,
    OpKind, Rank, Result, World,
};

const HALVES: [(FloatType, FloatDType); 2] =
    [(FloatType::Bf16, FloatDType::BF16), (FloatType::F16, FloatDType::F16)];

fn net() -> Net {
    seeded(91, |device| Net::new(2, device))
}

/// The loss with activations in `dtype`.
fn narrow_loss(net: &Net, dtype: FloatDType, step: usize, rank: usize) -> Tensor<1> {
    loss(net.forward(batch(step, rank).cast(dtype)).cast(FloatDType::F32))
}

fn distribute(
    world: &World,
    net: &Net,
    (replicate, shard): (usize, usize),
    mode: Mode,
    (weights, gradients): (FloatType, FloatType),
) -> Result<(Net, Dedicated)> {
    let mesh = Mesh::hsdp(world, replicate, shard)?;
    let dedicate = Dedicate::new(&mesh).mode(mode).compute_type(weights).reduce_type(gradients);
    let (net, _) = dedicate.apply(net.clone().fork(&device()))?;
    FullyShard::new(&mesh).apply(net)
}

/// A copy of the model with parameters in `dtype`.
fn narrowed(net: &Net, dtype: FloatDType) -> Net {
    struct Narrow(FloatDType);
    impl ModuleMapper for Narrow {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let (id, value, mapper) = param.consume();
            let narrow = Tensor::from_inner(value.inner().cast(self.0)).require_grad();
            Param::from_mapped_value(id, narrow, mapper)
        }
    }
    net.clone().fork(&device()).map(&mut Narrow(dtype))
}

/// Plain Burn's gradients of the narrowed model, as `f32`.
fn plain(net: &Net, dtype: FloatDType, step: usize, rank: usize) -> Named {
    struct Widen<'a>(&'a GradientsParams, Named);
    impl Each for Widen<'_> {
        fn each<const D: usize>(&mut self, name: String, param: &Param<Tensor<D>>) {
            let gradient = self.0.get::<D>(param.id).unwrap();
            assert_ne!(gradient.dtype(), DType::F32);
            let wide = gradient.cast(FloatDType::F32).into_data().try_to_vec().unwrap();
            self.1.insert(name, wide);
        }
    }
    let net = narrowed(net, dtype);
    let backward = narrow_loss(&net, dtype, step, rank).backward();
    let gradients = GradientsParams::from_grads(backward, &net);
    visit(&net, Widen(&gradients, Named::new())).1
}

fn rounded(values: &[f32], dtype: FloatDType) -> Vec<f32> {
    let tensor = Tensor::<1>::from_floats(values, &burn::tensor::Device::flex());
    tensor.cast(dtype).cast(FloatDType::F32).into_data().try_to_vec().unwrap()
}

/// Weights after a step of SGD with rate 1 on the mean over ranks.
fn stepped(mean: impl Fn(&[Vec<f32>]) -> Vec<f32>, net: &Net, ranks: &[Named]) -> Named {
    let mut weights = values(net);
    for (name, weight) in &mut weights {
        let of_ranks: Vec<Vec<f32>> = ranks.iter().map(|rank| rank[name].clone()).collect();
        weight.iter_mut().zip(mean(&of_ranks)).for_each(|(weight, mean)| *weight -= mean);
    }
    weights
}

#[test]
fn masters_step_on_the_mean_of_plain_half_precision_gradients() {
    let net = net();
    for (float, dtype) in HALVES {
        for mesh in [(1, 1), (1, 2), (2, 2), (1, 3)] {
            let num_ranks = mesh.0 * mesh.1;
            let ranks: Vec<Named> =
                (0..num_ranks).map(|rank| plain(&net, dtype, 0, rank)).collect();
            let expected = stepped(tree_mean, &net, &ranks);
            for mode in [Mode::Z2, Mode::Z3] {
                let types = (float, FloatType::F32);
                let found = on_ranks(num_ranks, |world| {
                    let (net, handle) = distribute(&world, &net, mesh, mode, types)?;
                    let backward = narrow_loss(&net, dtype, 0, world.rank().0).backward();
                    let gradients = GradientsParams::from_grads(backward, &net);
                    let mut sgd = SgdConfig::new().init();
                    let net = handle.step_with(&mut sgd, 1.0, net, gradients)?;
                    Ok(handle.full_model(&net, Rank(0))?.map(|full| values(&full)))
                });
                for (name, weight) in found.unwrap()[0].take().unwrap() {
                    let what = format!("{float} {mesh:?} {mode} {name}");
                    assert_same_bits(&weight, &expected[&name], &what);
                }
            }
        }
    }
}

#[test]
fn gradients_may_travel_in_half_precision_and_are_summed_in_single() {
    let net = net();
    let dtype = FloatDType::BF16;
    let ranks: Vec<Named> = (0..3).map(|rank| plain(&net, dtype, 0, rank)).collect();
    // Each rank's gradient is in bf16 already; the sum is rounded once, then divided.
    let mean = |of_ranks: &[Vec<f32>]| {
        let n = of_ranks.len() as f32;
        let sum: Vec<f32> = tree_sum(of_ranks);
        rounded(&sum, dtype).into_iter().map(|sum| sum / n).collect()
    };
    let expected = stepped(mean, &net, &ranks);
    let found = on_ranks(3, |world| {
        let types = (FloatType::Bf16, FloatType::Bf16);
        let (net, handle) = distribute(&world, &net, (1, 3), Mode::Z3, types)?;
        world.recorder().reset_counters();
        let backward = narrow_loss(&net, dtype, 0, world.rank().0).backward();
        let counters = world.recorder().counters();
        let gradients = GradientsParams::from_grads(backward, &net);
        let net = handle.step_with(&mut SgdConfig::new().init(), 1.0, net, gradients)?;
        let moved = counters.op(OpKind::Reduce).payload_bytes;
        Ok((moved, handle.full_model(&net, Rank(0))?.map(|full| values(&full))))
    });
    let mut found = found.unwrap();
    let matrices: usize = 2 * (8 * 24 + 24 * 8);
    let moved: u64 = found.iter().map(|(moved, _)| moved).sum();
    assert_eq!(moved, 2 * 2 * matrices as u64, "two of three ranks send two bytes an element");
    for (name, weight) in found[0].1.take().unwrap() {
        assert_same_bits(&weight, &expected[&name], &name);
    }
}

fn tree_sum(ranks: &[Vec<f32>]) -> Vec<f32> {
    match ranks {
        [one] => one.clone(),
        _ => {
            let (left, right) = ranks.split_at(ranks.len().next_power_of_two() / 2);
            tree_sum(left).iter().zip(tree_sum(right)).map(|(a, b)| a + b).collect()
        }
    }
}

/// Trains with Muon in half precision; all masters.
fn train(mesh: (usize, usize), mode: Mode, types: (FloatType, FloatType), lr: f64) -> Named {
    let net = net();
    let mut ranks = on_ranks(mesh.0 * mesh.1, |world| {
        let (mut net, handle) = distribute(&world, &net, mesh, mode, types)?;
        let config = MuonConfig::new().with_non_finite(NonFinite::Skip).with_weight_decay(0.0);
        let mut muon = config.init(&handle)?;
        let mut scaler = LossScaler::new(&handle)?.with_scale(1024.0)?;
        let dtype = if types.0 == FloatType::F16 { FloatDType::F16 } else { FloatDType::BF16 };
        for step in 0..5 {
            let loss = narrow_loss(&net, dtype, step, world.rank().0);
            let gradients = GradientsParams::from_grads(scaler.scaled(loss).backward(), &net);
            net = muon.step(lr, net, gradients)?;
            assert_eq!(muon.report().skipped, None);
            scaler.update(muon.report())?;
        }
        Ok(handle.full_model(&net, Rank(0))?.map(|full| values(&full)))
    })
    .unwrap();
    ranks[0].take().unwrap()
}

#[test]
fn modes_and_meshes_of_one_world_agree_to_the_bit() {
    for (float, _) in HALVES {
        let types = (float, FloatType::F32);
        let first = train((1, 4), Mode::Z2, types, 0.02);
        for (mesh, mode) in [((1, 4), Mode::Z3), ((2, 2), Mode::Z2), ((4, 1), Mode::Z3)] {
            for (name, weight) in train(mesh, mode, types, 0.02) {
                let what = format!("{float} {mesh:?} {mode} {name}");
                assert_same_bits(&weight, &first[&name], &what);
            }
        }
    }
}

#[test]
fn updates_too_small_for_half_precision_are_not_lost() {
    let before = values(&net());
    let after = train((1, 2), Mode::Z3, (FloatType::Bf16, FloatType::Bf16), 1e-6);
    let name = "layers.0.up.weight";
    let moved = before[name].iter().zip(&after[name]).filter(|(a, b)| a != b).count();
    assert!(moved > before[name].len() / 2, "{moved} elements moved");
    let [before, after] =
        [&before[name], &after[name]].map(|weight| rounded(weight, FloatDType::BF16));
    let seen = before.iter().zip(&after).filter(|(a, b)| a != b).count();
    assert!(seen < before.len() / 20, "{seen} of them show in bf16");
}

#[test]
fn weights_travel_at_half_the_bytes() {
    let net = net();
    let moved = |float: FloatType, dtype: FloatDType| {
        let moved = on_ranks(2, |world| {
            let (net, _) = distribute(&world, &net, (1, 2), Mode::Z2, (float, FloatType::F32))?;
            world.recorder().reset_counters();
            narrow_loss(&net, dtype, 0, world.rank().0).backward();
            let counters = world.recorder().counters();
            let bytes = |op| counters.op(op).payload_bytes;
            Ok(bytes(OpKind::Broadcast) + bytes(OpKind::AllGather))
        });
        moved.unwrap().iter().sum::<u64>()
    };
    let full = moved(FloatType::F32, FloatDType::F32);
    for (float, dtype) in HALVES {
        assert_eq!(2 * moved(float, dtype), full, "{float}");
    }
}
