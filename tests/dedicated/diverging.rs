//! Sharded models whose ranks touch, freeze or step different things, and scopes that end badly.

use crate::support::*;
use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Int, Tensor, TensorData};
use dmuon::{
    Dedicate, Dedicated, FloatType, FullyShard, Hooked, LossScaler, Mesh, Mode, MuonConfig,
    NonFinite, Rank, Result, Route, World,
};
use std::panic::{AssertUnwindSafe, catch_unwind};

const VOCABULARY: usize = 11;

fn ids(step: usize, rank: usize) -> Tensor<2, Int> {
    let token = |i: usize| ((i * 5 + step * 3 + rank * 2) % VOCABULARY) as i32;
    let data: Vec<i32> = (0..BATCH * SEQ).map(token).collect();
    Tensor::from_data(TensorData::new(data, [BATCH, SEQ]), &device())
}

/// Used in the order embedding, layers, head; listed the other way around. Ties if there is no head.
#[derive(Module, Debug)]
struct Backwards {
    head: Option<Linear>,
    layers: Vec<Hooked<Linear>>,
    embedding: Embedding,
}

impl Backwards {
    fn new(tied: bool) -> Self {
        seeded(21, |device| Self {
            head: (!tied).then(|| LinearConfig::new(WIDTH, VOCABULARY).init(device)),
            layers: (0..2)
                .map(|_| Hooked::new(LinearConfig::new(WIDTH, WIDTH).init(device)))
                .collect(),
            embedding: EmbeddingConfig::new(VOCABULARY, WIDTH).init(device),
        })
    }

    fn loss(&self, step: usize, rank: usize, skipped: Option<usize>) -> Tensor<1> {
        let mut x = self.embedding.forward(ids(step, rank));
        for (number, layer) in self.layers.iter().enumerate() {
            if skipped != Some(number) {
                x = layer.run(x, |linear, x| linear.forward(x));
            }
        }
        loss(match &self.head {
            Some(head) => head.forward(x),
            None => x.matmul(self.embedding.weight.val().transpose().unsqueeze()),
        })
    }
}

fn shard<M: Module>(world: &World, model: &M, mode: Mode) -> Result<(M, Dedicated)> {
    let shard = FullyShard::new(&Mesh::new(world)?).reshard_after_forward(mode == Mode::Z3);
    shard.apply(model.clone().fork(&device()))
}

fn sgd_step<M: Module>(
    handle: &Dedicated,
    model: M,
    gradients: GradientsParams,
    lr: f64,
) -> Result<M> {
    handle.step_with(&mut SgdConfig::new().init(), lr, model, gradients)
}

#[test]
fn a_rank_may_sit_out_or_skip_in_the_first_step_whatever_the_order_of_fields() {
    for tied in [false, true] {
        let model = Backwards::new(tied);
        for mode in [Mode::Z2, Mode::Z3] {
            for odd_step in 0..3 {
                // A tied weight is gathered again in Z3's first forward; ranks must know of it.
                if tied && mode == Mode::Z3 && odd_step == 0 {
                    continue;
                }
                for skipped in [None, Some(0)] {
                    let run = on_ranks(2, |world| {
                        let (mut model, handle) = shard(&world, &model, mode)?;
                        let rank = world.rank().0;
                        for step in 0..3 {
                            let odd = step == odd_step && rank == 1;
                            let gradients = match (odd, skipped) {
                                (true, None) => GradientsParams::new(),
                                (odd, skipped) => {
                                    let skipped = skipped.filter(|_| odd);
                                    let backward = model.loss(step, rank, skipped).backward();
                                    GradientsParams::from_grads(backward, &model)
                                }
                            };
                            model = sgd_step(&handle, model, gradients, 0.1)?;
                        }
                        Ok(())
                    });
                    run.unwrap_or_else(|e| panic!("{tied} {mode} {odd_step} {skipped:?}: {e}"));
                }
            }
        }
    }
}

/// What the first failing rank of two says.
fn message<T: Send>(rank_main: impl Fn(World) -> Result<T> + Sync) -> String {
    match on_ranks(2, rank_main) {
        Ok(_) => panic!("no rank fails"),
        Err(error) => error.to_string(),
    }
}

fn assert_says(message: &str, parts: &[&str]) {
    parts.iter().for_each(|part| assert!(message.contains(part), "{part:?} in {message}"));
}

