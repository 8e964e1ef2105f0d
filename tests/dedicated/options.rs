//! Training options across owned, sharded and replicated parameters: groups, accumulation, clipping,
//! scaling.

use crate::support::*;
use burn::lr_scheduler::LrSchedulerConfig::{Constant, Cosine, Linear};
use burn::lr_scheduler::constant::ConstantLr;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::sequential::SequentialLrSchedulerConfig;
use burn::module::{Module, Param, ParamGroup};
use burn::optim::{GradientsAccumulator, GradientsParams, SgdConfig};
use burn::tensor::{Tensor, TensorData};
use dmuon::{
    AdamW, Dedicate, Dedicated, Error, FullyShard, LossScaler, Mesh, Mode, Muon, MuonConfig,
    NonFinite, OptimizerGroup, Rank, Result, Route, World,
};

/// (replicate, shard).
const MESHES: [(usize, usize); 4] = [(1, 1), (1, 2), (2, 2), (1, 3)];

fn net() -> Net {
    seeded(81, |device| Net::new(2, device))
}

/// Dedicates and shards a rank's own copy.
fn distribute(
    world: &World,
    net: &Net,
    (replicate, shard): (usize, usize),
    mode: Mode,
) -> Result<(Net, Dedicated)> {
    let mesh = Mesh::hsdp(world, replicate, shard)?;
    let (net, _) = Dedicate::new(&mesh).mode(mode).apply(net.clone().fork(&device()))?;
    FullyShard::new(&mesh).apply(net)
}

fn backward(net: &Net, step: usize, rank: usize) -> GradientsParams {
    GradientsParams::from_grads(loss(net.forward(batch(step, rank))).backward(), net)
}

/// Trains two ranks of a 1 x 2 mesh; returns all weights.
fn train(
    config: &MuonConfig,
    step: impl Fn(&mut Muon, &Dedicated, Net, usize, usize) -> Result<Net> + Sync,
) -> Result<Named> {
    let net = net();
    let mut weights = on_ranks(2, |world| {
        let (mut net, handle) = distribute(&world, &net, (1, 2), Mode::Z2)?;
        let mut muon = config.init(&handle)?;
        for number in 0..4 {
            net = step(&mut muon, &handle, net, number, world.rank().0)?;
        }
        Ok(handle.full_model(&net, Rank(0))?.map(|full| values(&full)))
    })?;
    Ok(weights[0].take().unwrap())
}

fn plainly(muon: &mut Muon, net: Net, lr: f64, step: usize, rank: usize) -> Result<Net> {
    let gradients = backward(&net, step, rank);
    muon.step(lr, net, gradients)
}

fn trained(config: &MuonConfig) -> Named {
    train(config, |muon, _, net, step, rank| plainly(muon, net, 0.02, step, rank)).unwrap()
}

fn assert_same_weights(a: &Named, b: &Named) {
    assert!(a.keys().eq(b.keys()));
    a.iter().for_each(|(name, weight)| assert_same_bits(weight, &b[name], name));
}

fn fails(config: &MuonConfig, parts: &[&str]) {
    let message = train(config, |_, _, net, _, _| Ok(net)).unwrap_err().to_string();
    parts.iter().for_each(|part| assert!(message.contains(part), "{part:?} in {message}"));
}

// ---- groups and schedules

#[test]
fn a_group_of_everything_is_the_same_as_settings_for_everything() {
    let adamw = AdamW { beta_1: 0.7, beta_2: 0.9, weight_decay: 0.3, ..AdamW::default() };
    let plain = MuonConfig::new().with_adamw(adamw).with_momentum(0.8).with_weight_decay(0.3);
    let all = OptimizerGroup::new("all", ["*"])
        .with_betas(0.7, 0.9)
        .with_momentum(0.8)
        .with_weight_decay(0.3)
        .with_lr_scale(0.5);
    let grouped = MuonConfig::new().with_group(all);
    let twice = |muon: &mut Muon, net, step, rank| plainly(muon, net, 0.04, step, rank);
    let grouped = train(&grouped, |muon, _, net, step, rank| twice(muon, net, step, rank));
    assert_same_weights(&grouped.unwrap(), &trained(&plain));
}

