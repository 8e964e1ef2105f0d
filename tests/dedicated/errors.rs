//! Bad inputs, broken promises and failing ranks: every error names the culprit and the cure.

use crate::cases::{MODES, backward};
use crate::support::*;
use burn::module::{Lora, Module};
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use dmuon::runtime::launch_each;
use dmuon::{
    BoundaryRule, Dedicate, Dedicated, Error, FullyShard, Hooked, Matrices, Mesh, MeshShape, Mode,
    Muon, MuonConfig, NonFinite, Rank, Rates, Result, Route, World, catch,
};

fn net() -> Net {
    seeded(61, |device| Net::new(3, device))
}

/// Every rank's own outcome; all end well before the deadline.
fn each<T: Send>(
    num_ranks: usize,
    rank_main: impl Fn(World) -> Result<T> + Sync,
) -> Vec<Result<T, String>> {
    let outcomes = launch_each::<T, Error, _>(num_ranks, &options(), rank_main).unwrap();
    let outcomes = outcomes.into_iter().map(|outcome| outcome.map_err(|error| error.to_string()));
    outcomes
        .inspect(|outcome| assert!(!matches!(outcome, Err(e) if e.contains("timed out"))))
        .collect()
}

/// Every rank fails with an error that says all of `parts`; returns the messages.
fn all_fail<T: Send>(
    num_ranks: usize,
    parts: &[&str],
    rank_main: impl Fn(World) -> Result<T> + Sync,
) -> Vec<String> {
    let outcomes = each(num_ranks, rank_main);
    let fail = |(rank, outcome): (usize, Result<T, String>)| {
        let message = outcome.err().unwrap_or_else(|| panic!("rank {rank} does not fail"));
        for part in parts {
            assert!(message.contains(part), "rank {rank} does not say {part:?}: {message}");
        }
        message
    };
    outcomes.into_iter().enumerate().map(fail).collect()
}

/// Dedicating fails the same on every rank.
fn refused(parts: &[&str], request: impl Fn(Dedicate) -> Dedicate + Sync) {
    let net = net();
    let messages = all_fail(2, parts, |world| dedicate(&world, &net, &request));
    assert_eq!(messages[0], messages[1]);
}

#[test]
fn a_selector_that_matches_nothing_lists_what_there_is() {
    refused(&["\"layers.*.wieght\" matches no parameter", "layers.0.up.weight [8, 24]"], |d| {
        d.matrices("layers.*.wieght")
    });
    refused(&["\"heads.weight\" matches no parameter", "stem.weight"], |d| {
        d.matrices(["layers.*.weight", "heads.weight"])
    });
    refused(&["the selector's predicate matches no parameter", "stem.weight"], |d| {
        d.matrices(Matrices::predicate(|_| false))
    });
}

#[test]
fn a_selected_vector_is_refused() {
    refused(&["layers.0.up.bias [24]", "rank 2 or more", "narrow the selector"], |d| {
        d.matrices("layers.0.up.*")
    });
}

#[test]
fn matrices_outside_boundaries_are_all_listed() {
    refused(&["\"stem.weight\"", "\"head.weight\"", "Strictness::Root"], |d| {
        d.matrices(["layers.*.weight", "stem.weight", "head.weight"])
    });
}

#[test]
fn ranks_with_different_models_hear_the_first_difference() {
    let ours = net();
    let theirs = seeded(62, |device| {
        let mut net = Net::new(3, device);
        net.layers[1].up = LinearConfig::new(WIDTH, 4 * WIDTH).init(device);
        net
    });
    let parts = [
        "rank 2 has \"layers.1.up.weight\" [8, 32]",
        "rank 0 has \"layers.1.up.weight\" [8, 24]",
        "every rank must build the same model",
    ];
    let messages = all_fail(3, &parts, |world| {
        dedicate(&world, if world.rank() == Rank(2) { &theirs } else { &ours }, |d| d)
    });
    assert!(messages.iter().all(|message| *message == messages[0]));
    let short = seeded(63, |device| Net::new(2, device));
    all_fail(2, &["rank 1 has \"head.weight\"", "rank 0 has \"layers.2.norm.gamma\""], |world| {
        dedicate(&world, if world.rank() == Rank(1) { &short } else { &ours }, |d| d)
    });
}