#[test]
fn a_parameter_frozen_or_left_out_on_one_rank_is_named() {
    let model = Backwards::new(false);
    let frozen = message(|world| {
        let (mut model, handle) = shard(&world, &model, Mode::Z3)?;
        if world.rank() == Rank(1) {
            model.embedding = model.embedding.no_grad();
        }
        let gradients =
            GradientsParams::from_grads(model.loss(0, world.rank().0, None).backward(), &model);
        sgd_step(&handle, model, gradients, 0.1).map(drop)
    });
    assert_says(&frozen, &["rank 1", "\"embedding.weight\" frozen", "rank 0"]);
    let dropped = message(|world| {
        let (model, handle) = shard(&world, &model, Mode::Z3)?;
        let mut gradients =
            GradientsParams::from_grads(model.loss(0, world.rank().0, None).backward(), &model);
        if world.rank() == Rank(1) {
            gradients.remove::<2>(model.embedding.weight.id);
        }
        sgd_step(&handle, model, gradients, 0.1).map(drop)
    });
    assert_says(&dropped, &["rank 1", "no gradient of \"embedding.weight\"", "rank 0"]);
    let net = seeded(22, |device| Net::new(2, device));
    let owned = message(|world| {
        let (mut net, dedicated) = dedicate(&world, &net, |d| d)?;
        let mut muon = MuonConfig::new().init(&dedicated)?;
        if world.rank() == Rank(1) {
            net.layers[0].up.weight = net.layers[0].up.weight.clone().set_require_grad(false);
        }
        let gradients =
            GradientsParams::from_grads(loss(net.forward(batch(0, 0))).backward(), &net);
        muon.step(0.1, net, gradients).map(drop)
    });
    assert_says(&owned, &["\"layers.0.up.weight\""]);
}

#[test]
fn rates_of_burns_optimizers_must_be_alike() {
    let model = Backwards::new(false);
    let said = message(|world| {
        let (model, handle) = shard(&world, &model, Mode::Z2)?;
        let rank = world.rank().0;
        let gradients = GradientsParams::from_grads(model.loss(0, rank, None).backward(), &model);
        sgd_step(&handle, model, gradients, 0.1 * (1 + rank) as f64).map(drop)
    });
    assert_says(&said, &["rank 1", "learning rate of 0.2", "rank 0 has", "0.1"]);
}

#[test]
fn meshes_that_differ_are_named_before_anything_moves() {
    let model = Backwards::new(false);
    let said = message(|world| {
        let axes = if world.rank() == Rank(0) { (2, 1) } else { (1, 2) };
        let mesh = Mesh::hsdp(&world, axes.0, axes.1)?;
        FullyShard::new(&mesh).apply(model.clone().fork(&device())).map(drop)
    });
    assert_says(&said, &["1x2", "2x1"]);
}

#[test]
fn a_stale_or_edited_model_is_not_exported() {
    struct AddOne;
    impl ModuleMapper for AddOne {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|value| Tensor::from_inner(value.inner() + 1.0).require_grad())
        }
    }
    let model = Backwards::new(false);
    for edited in [false, true] {
        let said = message(|world| {
            let (model, handle) = shard(&world, &model, Mode::Z2)?;
            let old = model.clone();
            let backward = model.loss(0, world.rank().0, None).backward();
            let gradients = GradientsParams::from_grads(backward, &model);
            let model = sgd_step(&handle, model, gradients, 0.1)?;
            let wrong = if edited { model.map(&mut AddOne) } else { old };
            handle.full_model(&wrong, Rank(0)).map(drop)
        });
        assert_says(&said, &["not the weight that was published last"]);
    }
}

#[test]
fn a_loss_scale_and_a_factor_of_ones_own_multiply() {
    let net = seeded(23, |device| Net::new(2, device));
    let run = |scaled: bool| {
        let mut weights = on_ranks(2, |world| {
            let (net, handle) = shard(&world, &net, Mode::Z2)?;
            handle.set_gradient_scaling_factor(0.5)?;
            let scaler = LossScaler::new(&handle)?.with_scale(if scaled { 64.0 } else { 1.0 })?;
            let loss = scaler.scaled(loss(net.forward(batch(0, world.rank().0))));
            let gradients = GradientsParams::from_grads(loss.backward(), &net);
            let net = sgd_step(&handle, net, gradients, 1.0)?;
            Ok(handle.full_model(&net, Rank(0))?.map(|full| values(&full)))
        });
        weights.as_mut().unwrap()[0].take().unwrap()
    };
    let (scaled, plain) = (run(true), run(false));
    scaled.iter().for_each(|(name, weight)| assert_same_bits(weight, &plain[name], name));
    assert!(plain["stem.weight"] != values(&net)["stem.weight"]);
}