#[test]
fn a_group_alone_changes_and_a_rate_of_nothing_changes_nothing() {
    let before = values(&net());
    let still = OptimizerGroup::new("still", ["layers.0.*", "head.*"]).with_lr_scale(0.0);
    let after = trained(&MuonConfig::new().with_group(still));
    for (name, weight) in &after {
        let is_still = name.starts_with("layers.0.") || name.starts_with("head.");
        assert_eq!(weight == &before[name], is_still, "{name}");
    }
}

#[test]
fn decay_is_decoupled_under_every_route_and_exclusions_have_none() {
    let adamw = AdamW { weight_decay: 0.5, ..AdamW::default() };
    let decayed = MuonConfig::new().with_adamw(adamw).with_weight_decay(0.5);
    let [with, without] = [&decayed, &decayed.clone().without_decay(["*"])].map(trained);
    assert_same_weights(&without, &trained(&MuonConfig::new().with_weight_decay(0.0)));
    assert!(with.iter().all(|(name, weight)| weight != &without[name]));
    let some = trained(&decayed.without_decay(["*.bias", "*norm*"]));
    // One step later weights influence each other: the first step tells.
    assert!(some.keys().any(|name| name.contains("norm")));
    let first = |config: &MuonConfig| {
        train(config, |muon, _, net, step, rank| match step {
            0 => plainly(muon, net, 0.02, step, rank),
            _ => Ok(net),
        })
        .unwrap()
    };
    let decayed = MuonConfig::new().with_adamw(adamw).with_weight_decay(0.5);
    let (all, none) = (first(&decayed), first(&decayed.clone().without_decay(["*"])));
    let some = first(&decayed.without_decay(["*.bias", "*norm*"]));
    for (name, weight) in &some {
        let excluded = name.ends_with(".bias") || name.contains("norm");
        assert_eq!(weight, if excluded { &none[name] } else { &all[name] }, "{name}");
    }
}

/// Two steps on gradients of zero: what is left is decay alone.
fn decayed_only(config: &MuonConfig, net: &Net, lr: f64) -> Named {
    let mut weights = on_ranks(2, |world| {
        let mesh = Mesh::new(&world)?;
        let dedicate = Dedicate::new(&mesh).route("head.weight", Route::AdamWOwned);
        let (net, _) = dedicate.apply(net.clone().fork(&device()))?;
        let shard = FullyShard::new(&mesh).route("stem.weight", Route::Replicated);
        let (mut net, handle) = shard.apply(net)?;
        for route in [Route::Muon, Route::AdamWOwned, Route::AdamWSharded, Route::Replicated] {
            assert_ne!(handle.routes().count(route).0, 0, "{route:?}");
        }
        let mut muon = config.init(&handle)?;
        for step in 0..2 {
            let loss = loss(net.forward(batch(step, world.rank().0))) * 0.0;
            let gradients = GradientsParams::from_grads(loss.backward(), &net);
            net = muon.step(lr, net, gradients)?;
        }
        Ok::<_, Error>(handle.full_model(&net, Rank(0))?.map(|full| values(&full)))
    })
    .unwrap();
    weights[0].take().unwrap()
}

#[test]
fn without_gradients_every_route_shrinks_by_one_minus_rate_times_decay() {
    let (lr, decay) = (0.02, 0.5);
    let keep = (1.0 - lr * decay) as f32;
    let net = net();
    let adamw = AdamW { weight_decay: decay, ..AdamW::default() };
    let config = MuonConfig::new().with_adamw(adamw).with_weight_decay(decay);
    let after = decayed_only(&config.without_decay(["*.bias", "*norm*"]), &net, lr);
    for (name, before) in values(&net) {
        let excluded = name.ends_with(".bias") || name.contains("norm");
        let shrink = |w: &f32| if excluded { *w } else { *w * keep * keep };
        let expected: Vec<f32> = before.iter().map(shrink).collect();
        assert_same_bits(&after[&name], &expected, &name);
    }
}

#[test]
fn a_groups_rate_may_change_between_steps_and_ranks_must_agree_on_it() {
    let group = || OptimizerGroup::new("layers", ["layers.*"]);
    let config = MuonConfig::new().with_group(group());
    let changed = train(&config, |muon, _, net, step, rank| {
        muon.set_lr_scale("layers", 0.25)?;
        plainly(muon, net, 0.02, step, rank)
    });
    let fixed = MuonConfig::new().with_group(group().with_lr_scale(0.25));
    assert_same_weights(&changed.unwrap(), &trained(&fixed));
    let message = |set: fn(&mut Muon, usize) -> Result<()>| {
        let outcome = train(&config, |muon, _, net, step, rank| {
            set(muon, rank)?;
            plainly(muon, net, 0.02, step, rank)
        });
        outcome.unwrap_err().to_string()
    };
    let differ = message(|muon, rank| muon.set_lr_scale("layers", 1.0 + rank as f64));
    assert!(differ.contains("rank 1") && differ.contains("optimizer settings"), "{differ}");
    let unknown = message(|muon, _| muon.set_lr_scale("heads", 1.0));
    assert!(unknown.contains("no group \"heads\"") && unknown.contains("layers"), "{unknown}");
}