#[test]
fn ranks_that_ask_for_different_things_hear_so() {
    let net = net();
    all_fail(2, &["rank 1", "z3", "z2", "every rank must call `Dedicate` alike"], |world| {
        let mode = if world.rank() == Rank(1) { Mode::Z3 } else { Mode::Z2 };
        dedicate(&world, &net, |d| d.mode(mode))
    });
    all_fail(2, &["rank 1", "prefetch 2", "prefetch 1"], |world| {
        dedicate(&world, &net, |d| d.prefetch(1 + world.rank().0))
    });
    all_fail(2, &["rank 1", "every rank must call `Dedicate` alike"], |world| {
        let all = Matrices::from("layers.*.weight");
        let fewer = Matrices::from("layers.*.up.weight");
        dedicate(&world, &net, |d| d.matrices(if world.rank() == Rank(1) { fewer } else { all }))
    });
    let frozen = {
        let mut net = net.clone();
        net.layers[2].up = net.layers[2].up.clone().no_grad();
        net
    };
    all_fail(2, &["rank 1", "every rank must call `Dedicate` alike"], |world| {
        dedicate(&world, if world.rank() == Rank(1) { &frozen } else { &net }, |d| d)
    });
}

#[test]
fn meshes_that_do_not_fit_are_refused() {
    for (replicate, shard) in [(1, 3), (2, 2), (3, 1)] {
        let mesh = format!("a {replicate}x{shard} mesh holds");
        all_fail(2, &[&mesh, "the world has 2"], |world| {
            Ok(Mesh::with_shape(&world, MeshShape::new(replicate, shard)?)?)
        });
    }
}

/// Trains until rank 1 does something else in its second step.
fn disturbed(
    mode: (Mode, usize),
    disturb: impl Fn(&Net) -> Result<bool> + Sync,
) -> Vec<Result<(), String>> {
    let net = net();
    each(3, |world| {
        let (mut net, _dedicated, mut muon) = start(&world, &net, mode, MuonConfig::new())?;
        for step in 0..4 {
            if step == 1 && world.rank() == Rank(1) && disturb(&net)? {
                return Ok(());
            }
            let gradients = backward(&net, loss(net.forward(batch(step, world.rank().0))));
            net = muon.step(0.05, net, gradients)?;
        }
        Ok(())
    })
}

fn start(
    world: &World,
    net: &Net,
    (mode, prefetch): (Mode, usize),
    config: MuonConfig,
) -> Result<(Net, Dedicated, Muon)> {
    let (net, dedicated) = dedicate(world, net, |d| d.mode(mode).prefetch(prefetch))?;
    let muon = config.init(&dedicated)?;
    Ok((net, dedicated, muon))
}

#[test]
fn a_rank_that_panics_in_forward_is_named_on_every_rank() {
    for mode in MODES {
        let outcomes = disturbed(mode, |net| {
            let x = net.stem.forward(batch(1, 1));
            net.layers[0].run(x, |_, _: Tensor<3>| -> Tensor<3> { panic!("out of luck") });
            Ok(true)
        });
        for outcome in outcomes {
            assert!(outcome.unwrap_err().contains("rank 1 panicked: out of luck"));
        }
    }
}

#[test]
fn a_rank_that_returns_early_is_named_on_every_other() {
    for mode in MODES {
        let outcomes = disturbed(mode, |_| Ok(true));
        for rank in [0, 2] {
            let message = outcomes[rank].clone().unwrap_err();
            assert!(message.contains("rank 1 returned before"), "{message}");
        }
        let outcomes =
            disturbed(mode, |_| Err(dmuon::runtime::Error::message("no more data").into()));
        for outcome in &outcomes {
            assert!(outcome.as_ref().unwrap_err().contains("no more data"));
        }
        for rank in [0, 2] {
            assert!(outcomes[rank].as_ref().unwrap_err().contains("rank 1 failed"));
        }
    }
}

