//! Sharding what is not dedicated: against replicated training to the bit, odd sizes, traffic, memory.

use crate::support::*;
use burn::module::{Module, Param};
use burn::nn::{
    BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, GroupNorm, GroupNormConfig, LayerNorm,
    LayerNormConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig,
};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Int, Tensor, TensorData};
use dmuon::{
    Dedicate, Dedicated, FullyShard, Holding, Hooked, Mesh, Mode, MuonConfig, OpKind, Rank, Result,
    Route, Rule, World,
};

const STEPS: usize = 10;

/// (replicate, shard).
const MESHES: [(usize, usize); 5] = [(1, 1), (1, 2), (1, 4), (2, 2), (4, 1)];

/// What becomes of the parameters that are not dedicated.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rest {
    Replicated,
    Sharded,
}

/// Distributes a rank's own copy of `model`.
fn distribute<M: Module>(
    world: &World,
    model: &M,
    (replicate, shard): (usize, usize),
    mode: Mode,
    rest: Rest,
) -> Result<(M, Dedicated)> {
    let mesh = Mesh::hsdp(world, replicate, shard)?;
    let model = model.clone().fork(&device());
    let (model, dedicated) = Dedicate::new(&mesh).mode(mode).apply(model)?;
    match rest {
        Rest::Replicated => Ok((model, dedicated)),
        Rest::Sharded => FullyShard::new(&mesh).apply(model),
    }
}

/// Trains with Muon; returns every rank's losses and gradient norms, and all weights.
fn train<M: Module + Sync>(
    model: &M,
    mesh: (usize, usize),
    mode: Mode,
    rest: Rest,
    loss: impl Fn(&M, usize, usize) -> Tensor<1> + Sync,
) -> (Vec<Vec<f64>>, Named) {
    let mut ranks = on_ranks(mesh.0 * mesh.1, |world| {
        let (mut model, handle) = distribute(&world, model, mesh, mode, rest)?;
        let mut muon = MuonConfig::new().init(&handle)?;
        let mut seen = Vec::new();
        for step in 0..STEPS {
            let loss = loss(&model, step, world.rank().0);
            seen.push(f64::from(loss.clone().into_scalar::<f32>()));
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = muon.step(0.02, model, gradients)?;
            seen.push(muon.report().gradient_norm);
        }
        let full = handle.full_model(&model, Rank(0))?;
        Ok((seen, full.map(|full| values(&full))))
    })
    .unwrap();
    let weights = ranks[0].1.take().unwrap();
    (ranks.into_iter().map(|(seen, _)| seen).collect(), weights)
}

fn assert_same_weights(a: &Named, b: &Named, what: &str) {
    assert!(a.keys().eq(b.keys()), "{what}");
    for (name, weight) in a {
        assert_same_bits(weight, &b[name], &format!("{what}: {name}"));
    }
}

/// Sharding changes no loss and no weight; norms are summed in another order.
fn check<M: Module + Sync>(
    model: &M,
    meshes: &[(usize, usize)],
    loss: impl Fn(&M, usize, usize) -> Tensor<1> + Sync,
) {
    for &mesh in meshes {
        let replicated = train(model, mesh, Mode::Z2, Rest::Replicated, &loss);
        for mode in [Mode::Z2, Mode::Z3] {
            let sharded = train(model, mesh, mode, Rest::Sharded, &loss);
            let what = format!("{mesh:?} {mode}");
            assert_same_weights(&sharded.1, &replicated.1, &what);
            for (ours, theirs) in sharded.0.iter().zip(&replicated.0) {
                for (step, (a, b)) in ours.chunks(2).zip(theirs.chunks(2)).enumerate() {
                    assert_eq!(a[0].to_bits(), b[0].to_bits(), "{what}: loss of step {step}");
                    assert!((a[1] / b[1] - 1.0).abs() < 1e-6, "{what}: norm {} {}", a[1], b[1]);
                }
            }
            assert!(sharded.0.iter().all(|seen| seen[1] == sharded.0[0][1]), "one norm");
        }
    }
}

