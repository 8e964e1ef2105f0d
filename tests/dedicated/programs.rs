//! What training programs do around their steps: evaluate, give up, use two models, other optimizers.

use crate::cases::{MODES, backward};
use crate::support::*;
use burn::module::{Module, Param};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData};
use dmuon::{Dedicate, Dedicated, Mesh, Mode, MuonConfig, Rank, Result, World};

const STEPS: usize = 4;

/// Gradients given by name, as Burn's optimizers take them.
fn as_params<M: Module>(model: &M, named: &Named) -> GradientsParams {
    struct Register<'a>(&'a Named, GradientsParams);
    impl Each for Register<'_> {
        fn each<const D: usize>(&mut self, name: String, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.get(&name) {
                let data = TensorData::new(gradient.clone(), param.base().shape());
                self.1.register(param.id, Tensor::<D>::from_data(data, &Device::flex()));
            }
        }
    }
    visit(model, Register(named, GradientsParams::new())).1
}

/// Steps plain Burn takes on averaged gradients.
fn plain_steps<M: Module>(
    model: &M,
    num_ranks: usize,
    mut optimizer: ModuleOptimizer,
    loss: impl Fn(&M, usize, usize) -> Tensor<1>,
) -> Named {
    let mut model = model.clone().fork(&device());
    for step in 0..STEPS {
        let ranks: Vec<Named> = (0..num_ranks)
            .map(|rank| plain_gradients(&model, |model| loss(model, step, rank)))
            .collect();
        let mean = |name: &String| {
            tree_mean(&ranks.iter().map(|named| named[name].clone()).collect::<Vec<_>>())
        };
        let mean = ranks[0].keys().map(|name| (name.clone(), mean(name))).collect();
        let gradients = as_params(&model, &mean);
        model = optimizer.step(0.05, model, gradients);
    }
    values(&model)
}

fn dedicated_steps<M: Module + Sync>(
    model: &M,
    num_ranks: usize,
    (mode, prefetch): (Mode, usize),
    optimizer: impl Fn() -> ModuleOptimizer + Sync,
    loss: impl Fn(&M, usize, usize) -> Tensor<1> + Sync,
) -> Named {
    let run = on_ranks(num_ranks, |world| {
        let (mut model, dedicated) = dedicate(&world, model, |d| d.mode(mode).prefetch(prefetch))?;
        let mut optimizer = optimizer();
        for step in 0..STEPS {
            let gradients = backward(&model, loss(&model, step, world.rank().0));
            model = dedicated.step_with(&mut optimizer, 0.05, model, gradients)?;
        }
        Ok(dedicated.full_model(&model, Rank(0))?.map(|full| values(&full)))
    });
    run.unwrap().swap_remove(0).unwrap()
}

fn assert_same(ours: &Named, theirs: &Named, what: &str) {
    assert!(ours.keys().eq(theirs.keys()), "{what}");
    for (name, value) in ours {
        assert_same_bits(value, &theirs[name], &format!("{what}: {name}"));
    }
}

/// Compares every mode with plain Burn, which steps once.
fn check_steps<M: Module + Sync>(
    model: &M,
    optimizer: impl Fn() -> ModuleOptimizer + Sync,
    forward: impl Fn(&M, Tensor<3>) -> Tensor<3> + Sync,
) {
    let loss = |model: &M, step, rank| loss(forward(model, batch(step, rank)));
    for num_ranks in [1, 2, 3] {
        let plain = plain_steps(model, num_ranks, optimizer(), loss);
        for mode in MODES {
            let ours = dedicated_steps(model, num_ranks, mode, &optimizer, loss);
            assert_same(&ours, &plain, &format!("{num_ranks} ranks, {mode:?}"));
        }
    }
}

#[test]
fn burns_optimizers_step_as_on_one_rank() {
    let net = seeded(41, |device| Net::new(2, device));
    check_steps(&net, || SgdConfig::new().init(), Net::forward);
    check_steps(&net, || AdamWConfig::new().with_weight_decay(0.1).init(), Net::forward);
}

#[test]
fn a_closed_encoder_trains_as_on_one_rank() {
    let closed = seeded(42, |device| Closed::new(2, device));
    check_steps(&closed, || SgdConfig::new().init(), Closed::forward);
    check_steps(&closed, || AdamWConfig::new().init(), Closed::forward);
}

fn start(
    world: &World,
    net: &Net,
    (mode, prefetch): (Mode, usize),
) -> Result<(Net, Dedicated, dmuon::Muon)> {
    let (net, dedicated) = dedicate(world, net, |d| d.mode(mode).prefetch(prefetch))?;
    let muon = MuonConfig::new().init(&dedicated)?;
    Ok((net, dedicated, muon))
}

fn train_one(muon: &mut dmuon::Muon, net: Net, step: usize, rank: usize, lr: f64) -> Result<Net> {
    let gradients = backward(&net, loss(net.forward(batch(step, rank))));
    muon.step(lr, net, gradients)
}