#[test]
fn schedules_apply_to_both_optimizers() {
    let schedule = || {
        let warm_up = Linear(LinearLrSchedulerConfig::new(1e-4, 0.03, 2));
        let cosine = Cosine(CosineAnnealingLrSchedulerConfig::new(0.03, 4));
        SequentialLrSchedulerConfig::new(vec![warm_up, cosine], vec![2]).init().unwrap()
    };
    let expected: Vec<f64> = {
        let mut schedule = schedule();
        (0..4).map(|_| schedule.step().base()).collect()
    };
    assert!(expected[0] < expected[1], "it warms up: {expected:?}");
    let config = MuonConfig::new();
    let scheduled = train(&config, |muon, _, net, step, rank| {
        let mut schedule = schedule();
        let rates = (0..=step).map(|_| schedule.step()).last().unwrap();
        let gradients = backward(&net, step, rank);
        muon.step(rates, net, gradients)
    });
    let by_hand =
        train(&config, |muon, _, net, step, rank| plainly(muon, net, expected[step], step, rank));
    assert_same_weights(&scheduled.unwrap(), &by_hand.unwrap());
}

#[test]
fn a_schedulers_groups_decide_for_each_parameter() {
    let before = values(&net());
    let after = train(&MuonConfig::new(), |muon, _, net, step, rank| {
        let schedule = SequentialLrSchedulerConfig::new(vec![Constant(0.02)], vec![]);
        let still = ParamGroup::from_predicate("layers.");
        let mut schedule = schedule.init().unwrap().with_group(still, ConstantLr::from(0.0));
        let gradients = backward(&net, step, rank);
        muon.step(schedule.step(), net, gradients)
    });
    for (name, weight) in &after.unwrap() {
        assert_eq!(weight == &before[name], name.starts_with("layers."), "{name}");
    }
}

#[test]
fn groups_that_make_no_sense_are_refused() {
    let group = |name: &str, pattern: &str| OptimizerGroup::new(name, [pattern]);
    let two = MuonConfig::new().with_group(group("a", "layers.*")).with_group(group("b", "*.up.*"));
    fails(&two, &["\"layers.0.up.", "\"a\"", "\"b\""]);
    fails(&MuonConfig::new().with_group(group("a", "layer.*")), &["\"layer.*\"", "\"a\"", "stem"]);
    let momentum = group("a", "*").with_momentum(1.0);
    fails(&MuonConfig::new().with_group(momentum), &["momentum", "[0, 1)"]);
    let betas = group("a", "*").with_betas(0.9, -0.1);
    fails(&MuonConfig::new().with_group(betas), &["beta 2", "[0, 1)"]);
    for norm in [0.0, -1.0, f64::NAN] {
        fails(&MuonConfig::new().with_max_norm(norm), &["max norm", "above 0"]);
        let group = group("a", "*").with_max_norm(norm);
        fails(&MuonConfig::new().with_group(group), &["max norm", "above 0"]);
    }
}

// ---- accumulation

const MICRO_BATCHES: usize = 3;

/// Plain gradients of each rank, summed over its micro-batches in order.
fn summed(net: &Net, rank: usize) -> Named {
    let of = |micro| plain_gradients(net, |net| loss(net.forward(batch(micro, rank))));
    let add = |mut sums: Named, more: Named| {
        for (name, sum) in &mut sums {
            sum.iter_mut().zip(&more[name]).for_each(|(sum, elem)| *sum += elem);
        }
        sums
    };
    (0..MICRO_BATCHES).map(of).reduce(add).unwrap()
}