#[test]
fn a_panic_inside_a_scope_drops_its_sums() {
    let net = seeded(24, |device| Net::new(2, device));
    let run = |panics: bool| {
        let mut weights = on_ranks(2, |world| {
            let (net, handle) = shard(&world, &net, Mode::Z2)?;
            let rank = world.rank().0;
            if panics {
                let scope = || {
                    handle.no_sync(|| {
                        loss(net.forward(batch(7, rank))).backward();
                        panic!("a bad batch")
                    })
                };
                assert!(catch_unwind(AssertUnwindSafe(scope)).is_err());
            }
            let backward = loss(net.forward(batch(0, rank))).backward();
            let gradients = GradientsParams::from_grads(backward, &net);
            let net = sgd_step(&handle, net, gradients, 1.0)?;
            Ok(handle.full_model(&net, Rank(0))?.map(|full| values(&full)))
        });
        weights.as_mut().unwrap()[0].take().unwrap()
    };
    let (with, without) = (run(true), run(false));
    with.iter().for_each(|(name, weight)| assert_same_bits(weight, &without[name], name));
}

#[test]
fn a_handle_from_before_sharding_scopes_nothing() {
    let net = seeded(25, |device| Net::new(2, device));
    for use_handle in [
        (|handle| handle.no_sync(|| ())) as fn(&Dedicated),
        |handle| handle.accumulate(|| ()),
        |handle| {
            handle
                .set_gradient_scaling_factor(0.5)
                .unwrap_or_else(|e| dmuon::runtime::raise(e.into()))
        },
        |handle| {
            drop(handle.boundary("layers.0").unwrap_or_else(|e| dmuon::runtime::raise(e.into())))
        },
    ] {
        let said = message(|world| {
            let (net, old) = dedicate(&world, &net, |d| d)?;
            let (_net, _handle) = FullyShard::new(old.mesh()).apply(net)?;
            dmuon::catch(|| use_handle(&old))?;
            Ok(())
        });
        assert_says(&said, &["the handle that came with the model"]);
    }
}

#[test]
fn burns_own_encoder_is_sharded_trainable_or_frozen() {
    let closed = seeded(26, |device| Closed::new(2, device));
    for frozen in [false, true] {
        on_ranks(2, |world| {
            let mut closed = closed.clone().fork(&device());
            if frozen {
                closed = closed.no_grad();
            }
            let (closed, handle) = FullyShard::new(&Mesh::new(&world)?).apply(closed)?;
            let output = closed.forward(batch(0, world.rank().0));
            assert_eq!(output.dims(), [BATCH, SEQ, WIDTH]);
            if !frozen {
                let gradients = GradientsParams::from_grads(loss(output).backward(), &closed);
                sgd_step(&handle, closed, gradients, 0.1)?;
            }
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn a_rule_keeps_a_frozen_parameter_whole() {
    let mut model = Backwards::new(false);
    model.embedding = model.embedding.no_grad();
    on_ranks(2, |world| {
        let shard = FullyShard::new(&Mesh::new(&world)?);
        let shard = shard.route("embedding.*", Route::Replicated);
        let (_, handle) = shard.apply(model.clone().fork(&device()))?;
        let entry = |name: &str| {
            handle.routes().entries.iter().find(|entry| entry.name == name).unwrap().clone()
        };
        let embedding = entry("embedding.weight");
        assert_eq!((embedding.route, embedding.sharded), (Route::Frozen, false));
        assert!(handle.routes().unmatched.is_empty());
        Ok(())
    })
    .unwrap();
}

#[derive(Module, Debug)]
struct Normed {
    layers: Vec<Hooked<Linear>>,
    norm: BatchNorm,
}

#[test]
fn half_precision_with_batch_norm_is_refused_with_its_reason() {
    let normed = seeded(27, |device| Normed {
        layers: vec![Hooked::new(LinearConfig::new(4, 4).init(device))],
        norm: BatchNormConfig::new(4).init(device),
    });
    let said = message(|world| {
        let dedicate = Dedicate::new(&Mesh::new(&world)?).compute_type(FloatType::Bf16);
        dedicate.apply(normed.clone().fork(&device())).map(drop)
    });
    assert_says(&said, &["\"norm.gamma\"", "running statistics", "bf16"]);
}

#[test]
fn plain_fsdp_has_every_training_option() {
    let net = seeded(28, |device| Net::new(2, device));
    on_ranks(2, |world| {
        let (mut net, handle) = shard(&world, &net, Mode::Z3)?;
        let config = MuonConfig::new().with_max_norm(0.1).with_non_finite(NonFinite::Skip);
        let mut adamw = config.init(&handle)?;
        for step in 0..2 {
            let x = if step == 1 && world.rank() == Rank(1) { f32::NAN } else { 1.0 };
            let loss = loss(net.forward(batch(step, world.rank().0)) * x);
            let gradients = GradientsParams::from_grads(loss.backward(), &net);
            net = adamw.step(0.01, net, gradients)?;
            let report = adamw.report();
            assert_eq!(report.skipped.is_some(), step == 1);
            assert_eq!((report.ns_calls, report.adamw_updated > 0), (0, step == 0));
        }
        Ok(())
    })
    .unwrap();
}