/// The weights after three steps, with `between` called before each.
fn trained(
    net: &Net,
    num_ranks: usize,
    mode: (Mode, usize),
    between: impl Fn(&Net, &Dedicated, Rank) -> Result<()> + Sync,
) -> Named {
    let run = on_ranks(num_ranks, |world| {
        let (mut net, dedicated, mut muon) = start(&world, net, mode)?;
        for step in 0..3 {
            between(&net, &dedicated, world.rank())?;
            net = train_one(&mut muon, net, step, world.rank().0, 0.05)?;
        }
        Ok(dedicated.full_model(&net, Rank(0))?.map(|full| values(&full)))
    });
    run.unwrap().swap_remove(0).unwrap()
}

#[test]
fn evaluation_between_steps_equals_plain_burn_and_changes_nothing() {
    let net = seeded(43, |device| Net::new(3, device));
    for num_ranks in [2, 3] {
        for mode in MODES {
            let undisturbed = trained(&net, num_ranks, mode, |_, _, _| Ok(()));
            let evaluated = trained(&net, num_ranks, mode, |net, dedicated, rank| {
                let x = || batch(9, 0);
                let valid = net.valid().forward(x().inner()).into_data();
                let frozen = net.clone().no_grad().forward(x()).into_data();
                let full = dedicated.full_model(net, Rank(1))?;
                assert_eq!(full.is_some(), rank == Rank(1));
                let tracked = net.forward(x()).into_data();
                if let Some(plain) = full {
                    assert_eq!(valid, plain.forward(x().inner()).into_data(), "{mode:?}");
                    // Burn norms a layer in other operations on a device with autodiff.
                    let plain = plain.fork(&device()).forward(x()).into_data();
                    assert_eq!([&frozen, &tracked], [&plain; 2], "{mode:?}");
                }
                Ok(())
            });
            assert_same(&evaluated, &undisturbed, &format!("{num_ranks} ranks, {mode:?}"));
        }
    }
}

#[test]
fn evaluation_may_stand_between_a_forward_and_its_backward() {
    let net = seeded(44, |device| Net::new(3, device));
    for mode in MODES {
        let undisturbed = trained(&net, 2, mode, |_, _, _| Ok(()));
        let run = on_ranks(2, |world| {
            let (mut net, dedicated, mut muon) = start(&world, &net, mode)?;
            for step in 0..3 {
                let loss = loss(net.forward(batch(step, world.rank().0)));
                let _ = net.valid().forward(batch(9, 0).inner());
                let gradients = backward(&net, loss);
                net = muon.step(0.05, net, gradients)?;
            }
            Ok(dedicated.full_model(&net, Rank(0))?.map(|full| values(&full)))
        });
        assert_same(&run.unwrap()[0].clone().unwrap(), &undisturbed, &format!("{mode:?}"));
    }
}

#[test]
fn an_abandoned_forward_changes_nothing() {
    let net = seeded(45, |device| Net::new(3, device));
    for mode in MODES {
        let undisturbed = trained(&net, 2, mode, |_, _, _| Ok(()));
        let whole = trained(&net, 2, mode, |net, _, rank| {
            drop(net.forward(batch(7, rank.0)));
            Ok(())
        });
        assert_same(&whole, &undisturbed, &format!("{mode:?}, whole"));
        let part = trained(&net, 2, mode, |net, _, rank| {
            let x = net.stem.forward(batch(7, rank.0));
            drop(net.layers[1].run(x, |block, x| block.forward(x)));
            Ok(())
        });
        assert_same(&part, &undisturbed, &format!("{mode:?}, part"));
    }
}

#[test]
fn two_models_train_alternately_on_one_mesh() {
    let nets = [46, 47].map(|seed| seeded(seed, |device| Net::new(2, device)));
    for mode in MODES {
        let alone = [0, 1].map(|model| trained(&nets[model], 2, mode, |_, _, _| Ok(())));
        let run = on_ranks(2, |world| {
            let mesh = Mesh::new(&world)?;
            let mut models = Vec::new();
            for net in &nets {
                let request = Dedicate::new(&mesh).mode(mode.0).prefetch(mode.1);
                let (net, dedicated) = request.apply(net.clone().fork(&device()))?;
                let muon = MuonConfig::new().init(&dedicated)?;
                models.push((Some(net), dedicated, muon));
            }
            for step in 0..3 {
                for (net, _, muon) in &mut models {
                    let trained = train_one(muon, net.take().unwrap(), step, world.rank().0, 0.05)?;
                    *net = Some(trained);
                }
            }
            let full = |(net, dedicated, _): (Option<Net>, Dedicated, _)| {
                dedicated.full_model(&net.unwrap(), Rank(0))
            };
            models.into_iter().map(full).collect::<Result<Vec<_>>>()
        });
        for (full, alone) in run.unwrap().swap_remove(0).into_iter().zip(&alone) {
            assert_same(&values(&full.unwrap()), alone, &format!("{mode:?}"));
        }
    }
}