/// One step of plain SGD with rate 1 on the tree mean over ranks of their sums.
fn expected_step(net: &Net, num_ranks: usize) -> Named {
    let ranks: Vec<Named> = (0..num_ranks).map(|rank| summed(net, rank)).collect();
    let mut weights = values(net);
    for (name, weight) in &mut weights {
        let of_ranks: Vec<Vec<f32>> = ranks.iter().map(|sums| sums[name].clone()).collect();
        weight.iter_mut().zip(tree_mean(&of_ranks)).for_each(|(weight, mean)| *weight -= mean);
    }
    weights
}

/// One step of SGD with rate 1 on whatever gradients `accumulate` gives; all weights.
fn stepped(
    mesh: (usize, usize),
    mode: Mode,
    accumulate: impl Fn(&Net, &Dedicated, usize) -> GradientsParams + Sync,
) -> Result<Named> {
    let net = net();
    let mut weights = on_ranks(mesh.0 * mesh.1, |world| {
        let (net, handle) = distribute(&world, &net, mesh, mode)?;
        let gradients = accumulate(&net, &handle, world.rank().0);
        let net = handle.step_with(&mut SgdConfig::new().init(), 1.0, net, gradients)?;
        Ok(handle.full_model(&net, Rank(0))?.map(|full| values(&full)))
    })?;
    Ok(weights[0].take().unwrap())
}

#[test]
fn micro_batches_without_sync_sum_on_the_rank_to_the_bit() {
    let net = net();
    for mesh in MESHES {
        let expected = expected_step(&net, mesh.0 * mesh.1);
        for mode in [Mode::Z2, Mode::Z3] {
            let found = stepped(mesh, mode, |net, handle, rank| {
                let nothing = handle.no_sync(|| {
                    let micro = (0..MICRO_BATCHES - 1).map(|micro| backward(net, micro, rank));
                    micro.map(|gradients| gradients.len()).sum::<usize>()
                });
                assert_eq!(nothing, 0, "no gradient is visible inside");
                backward(net, MICRO_BATCHES - 1, rank)
            });
            assert_same_weights(&found.unwrap(), &expected);
        }
    }
}

#[test]
fn micro_batches_with_sync_add_up_within_rounding() {
    /// Three sums of three terms below 1 in another order, and the weight's own rounding.
    const ROUNDING: f32 = 1e-6;
    for mesh in MESHES {
        let expected = expected_step(&net(), mesh.0 * mesh.1);
        let found = stepped(mesh, Mode::Z3, |net, _, rank| {
            let mut accumulator = GradientsAccumulator::new();
            for micro in 0..MICRO_BATCHES {
                accumulator.accumulate(net, backward(net, micro, rank));
            }
            accumulator.grads()
        });
        for (name, weight) in found.unwrap() {
            for (ours, exact) in weight.iter().zip(&expected[&name]) {
                assert!((ours - exact).abs() < ROUNDING, "{mesh:?} {name}: {ours} {exact}");
            }
        }
    }
}