#[test]
fn sharded_training_equals_replicated_training_to_the_bit() {
    let net = seeded(1, |device| Net::new(3, device));
    check(&net, &MESHES, |net, step, rank| loss(net.forward(batch(step, rank))));
}

/// A tied embedding listed after what it feeds, a frozen one, a scalar, sizes that divide nothing.
#[derive(Module, Debug)]
struct Odd {
    layers: Vec<Hooked<Block>>,
    scale: Param<Tensor<1>>,
    tied: Embedding,
    frozen: Embedding,
    bias: Param<Tensor<1>>,
}

const VOCABULARY: usize = 7;

impl Odd {
    fn new() -> Self {
        seeded(2, |device| Self {
            layers: (0..2).map(|_| Hooked::new(Block::new(WIDTH, device))).collect(),
            scale: Param::from_tensor(Tensor::from_floats([0.5], device)),
            tied: EmbeddingConfig::new(VOCABULARY, WIDTH).init(device),
            frozen: EmbeddingConfig::new(3, WIDTH).init(device).no_grad(),
            bias: Param::from_tensor(Tensor::from_floats([0.1, 0.2, 0.3], device)),
        })
    }

    fn loss(&self, step: usize, rank: usize) -> Tensor<1> {
        let token = |i: usize| ((i * 5 + step * 3 + rank * 2) % VOCABULARY) as i32;
        let data: Vec<i32> = (0..BATCH * SEQ).map(token).collect();
        let ids = TensorData::new(data, [BATCH, SEQ]);
        let ids = Tensor::<2, Int>::from_data(ids, &device());
        let kinds = ids.clone().remainder_scalar(3);
        let x = self.tied.forward(ids) + self.frozen.forward(kinds);
        let x = self.layers.iter().fold(x, |x, layer| layer.run(x, |block, x| block.forward(x)));
        let x = x * self.scale.val().reshape([1, 1, 1]);
        let logits = x.matmul(self.tied.weight.val().transpose().unsqueeze());
        loss(logits) + self.bias.val().square().sum()
    }
}

#[test]
fn tied_frozen_scalar_and_uneven_parameters_train_alike() {
    let meshes = [(1, 1), (1, 2), (1, 3), (1, 5), (1, 8), (2, 3)];
    check(&Odd::new(), &meshes, Odd::loss);
}

#[test]
fn a_model_without_matrices_is_plain_fsdp() {
    let net = seeded(3, |device| Net::new(2, device));
    for mesh in MESHES {
        let num_ranks = mesh.0 * mesh.1;
        let sharded = on_ranks(num_ranks, |world| {
            let mesh = Mesh::hsdp(&world, mesh.0, mesh.1)?;
            let (mut net, handle) = FullyShard::new(&mesh).apply(net.clone().fork(&device()))?;
            assert_eq!(handle.routes().count(Route::AdamWSharded).0, handle.routes().entries.len());
            let mut adamw = AdamWConfig::new().init();
            for step in 0..STEPS {
                let backward = loss(net.forward(batch(step, world.rank().0))).backward();
                let gradients = GradientsParams::from_grads(backward, &net);
                net = handle.step_with(&mut adamw, 0.01, net, gradients)?;
            }
            Ok(handle.full_model(&net, Rank(0))?.map(|full| values(&full)))
        });
        let sharded = sharded.unwrap()[0].take().unwrap();
        let mut adamw = AdamWConfig::new().init();
        let mut plain = net.clone().fork(&device());
        for step in 0..STEPS {
            let of_ranks: Vec<Named> = (0..num_ranks)
                .map(|rank| plain_gradients(&plain, |net| loss(net.forward(batch(step, rank)))))
                .collect();
            let gradients = mean_gradients(&plain, &of_ranks);
            plain = adamw.step(0.01, plain, gradients);
        }
        assert_same_weights(&sharded, &values(&plain), &format!("{mesh:?}"));
    }
}