#[test]
fn two_models_may_share_one_tape() {
    let nets = [48, 49].map(|seed| seeded(seed, |device| Net::new(2, device)));
    let loss = |nets: [&Net; 2], rank| {
        let x = nets[0].layers[0].run(nets[0].stem.forward(batch(0, rank)), |b, x| b.forward(x));
        let y = nets[1].layers.iter().fold(x, |x, layer| layer.run(x, |b, x| b.forward(x)));
        loss(nets[0].head.forward(nets[0].layers[1].run(y, |b, x| b.forward(x))))
    };
    let both = |nets: [&Net; 2], rank| {
        let mut tape = loss(nets, rank).backward();
        nets.map(|net| gradients(net, &GradientsParams::from_module(&mut tape, net)))
    };
    let plain = [0, 1].map(|rank| {
        let [first, second] = nets.clone().map(|net| net.fork(&device()));
        both([&first, &second], rank)
    });
    for (mode, prefetch) in MODES {
        let run = on_ranks(2, |world| {
            let mesh = Mesh::new(&world)?;
            let request = Dedicate::new(&mesh).mode(mode).prefetch(prefetch);
            let (first, _) = request.clone().apply(nets[0].clone().fork(&device()))?;
            let (second, _) = request.apply(nets[1].clone().fork(&device()))?;
            Ok(both([&first, &second], world.rank().0))
        });
        for (model, found) in run.unwrap().into_iter().flat_map(|both| both.into_iter().enumerate())
        {
            for (name, gradient) in found {
                let mean = tree_mean(&[0, 1].map(|rank: usize| plain[rank][model][&name].clone()));
                assert_same_bits(&gradient, &mean, &format!("{mode} prefetch {prefetch}: {name}"));
            }
        }
    }
}

/// The net without the matrices of its middle block.
fn unused(net: &Net, x: Tensor<3>) -> Tensor<3> {
    let layers = net.layers.iter().enumerate();
    let x = layers.fold(net.stem.forward(x), |x, (index, layer)| {
        layer.run(x, |block, x| match index {
            1 => block.norm.forward(x),
            _ => block.forward(x),
        })
    });
    net.head.forward(x)
}

#[test]
fn a_matrix_without_gradient_is_reported_and_keeps_weight_and_momentum() {
    let net = seeded(50, |device| Net::new(3, device));
    let names = ["layers.1.up.weight", "layers.1.down.weight"];
    // With `pause`, a step in between that uses the matrices nowhere and moves nothing else.
    let run = |mode, pause: bool| {
        on_ranks(2, |world| {
            let rank = world.rank().0;
            let (net, dedicated, mut muon) = start(&world, &net, mode)?;
            let mut net = train_one(&mut muon, net, 0, rank, 0.05)?;
            assert_eq!(muon.report().missing, Vec::<String>::new());
            if pause {
                let gradients = backward(&net, loss(unused(&net, batch(1, rank))));
                net = muon.step(0.0, net, gradients)?;
                let reports = muon.report().gather(&world)?;
                let mut missing: Vec<_> = reports.iter().flat_map(|r| r.missing.clone()).collect();
                missing.retain(|name| name.ends_with("weight"));
                missing.sort();
                assert_eq!(missing, ["layers.1.down.weight", "layers.1.up.weight"]);
                assert!(reports.iter().all(|r| r.missing.contains(&"layers.1.up.bias".to_owned())));
                let updated: usize = reports.iter().map(|report| report.muon_updated).sum();
                assert_eq!(updated, 4);
            }
            net = train_one(&mut muon, net, 2, rank, 0.05)?;
            Ok(dedicated.full_model(&net, Rank(0))?.map(|full| values(&full)))
        })
        .unwrap()
        .swap_remove(0)
        .unwrap()
    };
    for mode in MODES {
        let (paused, straight) = (run(mode, true), run(mode, false));
        for name in names {
            assert_same_bits(&paused[name], &straight[name], name);
        }
    }
}

#[test]
fn a_matrix_without_gradient_does_not_decay() {
    let net = seeded(51, |device| Net::new(3, device));
    for mode in MODES {
        let run = on_ranks(2, |world| {
            let (net, dedicated, mut muon) = start(&world, &net, mode)?;
            let gradients = backward(&net, loss(unused(&net, batch(0, world.rank().0))));
            let net = muon.step(0.05, net, gradients)?;
            Ok(dedicated.full_model(&net, Rank(0))?.map(|full| values(&full)))
        });
        let (before, after) = (values(&net), run.unwrap()[0].clone().unwrap());
        for (name, before) in before {
            let moved = before != after[&name];
            let used = !name.starts_with("layers.1.up") && !name.starts_with("layers.1.down");
            assert_eq!(moved, used, "{name}");
        }
    }
}