#[test]
fn weights_travel_once_for_all_micro_batches_in_z2() {
    let net = net();
    on_ranks(2, |world| {
        let (net, handle) = distribute(&world, &net, (1, 2), Mode::Z2)?;
        let calls = || {
            let counters = world.recorder().counters();
            use dmuon::OpKind::{AllGather, Broadcast, Reduce, ReduceScatter};
            let count = |op| counters.op(op).num_calls;
            (count(Broadcast) + count(AllGather), count(Reduce) + count(ReduceScatter))
        };
        world.recorder().reset_counters();
        backward(&net, 0, world.rank().0);
        let (weights, gradients) = calls();
        handle.release()?;
        world.recorder().reset_counters();
        handle.no_sync(|| {
            backward(&net, 0, world.rank().0);
            backward(&net, 1, world.rank().0);
        });
        assert_eq!(calls(), (weights, 0));
        backward(&net, 2, world.rank().0);
        assert_eq!(calls(), (weights, gradients));
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_step_before_the_last_micro_batch_is_refused() {
    let parts = ["no_sync", "backward outside it"];
    let check = |accumulate: fn(&Net, &Dedicated, usize) -> GradientsParams| {
        let message = stepped((1, 2), Mode::Z2, accumulate).unwrap_err().to_string();
        parts.iter().for_each(|part| assert!(message.contains(part), "{part:?} in {message}"));
    };
    check(|net, handle, rank| handle.no_sync(|| backward(net, 0, rank)));
    let outcome = train(&MuonConfig::new(), |muon, handle, net, step, rank| {
        handle.no_sync(|| plainly(muon, net, 0.1, step, rank))
    });
    let message = outcome.unwrap_err().to_string();
    assert!(message.contains("no_sync"), "{message}");
}

#[test]
fn sums_survive_an_evaluation_between_micro_batches() {
    let expected = expected_step(&net(), 2);
    let found = stepped((1, 2), Mode::Z2, |net, handle, rank| {
        handle.no_sync(|| drop(backward(net, 0, rank)));
        let _ = net.valid().forward(batch(7, rank).inner());
        handle.full_model(net, Rank(1)).unwrap();
        handle.no_sync(|| drop(backward(net, 1, rank)));
        backward(net, 2, rank)
    });
    assert_same_weights(&found.unwrap(), &expected);
}

// ---- clipping and scaling

/// Norms are sums of a few hundred squares in `f64`; what differs is the averaged gradients' f32.
const NORM_ROUNDING: f64 = 1e-6;

/// The norm of the mean over ranks of plain gradients, in one process.
fn exact_norm(net: &Net, num_ranks: usize, of: impl Fn(&str) -> bool) -> f64 {
    let plain = |rank| plain_gradients(net, |net: &Net| loss(net.forward(batch(0, rank))));
    let ranks: Vec<Named> = (0..num_ranks).map(plain).collect();
    let squares = ranks[0].keys().filter(|name| of(name)).map(|name| {
        let of_ranks: Vec<Vec<f32>> = ranks.iter().map(|rank| rank[name].clone()).collect();
        tree_mean(&of_ranks).iter().map(|&elem| f64::from(elem).powi(2)).sum::<f64>()
    });
    squares.sum::<f64>().sqrt()
}

#[test]
fn the_norm_counts_every_element_once() {
    let net = net();
    for mesh in MESHES {
        let exact = exact_norm(&net, mesh.0 * mesh.1, |_| true);
        let reports = on_ranks(mesh.0 * mesh.1, |world| {
            let (net, handle) = distribute(&world, &net, mesh, Mode::Z2)?;
            let mut muon = MuonConfig::new().with_max_norm(exact / 4.0).init(&handle)?;
            let gradients = backward(&net, 0, world.rank().0);
            muon.step(0.0, net, gradients)?;
            Ok((muon.report().gradient_norm, muon.report().clip_factor))
        });
        let reports = reports.unwrap();
        assert!(reports.iter().all(|report| *report == reports[0]), "alike on every rank");
        let (norm, factor) = reports[0];
        assert!((norm / exact - 1.0).abs() < NORM_ROUNDING, "{mesh:?}: {norm} {exact}");
        assert!((factor * 4.0 - 1.0).abs() < NORM_ROUNDING, "{mesh:?}: {factor}");
    }
}

/// Multiplies every gradient whose name `of` accepts.
fn multiplied(
    net: &Net,
    gradients: GradientsParams,
    factor: f32,
    of: impl Fn(&str) -> bool,
) -> GradientsParams {
    struct Multiply<F>(GradientsParams, f32, F);
    impl<F: Fn(&str) -> bool> Each for Multiply<F> {
        fn each<const D: usize>(&mut self, name: String, param: &Param<Tensor<D>>) {
            let Some(gradient) = self.0.remove::<D>(param.id) else { return };
            let shape = gradient.shape();
            let mut elems: Vec<f32> = gradient.into_data().try_to_vec().unwrap();
            if (self.2)(&name) {
                elems.iter_mut().for_each(|elem| *elem *= self.1);
            }
            let data = TensorData::new(elems, shape);
            self.0.register(param.id, Tensor::<D>::from_data(data, &burn::tensor::Device::flex()));
        }
    }
    visit(net, Multiply(gradients, factor, of)).0
}

#[test]
fn clipping_multiplies_raw_gradients_and_nothing_else() {
    let of_layers = |name: &str| name.starts_with("layers.");
    let layers = || OptimizerGroup::new("layers", ["layers.*"]);
    let everything = MuonConfig::new().with_max_norm(1e-2);
    let group_alone = MuonConfig::new().with_group(layers().with_max_norm(1e-2));
    for (config, clips) in [
        (everything, (|_| true) as fn(&str) -> bool),
        (group_alone, |name: &str| name.starts_with("layers.")),
    ] {
        let factors = std::sync::Mutex::new(vec![1.0; 4]);
        let clipped = train(&config, |muon, _, net, step, rank| {
            let net = plainly(muon, net, 0.02, step, rank)?;
            factors.lock().unwrap()[step] = muon.report().clip_factor;
            Ok(net)
        });
        let factors = factors.into_inner().unwrap();
        assert!(factors.iter().all(|&factor| factor < 0.5), "{factors:?}");
        let by_hand = train(&MuonConfig::new(), |muon, _, net, step, rank| {
            let gradients = backward(&net, step, rank);
            let gradients = multiplied(&net, gradients, factors[step] as f32, clips);
            muon.step(0.02, net, gradients)
        });
        assert_same_weights(&clipped.unwrap(), &by_hand.unwrap());
    }
    let net = net();
    let both = exact_norm(&net, 2, of_layers).hypot(exact_norm(&net, 2, |name| !of_layers(name)));
    assert!((both / exact_norm(&net, 2, |_| true) - 1.0).abs() < NORM_ROUNDING);
}

#[test]
fn a_scaling_factor_undoes_a_factor_of_the_loss() {
    let scaled = train(&MuonConfig::new(), |muon, handle, net, step, rank| {
        handle.set_gradient_scaling_factor(0.25)?;
        let backward = (loss(net.forward(batch(step, rank))) * 4.0).backward();
        let gradients = GradientsParams::from_grads(backward, &net);
        muon.step(0.02, net, gradients)
    });
    assert_same_weights(&scaled.unwrap(), &trained(&MuonConfig::new()));
    let message = |factor: fn(usize) -> f64| {
        let outcome = train(&MuonConfig::new(), |muon, handle, net, step, rank| {
            handle.set_gradient_scaling_factor(factor(rank))?;
            plainly(muon, net, 0.02, step, rank)
        });
        outcome.unwrap_err().to_string()
    };
    let differ = message(|rank| 1.0 + rank as f64);
    assert!(differ.contains("rank 1") && differ.contains("scaling factor of 2"), "{differ}");
    assert!(message(|_| 0.0).contains("above 0"));
}

#[test]
fn an_overflow_on_one_rank_skips_the_step_everywhere_and_leaves_no_trace() {
    let config = MuonConfig::new().with_non_finite(NonFinite::Skip);
    let net = net();
    for mesh in [(1, 2), (2, 2)] {
        let run = |overflows: bool| {
            let mut ranks = on_ranks(mesh.0 * mesh.1, |world| {
                let (mut net, handle) = distribute(&world, &net, mesh, Mode::Z3)?;
                let mut muon = config.init(&handle)?;
                let mut scaler = LossScaler::new(&handle)?.with_growth_interval(2);
                let rank = world.rank().0;
                let mut scales = Vec::new();
                for step in 0..4 {
                    if overflows && step == 2 {
                        let x = if rank == 1 { f32::MAX } else { 1.0 };
                        let backward =
                            scaler.scaled(loss(net.forward(batch(9, rank)) * x)).backward();
                        let gradients = GradientsParams::from_grads(backward, &net);
                        net = muon.step(0.02, net, gradients)?;
                        assert!(muon.report().skipped.is_some(), "rank {rank}");
                        scaler.update(muon.report())?;
                    }
                    let backward = scaler.scaled(loss(net.forward(batch(step, rank)))).backward();
                    let gradients = GradientsParams::from_grads(backward, &net);
                    net = muon.step(0.02, net, gradients)?;
                    scaler.update(muon.report())?;
                    scales.push(scaler.scale().log2());
                }
                let full = handle.full_model(&net, Rank(0))?;
                Ok((scales, full.map(|full| values(&full))))
            })
            .unwrap();
            let weights = ranks[0].1.take().unwrap();
            assert!(ranks.iter().all(|(scales, _)| *scales == ranks[0].0));
            (ranks.remove(0).0, weights)
        };
        let (scales, weights) = run(true);
        assert_eq!(scales, [16.0, 17.0, 16.0, 17.0]);
        let (scales, untroubled) = run(false);
        assert_eq!(scales, [16.0, 17.0, 17.0, 18.0]);
        assert_same_weights(&weights, &untroubled);
    }
}

#[test]
fn a_loss_scale_out_of_range_is_refused() {
    let outcome = train(&MuonConfig::new(), |_, handle, net, _, _| {
        LossScaler::new(handle)?.with_scale(0.5)?;
        Ok(net)
    });
    assert!(matches!(outcome, Err(Error::OutOfRange { .. })), "{outcome:?}");
}