/// The tree mean of gradients by name, as Burn's container.
fn mean_gradients<M: Module>(model: &M, of_ranks: &[Named]) -> GradientsParams {
    struct Register<'a>(&'a [Named], GradientsParams);
    impl Each for Register<'_> {
        fn each<const D: usize>(&mut self, name: String, param: &Param<Tensor<D>>) {
            let of_ranks: Vec<Vec<f32>> =
                self.0.iter().map(|gradients| gradients[&name].clone()).collect();
            let data = TensorData::new(tree_mean(&of_ranks), param.base().shape());
            let gradient = Tensor::<D>::from_data(data, &burn::tensor::Device::flex());
            self.1.register(param.id, gradient);
        }
    }
    visit(model, Register(of_ranks, GradientsParams::new())).1
}

#[test]
fn each_rank_moves_its_share_of_every_boundary() {
    let net = seeded(4, |device| Net::new(3, device));
    for num_ranks in [2, 4] {
        for (mode, gathers) in [(Mode::Z2, 1), (Mode::Z3, 2)] {
            on_ranks(num_ranks, |world| {
                let mesh = (1, num_ranks);
                let (net, handle) = distribute(&world, &net, mesh, mode, Rest::Sharded)?;
                world.recorder().reset_counters();
                let _ = loss(net.forward(batch(0, world.rank().0))).backward();
                let counters = world.recorder().counters();
                // Norms and bias of each layer, the stem and the head: five boundaries.
                let per_rank = |elems: usize| 4 * (elems.div_ceil(num_ranks)) as u64;
                let layer = per_rank(8 + 8 + 24);
                let (stem, head) = (per_rank(64 + 8), per_rank(24 + 3));
                let all = 3 * layer + stem + head;
                let others = num_ranks as u64 - 1;
                let gathered = counters.op(OpKind::AllGather);
                let scattered = counters.op(OpKind::ReduceScatter);
                // The stem reads raw input: its weight is not read in backward, which dmuon learns.
                assert_eq!(gathered.payload_bytes, gathers * others * all);
                assert_eq!((gathered.num_calls, scattered.num_calls), (5 * gathers, 5));
                assert_eq!(scattered.payload_bytes, others * all);
                assert_eq!(counters.op(OpKind::AllReduce).num_calls, 0);
                assert_eq!(handle.routes().count(Route::Replicated).0, 0);
                Ok(())
            })
            .unwrap();
        }
    }
}

#[test]
fn what_a_rank_keeps_is_its_share_and_padding() {
    let net = seeded(5, |device| Net::new(3, device));
    for num_ranks in [1, 2, 4, 8] {
        let kept = on_ranks(num_ranks, |world| {
            let (_net, handle) = {
                let mesh = Mesh::new(&world)?;
                FullyShard::new(&mesh).apply(net.clone().fork(&device()))?
            };
            handle.release()?;
            Ok(world.ledger().current_bytes(Holding::OwnedWeights))
        });
        let elems: usize = values(&net).values().map(Vec::len).sum();
        // Each of six boundaries' parts begins on a line, and so does each of 24 parameters.
        let padding = 64 * (6 + 24 / num_ranks + 24);
        for kept in kept.unwrap() {
            let share = 4 * elems / num_ranks;
            assert!(share <= kept + padding && kept <= share + padding, "{num_ranks}: {kept}");
        }
    }
}

#[test]
fn optimizer_state_is_divided_among_the_ranks_of_a_replica() {
    let net = seeded(5, |device| Net::new(3, device));
    let elems = |of: fn(&str) -> bool| -> usize {
        values(&net).iter().filter(|(name, _)| of(name)).map(|(_, value)| value.len()).sum()
    };
    let is_matrix = |name: &str| name.starts_with("layers.") && name.ends_with(".weight");
    let (matrices, all) = (elems(is_matrix), elems(|_| true));
    for (replicate, shard) in MESHES {
        let bytes = on_ranks(replicate * shard, |world| {
            let mesh = (replicate, shard);
            let (net, handle) = distribute(&world, &net, mesh, Mode::Z2, Rest::Sharded)?;
            let mut muon = MuonConfig::new().init(&handle)?;
            let loss = loss(net.forward(batch(0, world.rank().0)));
            let gradients = GradientsParams::from_grads(loss.backward(), &net);
            muon.step(0.02, net, gradients)?;
            Ok(muon.state_bytes())
        });
        // One momentum in the whole mesh, two moments in each replica.
        let total: usize = bytes.unwrap().iter().sum();
        assert_eq!(total, 4 * (matrices + 2 * replicate * (all - matrices)));
    }
}