/// A loss whose gradient is not finite in one matrix, on rank 1.
fn poisoned(net: &Net, step: usize, rank: usize) -> Tensor<1> {
    let factor = if rank == 1 { f32::NAN } else { 0.0 };
    let weight = net.layers[1].up.weight.val();
    loss(net.forward(batch(step, rank))) + weight.mul_scalar(factor).sum()
}

const POISONED: &str = "layers.1.up.weight";

/// Two good steps, with or without a poisoned one in between; the whole weights.
fn around(policy: NonFinite, mode: (Mode, usize), poison: bool) -> Named {
    let net = net();
    let run = on_ranks(3, |world| {
        let rank = world.rank().0;
        let config = MuonConfig::new().with_non_finite(policy);
        let (mut net, dedicated, mut muon) = start(&world, &net, mode, config)?;
        for step in 0..2 {
            let gradients = backward(&net, loss(net.forward(batch(step, rank))));
            net = muon.step(0.05, net, gradients)?;
            assert_eq!(muon.report().skipped, None);
            if step == 1 || !poison {
                continue;
            }
            let gradients = backward(&net, poisoned(&net, 7, rank));
            let kept = net.clone();
            net = match (policy, muon.step(0.05, net, gradients)) {
                (NonFinite::Error, Err(error)) => {
                    let message = error.to_string();
                    for part in
                        [POISONED, "averaged, on rank", "NonFinite::Skip", "no rank has stepped"]
                    {
                        assert!(message.contains(part), "{message}");
                    }
                    kept
                }
                (_, stepped) => stepped?,
            };
            if policy == NonFinite::Skip {
                assert_eq!(muon.report().skipped.as_deref(), Some(POISONED));
                assert_eq!(muon.report().muon_updated + muon.report().adamw_updated, 0);
            }
        }
        Ok(dedicated.full_model(&net, Rank(0))?.map(|full| values(&full)))
    });
    run.unwrap().swap_remove(0).unwrap()
}

#[test]
fn a_gradient_that_is_not_finite_stops_or_skips_the_step_on_every_rank() {
    for mode in MODES {
        for policy in [NonFinite::Error, NonFinite::Skip] {
            let (with, without) = (around(policy, mode, true), around(policy, mode, false));
            for (name, value) in &with {
                assert_same_bits(value, &without[name], &format!("{policy:?} {mode:?} {name}"));
            }
        }
    }
}