#[test]
fn every_boundary_is_gathered_once_whatever_the_order_of_fields() {
    let odd = Odd::new();
    on_ranks(2, |world| {
        let (mut odd, handle) = distribute(&world, &odd, (1, 2), Mode::Z2, Rest::Sharded)?;
        let mut muon = MuonConfig::new().init(&handle)?;
        let mut broadcasts = Vec::new();
        for step in 0..3 {
            world.recorder().reset_counters();
            let loss = odd.loss(step, world.rank().0);
            let gradients = GradientsParams::from_grads(loss.backward(), &odd);
            broadcasts.push(world.recorder().counters().op(OpKind::AllGather).num_calls);
            odd = muon.step(0.01, odd, gradients)?;
        }
        // Two layers, both embeddings; scalar and bias together, as what lies directly in the root.
        assert_eq!(broadcasts, [5; 3]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn rules_give_routes_and_later_ones_win() {
    let net = seeded(6, |device| Net::new(2, device));
    let routes = on_ranks(4, |world| {
        let mesh = Mesh::hsdp(&world, 2, 2)?;
        let vectors = Rule::new(Route::AdamWOwned).shaped(|shape| shape.len() == 1);
        let dedicate = Dedicate::new(&mesh)
            .rule(vectors)
            .route("head.bias", Route::Replicated)
            .route("layers.1.up.*", Route::Replicated)
            .route("layers.9.*", Route::Muon);
        let (mut net, _) = dedicate.apply(net.clone().fork(&device()))?;
        let shard = FullyShard::new(&mesh)
            .route("head.*", Route::Replicated)
            .route("head.weight", Route::AdamWSharded)
            .route("layers.0.down.weight", Route::Replicated);
        let handle;
        (net, handle) = shard.apply(net)?;
        let mut muon = MuonConfig::new().init(&handle)?;
        for step in 0..2 {
            let loss = loss(net.forward(batch(step, world.rank().0)));
            let gradients = GradientsParams::from_grads(loss.backward(), &net);
            net = muon.step(0.01, net, gradients)?;
            assert!(muon.report().missing.is_empty());
        }
        Ok(handle.routes().clone())
    });
    let routes = routes.unwrap();
    assert!(routes.iter().all(|other| *other == routes[0]));
    let of = |name: &str| routes[0].entries.iter().find(|entry| entry.name == name).unwrap().route;
    assert_eq!(of("layers.0.up.weight"), Route::Muon);
    assert_eq!(of("layers.0.up.bias"), Route::AdamWOwned);
    assert_eq!(of("stem.bias"), Route::AdamWOwned);
    assert_eq!(of("stem.weight"), Route::AdamWSharded);
    assert_eq!(of("head.bias"), Route::Replicated);
    assert_eq!(of("head.weight"), Route::AdamWSharded);
    assert_eq!(of("layers.1.up.weight"), Route::Replicated);
    assert_eq!(of("layers.1.up.bias"), Route::Replicated);
    let unmatched = &routes[0].unmatched;
    assert_eq!(unmatched.len(), 2, "{unmatched:?}");
    assert!(unmatched[0].contains("layers.9.*") && unmatched[1].contains("layers.0.down"));
}

/// Every route gives the same training, as long as AdamW takes the same parameters.
#[test]
fn owned_sharded_and_replicated_adamw_agree_to_the_bit() {
    let net = seeded(7, |device| Net::new(2, device));
    let with = |route: Route| {
        let mut weights = on_ranks(3, |world| {
            let mesh = Mesh::new(&world)?;
            let mut dedicate = Dedicate::new(&mesh).mode(Mode::Z3);
            if route == Route::AdamWOwned {
                let vectors = Rule::new(route).shaped(|shape| shape.len() == 1);
                dedicate = dedicate.rule(vectors).route("stem.*", route).route("head.*", route);
            }
            let (mut net, mut handle) = dedicate.apply(net.clone().fork(&device()))?;
            if route == Route::AdamWSharded {
                (net, handle) = FullyShard::new(&mesh).apply(net)?;
            }
            assert_eq!(handle.routes().count(route).0, 2 * 3 + 4, "{route}");
            let mut muon = MuonConfig::new().init(&handle)?;
            for step in 0..STEPS {
                let loss = loss(net.forward(batch(step, world.rank().0)));
                let gradients = GradientsParams::from_grads(loss.backward(), &net);
                net = muon.step(0.02, net, gradients)?;
            }
            Ok(handle.full_model(&net, Rank(0))?.map(|full| values(&full)))
        });
        weights.as_mut().unwrap()[0].take().unwrap()
    };
    let replicated = with(Route::Replicated);
    for route in [Route::AdamWOwned, Route::AdamWSharded] {
        assert_same_weights(&with(route), &replicated, route.name());
    }
}

/// Norms of every kind: two of Burn's ask their stored parameter for its shape.
#[derive(Module, Debug)]
struct Norms {
    layers: Vec<Hooked<Linear>>,
    rms: RmsNorm,
    group: GroupNorm,
    layer: LayerNorm,
    batch: BatchNorm,
}

#[test]
fn norms_of_every_kind_train_alike() {
    let norms = seeded(9, |device| Norms {
        layers: vec![Hooked::new(LinearConfig::new(WIDTH, WIDTH).init(device))],
        rms: RmsNormConfig::new(WIDTH).init(device),
        group: GroupNormConfig::new(2, WIDTH).init(device),
        layer: LayerNormConfig::new(WIDTH).init(device),
        batch: BatchNormConfig::new(WIDTH).init(device),
    });
    let loss_of = |norms: &Norms, step: usize, rank: usize| {
        let x = norms.layers[0].run(batch(step, rank), |linear, x| linear.forward(x));
        let x = norms.layer.forward(norms.rms.forward(x)).swap_dims(1, 2);
        loss(norms.batch.forward(norms.group.forward(x)))
    };
    // Rank threads share Burn's running statistics, and update them in any order.
    let check = |mesh| {
        let [a, b] = [Rest::Replicated, Rest::Sharded].map(|rest| {
            let mut weights = train(&norms, mesh, Mode::Z3, rest, loss_of).1;
            weights.retain(|name, _| !name.contains("running"));
            weights
        });
        assert_same_weights(&a, &b, &format!("{mesh:?}"));
    };
    [(1, 2), (1, 4), (2, 2)].into_iter().for_each(check);
}

/// A block around what lies outside all boundaries is a boundary of its own.
#[derive(Module, Debug)]
struct Framed {
    stem: Hooked<Linear>,
    layers: Vec<Hooked<Linear>>,
    head: Hooked<Block>,
}

#[test]
fn hooked_blocks_outside_boundaries_move_as_one() {
    let framed = seeded(8, |device| {
        let linear = || Hooked::new(LinearConfig::new(WIDTH, WIDTH).init(device));
        Framed {
            stem: linear(),
            layers: vec![linear()],
            head: Hooked::new(Block::new(WIDTH, device)),
        }
    });
    let run = |framed: &Framed, x: Tensor<3>| {
        let x = framed.stem.run(x, |linear, x| linear.forward(x));
        let x = framed.layers[0].run(x, |linear, x| linear.forward(x));
        framed.head.run(x, |block, x| block.forward(x))
    };
    on_ranks(2, |world| {
        let (framed, handle) = distribute(&world, &framed, (1, 2), Mode::Z3, Rest::Sharded)?;
        let boundary = |name: &str| {
            handle
                .routes()
                .entries
                .iter()
                .find(|entry| entry.name == name)
                .unwrap()
                .boundary
                .clone()
        };
        assert_eq!(boundary("stem.weight"), "stem");
        assert_eq!(boundary("head.norm.gamma"), "head");
        assert_eq!(boundary("head.up.weight"), "head");
        world.recorder().reset_counters();
        let _ = loss(run(&framed, batch(0, world.rank().0))).backward();
        assert_eq!(world.recorder().counters().op(OpKind::ReduceScatter).num_calls, 3);
        Ok(())
    })
    .unwrap();
    check(&framed, &[(1, 2), (2, 2)], |framed, step, rank| loss(run(framed, batch(step, rank))));
}