#[test]
fn what_a_skipped_step_saw_is_forgotten_by_the_next_report() {
    let net = net();
    for policy in [NonFinite::Error, NonFinite::Skip] {
        on_ranks(2, |world| {
            let rank = world.rank().0;
            let config = MuonConfig::new().with_non_finite(policy);
            let (net, _dedicated, mut muon) = start(&world, &net, MODES[1], config)?;
            let gradients = backward(&net, poisoned(&net, 0, rank));
            let net = match muon.step(0.05, net.clone(), gradients) {
                Err(Error::NonFiniteGradient { .. }) => net,
                stepped => stepped?,
            };
            let x = net.layers[0].run(batch(1, rank), |block, x| block.forward(x));
            let gradients = backward(&net, loss(net.head.forward(x)));
            muon.step(0.05, net, gradients)?;
            let reports = muon.report().gather(&world)?;
            let missing = |name: &str| {
                reports.iter().any(|report| report.missing.iter().any(|missing| missing == name))
            };
            assert!(missing(POISONED) && missing("stem.weight") && missing("layers.2.down.weight"));
            assert!(!missing("layers.0.up.weight") && !missing("head.weight"));
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn told_to_proceed_only_the_parameter_itself_becomes_nan() {
    let net = net();
    for mode in MODES {
        let run = on_ranks(2, |world| {
            let config = MuonConfig::new().with_non_finite(NonFinite::Proceed);
            let (net, dedicated, mut muon) = start(&world, &net, mode, config)?;
            let gradients = backward(&net, poisoned(&net, 0, world.rank().0));
            let net = muon.step(0.05, net, gradients)?;
            Ok(dedicated.full_model(&net, Rank(0))?.map(|full| values(&full)))
        });
        for (name, value) in run.unwrap().swap_remove(0).unwrap() {
            let finite = value.iter().all(|elem| elem.is_finite());
            assert_eq!(finite, name != POISONED, "{name}");
        }
    }
}

/// Both ranks fail inside `misuse`, whose error says all of `parts`.
fn misused(
    mode: Mode,
    parts: &[&str],
    misuse: impl Fn(Net, &Dedicated, &mut Muon, usize) -> Result<()> + Sync,
) {
    let net = net();
    all_fail(2, parts, |world| {
        let (net, dedicated, mut muon) = start(&world, &net, (mode, 1), MuonConfig::new())?;
        misuse(net, &dedicated, &mut muon, world.rank().0)
    });
}

#[test]
fn burns_recorder_is_refused() {
    let file = std::env::temp_dir().join(format!("dmuon-refused-{}", std::process::id()));
    for mode in [Mode::Z2, Mode::Z3] {
        let parts = ["refusing to save", "layers.0.up.weight", "Dedicated::full_model", "rank"];
        misused(mode, &parts, |net, _, _, _| Ok(dmuon::catch(|| drop(net.into_record()))?));
        misused(mode, &parts, |net, _, _, _| {
            dmuon::catch(|| drop(net.save_file(&file)))?;
            Ok(())
        });
        let parts = ["refusing to load", "layers.0.up.weight", "then dedicate the model"];
        misused(mode, &parts, |net, _, _, _| {
            let record = self::net().into_record();
            dmuon::catch(|| drop(net.load_record(record)))?;
            Ok(())
        });
    }
    let left = file
        .parent()
        .unwrap()
        .read_dir()
        .unwrap()
        .flatten()
        .any(|entry| entry.path().to_string_lossy().starts_with(&*file.to_string_lossy()));
    assert!(!left, "nothing was written");
}

#[test]
fn a_model_with_lora_is_refused() {
    let adapted = net().apply_lora(Lora::new(2, 4.0));
    all_fail(2, &["\"stem.weight\"", "reparameterization \"lora\"", "materialize"], |world| {
        dedicate(&world, &adapted, |d| d)
    });
}

#[test]
fn dedicating_twice_is_refused() {
    misused(Mode::Z2, &["\"stem.weight\"", "already"], |net, dedicated, _, _| {
        Dedicate::new(dedicated.mesh()).apply(net).map(drop)
    });
}

#[test]
fn a_step_behind_dmuons_back_is_noticed() {
    for mode in [Mode::Z2, Mode::Z3] {
        let parts =
            ["stem.weight", "not the weight that was published last", "Dedicated::step_with"];
        misused(mode, &parts, |net, _, _, rank| {
            let gradients = backward(&net, loss(net.forward(batch(0, rank))));
            let net = SgdConfig::new().init().step(0.1, net, gradients);
            backward(&net, loss(net.forward(batch(1, rank))));
            Ok(())
        });
    }
}

#[test]
fn an_older_model_is_noticed() {
    for mode in [Mode::Z2, Mode::Z3] {
        for evaluate in [false, true] {
            let parts = ["weight", "not the weight that was published last", "the last step"];
            misused(mode, &parts, |net, _, muon, rank| {
                let older = net.clone();
                let gradients = backward(&net, loss(net.forward(batch(0, rank))));
                muon.step(0.05, net, gradients)?;
                match evaluate {
                    true => drop(older.valid().forward(batch(1, rank).inner())),
                    false => drop(older.forward(batch(1, rank))),
                }
                // The rank that owns nothing of the first boundary hears of it in a collective.
                backward(&older, loss(older.forward(batch(2, rank))));
                Ok(())
            });
        }
    }
}

#[test]
fn a_backward_from_before_the_last_step_is_refused_in_z3() {
    let parts = ["layers.", "as it was before the last step", "run backward before the step", "z2"];
    misused(Mode::Z3, &parts, |net, _, muon, rank| {
        let late = loss(net.forward(batch(0, rank)));
        let gradients = backward(&net, loss(net.forward(batch(1, rank))));
        let net = muon.step(0.05, net, gradients)?;
        backward(&net, late);
        Ok(())
    });
}

#[test]
fn a_parameter_unfrozen_after_dedicating_is_refused() {
    let mut net = net();
    net.layers[1].down = net.layers[1].down.clone().no_grad();
    for mode in MODES {
        let parts = ["\"layers.1.down.weight\" was frozen", "unfreeze before `Dedicate::apply`"];
        all_fail(2, &parts, |world| {
            let (net, _, _) = start(&world, &net, mode, MuonConfig::new())?;
            let net = net.unfreeze();
            backward(&net, loss(net.forward(batch(0, world.rank().0))));
            Ok(())
        });
    }
}

#[derive(Module, Debug)]
struct Spanning {
    layers: Hooked<Vec<Linear>>,
}

#[derive(Module, Debug)]
struct Twins {
    layers: Vec<Linear>,
}

fn linears(device: &Device) -> Vec<Linear> {
    (0..2).map(|_| LinearConfig::new(WIDTH, WIDTH).init(device)).collect()
}

#[test]
fn a_hooked_module_over_several_boundaries_is_refused() {
    let net = seeded(64, |device| Spanning { layers: Hooked::new(linears(device)) });
    let parts = ["holds parameters of several boundaries", "layers.0, layers.1", "wrap each block"];
    all_fail(2, &parts, |world| dedicate(&world, &net, |d| d));
}

#[test]
fn two_fields_with_one_parameter_are_refused() {
    let mut net = seeded(65, |device| Twins { layers: linears(device) });
    net.layers[1].weight = net.layers[0].weight.clone();
    let parts = ["\"layers.0.weight\" and \"layers.1.weight\"", "keep one field and use it twice"];
    all_fail(2, &parts, |world| dedicate(&world, &net, |d| d));
}

#[test]
fn settings_out_of_range_are_refused() {
    let init = |config: MuonConfig, parts: &[&str]| {
        misused(Mode::Z2, parts, |_, dedicated, _, _| config.init(dedicated).map(drop));
    };
    init(MuonConfig::new().with_ns_steps(9), &["1 to 5 steps", "9 were asked", "Jordan"]);
    init(MuonConfig::new().with_ns_steps(0), &["1 to 5 steps", "0 were asked"]);
    init(MuonConfig::new().with_momentum(1.0), &["momentum is 1: must be in [0, 1)"]);
    init(MuonConfig::new().with_momentum(f64::NAN), &["momentum is NaN"]);
    init(MuonConfig::new().with_weight_decay(-0.1), &["weight decay is -0.1"]);
    for (rates, parts) in [
        (f64::NAN.into(), ["muon learning rate is NaN", "finite"]),
        (Rates { muon: 0.1, adamw: f64::INFINITY }, ["adamw learning rate is inf", "finite"]),
    ] {
        misused(Mode::Z2, &parts, |net, _, muon, rank| {
            let gradients = backward(&net, loss(net.forward(batch(0, rank))));
            muon.step(rates, net, gradients).map(drop)
        });
    }
}

#[test]
fn a_boundary_that_does_not_exist_is_named() {
    misused(Mode::Z2, &["no boundary \"layers.7\"", "layers.0, layers.1"], |_, dedicated, _, _| {
        dedicated.boundary("layers.7").map(drop)
    });
}

#[test]
fn another_model_is_not_stepped() {
    misused(Mode::Z2, &["stem.", "pass the model that `Dedicate::apply`"], |net, _, muon, rank| {
        let gradients = backward(&net, loss(net.forward(batch(0, rank))));
        muon.step(0.05, self::net(), gradients).map(drop)
    });
}

#[test]
fn the_other_order_of_dedicating_and_sharding_is_refused() {
    let net = net();
    all_fail(2, &["already", "`Dedicate`, then `FullyShard`"], |world| {
        let mesh = Mesh::new(&world)?;
        let (net, _) = FullyShard::new(&mesh).apply(net.clone().fork(&device()))?;
        Dedicate::new(&mesh).apply(net).map(drop)
    });
    all_fail(2, &["apply `FullyShard` once"], |world| {
        let mesh = Mesh::new(&world)?;
        let (net, _) = FullyShard::new(&mesh).apply(net.clone().fork(&device()))?;
        FullyShard::new(&mesh).apply(net).map(drop)
    });
}

#[test]
fn sharding_that_contradicts_the_dedicated_model_is_refused() {
    let net = net();
    let contradicts = |parts: &[&str], shard: fn(FullyShard) -> FullyShard| {
        all_fail(2, parts, |world| {
            let (net, dedicated) = dedicate(&world, &net, |d| d.mode(Mode::Z2))?;
            shard(FullyShard::new(dedicated.mesh())).apply(net).map(drop)
        });
    };
    contradicts(&["another mode", "`Dedicate` alone"], |s| s.reshard_after_forward(true));
    contradicts(&["another prefetch depth"], |s| s.prefetch(3));
    contradicts(&["boundaries"], |s| s.boundaries(BoundaryRule::default()));
}

#[test]
fn an_optimizer_or_handle_from_before_sharding_is_refused() {
    let net = net();
    all_fail(2, &["the handle that came with the model"], |world| {
        let (net, dedicated) = dedicate(&world, &net, |d| d)?;
        let mut muon = MuonConfig::new().init(&dedicated)?;
        let (net, _) = FullyShard::new(dedicated.mesh()).apply(net)?;
        let gradients = backward(&net, loss(net.forward(batch(0, world.rank().0))));
        muon.step(0.1, net, gradients).map(drop)
    });
    all_fail(2, &["the handle that came with the model"], |world| {
        let (net, dedicated) = dedicate(&world, &net, |d| d)?;
        let (net, _) = FullyShard::new(dedicated.mesh()).apply(net)?;
        dedicated.publish(net).map(drop)
    });
}

#[test]
fn rules_that_cannot_be_followed_say_what_to_do() {
    let net = net();
    refused(&["adamw_sharded for \"*\"", "give it to `FullyShard`"], |d| {
        d.route("*", Route::AdamWSharded)
    });
    refused(&["frozen for \"*\"", "no_grad"], |d| d.route("*", Route::Frozen));
    refused(&["\"muon for \"stem.bias\"\"", "stem.bias [8]", "rank 2 or more"], |d| {
        d.route("stem.bias", Route::Muon)
    });
    all_fail(2, &["muon for \"*\"", "give it to `Dedicate`"], |world| {
        let mesh = Mesh::new(&world)?;
        let shard = FullyShard::new(&mesh).route("*", Route::Muon);
        shard.apply(net.clone().fork(&device())).map(drop)
    });
}

#[test]
fn a_sharded_weight_can_neither_be_saved_nor_replaced_by_a_whole_one() {
    let net = net();
    all_fail(2, &["\"stem.weight\"", "full_model"], |world| {
        let mesh = Mesh::new(&world)?;
        let (net, _) = FullyShard::new(&mesh).apply(net.clone().fork(&device()))?;
        catch(|| drop(net.into_record()))?;
        Ok(())
    });
    all_fail(2, &["\"stem.weight\" holds 64 elements where this rank holds"], |world| {
        let mesh = Mesh::new(&world)?;
        let (mut net, handle) = FullyShard::new(&mesh).apply(net.clone().fork(&device()))?;
        net.stem.weight = net.stem.weight.map(|_| Tensor::ones([WIDTH, WIDTH], &device()));
        handle.publish(net).map(drop)
    });
}
