//! Meshes with replicas: one owner in the whole mesh, two reduces, publishing along the replicate axis.

use crate::support::*;
use burn::module::Module;
use burn::optim::GradientsParams;
use dmuon::newton_schulz::Form;
use dmuon::partition::{ElemBytes, Traffic};
use dmuon::{Holding, Mode, MuonConfig, OpKind, Rank, ReplicatePublish};
use std::time::Duration;

const STEPS: usize = 20;

struct Run {
    losses: Vec<Vec<f32>>,
    weights: Named,
}

/// Trains on a mesh; `skew` makes ranks sleep between the parts of a step.
fn train(mesh: (usize, usize), mode: Mode, publish: ReplicatePublish, skew: bool) -> Run {
    train_in(Form::Auto, mesh, mode, publish, skew)
}

fn train_in(
    form: Form,
    mesh: (usize, usize),
    mode: Mode,
    publish: ReplicatePublish,
    skew: bool,
) -> Run {
    let net = seeded(1, |device| Net::new(3, device));
    let mut ranks = on_ranks(mesh.0 * mesh.1, |world| {
        let request = |d: dmuon::Dedicate| d.mode(mode).publish(publish);
        let (mut net, dedicated) = dedicate_on(&world, mesh, &net, request)?;
        let mut muon = MuonConfig::new().with_form(form).init(&dedicated)?;
        let mut losses = Vec::new();
        let rank = world.rank().0;
        let rest = |part: usize, step: usize| {
            if skew {
                let millis = (rank * 7 + step * 5 + part * 3) % 4;
                std::thread::sleep(Duration::from_millis(millis as u64));
            }
        };
        for step in 0..STEPS {
            let loss = loss(net.forward(batch(step, rank)));
            losses.push(loss.clone().into_scalar::<f32>());
            rest(0, step);
            let gradients = GradientsParams::from_grads(loss.backward(), &net);
            rest(1, step);
            net = muon.step(0.02, net, gradients)?;
            rest(2, step);
        }
        // What a forward would use, from the copies of every replica: all must equal the owners'.
        let used = values(&net.valid().materialize());
        let full = dedicated.full_model(&net, Rank(0))?;
        Ok((losses, used, full.map(|full| values(&full))))
    })
    .unwrap();
    let weights = ranks[0].2.take().unwrap();
    for (rank, (_, used, _)) in ranks.iter().enumerate() {
        assert!(used.keys().eq(weights.keys()));
        for (name, used) in used {
            assert_same_bits(used, &weights[name], &format!("{mesh:?} rank {rank}: {name}"));
        }
    }
    Run { losses: ranks.into_iter().map(|(losses, ..)| losses).collect(), weights }
}

fn assert_same(a: &Run, b: &Run, what: &str) {
    for (rank, (a, b)) in a.losses.iter().zip(&b.losses).enumerate() {
        assert_same_bits(a, b, &format!("{what}: losses of rank {rank}"));
    }
    for (name, weight) in &a.weights {
        assert_same_bits(weight, &b.weights[name], &format!("{what}: {name}"));
    }
}

#[test]
fn power_of_two_meshes_of_one_world_agree_bit_for_bit() {
    for (flat, others) in [((1, 4), vec![(2, 2), (4, 1)]), ((1, 8), vec![(2, 4), (4, 2), (8, 1)])] {
        for mode in [Mode::Z2, Mode::Z3] {
            let reference = train(flat, mode, ReplicatePublish::Async, false);
            for &mesh in &others {
                let run = train(mesh, mode, ReplicatePublish::Async, false);
                assert_same(&reference, &run, &format!("{mode} {mesh:?} against {flat:?}"));
            }
        }
    }
}

#[test]
fn async_and_sync_publishing_agree_bit_for_bit_however_ranks_are_skewed() {
    for mesh in [(1, 3), (3, 1), (2, 2), (2, 3), (4, 2)] {
        for mode in [Mode::Z2, Mode::Z3] {
            let sync = train(mesh, mode, ReplicatePublish::Sync, false);
            let skewed = train(mesh, mode, ReplicatePublish::Async, true);
            assert_same(&sync, &skewed, &format!("{mode} {mesh:?}"));
        }
    }
}

/// Sums of six in two trees of three differ from one tree of six by rounding, which the direct form
/// passes on as in `steps.rs`.
const OTHER_TREE: f32 = 1e-4;

#[test]
fn other_meshes_agree_to_rounding() {
    let direct = |mesh| train_in(Form::Direct, mesh, Mode::Z2, ReplicatePublish::Async, false);
    let flat = direct((1, 6));
    for mesh in [(2, 3), (3, 2), (6, 1)] {
        let run = direct(mesh);
        for (name, weight) in &flat.weights {
            for (a, b) in weight.iter().zip(&run.weights[name]) {
                assert!((a - b).abs() < OTHER_TREE, "{mesh:?} {name}");
            }
        }
    }
}

#[test]
fn averaged_gradients_reach_exactly_one_owner() {
    let net = seeded(1, |device| Net::new(3, device));
    for mesh in [(2, 2), (4, 1), (2, 3)] {
        let num_ranks = mesh.0 * mesh.1;
        let plain: Vec<Named> = (0..num_ranks)
            .map(|rank| plain_gradients(&net, |net| loss(net.forward(batch(0, rank)))))
            .collect();
        let ranks = on_ranks(num_ranks, |world| {
            let (net, dedicated) = dedicate_on(&world, mesh, &net, |d| d.mode(Mode::Z3))?;
            let backward = loss(net.forward(batch(0, world.rank().0))).backward();
            let found = gradients(&net, &GradientsParams::from_grads(backward, &net));
            Ok((found, dedicated.routes().clone()))
        })
        .unwrap();
        for entry in &ranks[0].1.entries {
            let with = (0..num_ranks).filter(|&rank| ranks[rank].0.contains_key(&entry.name));
            let expected: Vec<usize> = match entry.owner {
                Some(owner) => vec![owner],
                None => (0..num_ranks).collect(),
            };
            assert_eq!(with.collect::<Vec<_>>(), expected, "{mesh:?} {}", entry.name);
            let of_ranks: Vec<_> = plain.iter().map(|plain| plain[&entry.name].clone()).collect();
            let mean = tree_mean(&of_ranks);
            for rank in expected {
                let found = &ranks[rank].0[&entry.name];
                match num_ranks.is_power_of_two() {
                    true => assert_same_bits(found, &mean, &entry.name),
                    false => {
                        let largest = mean.iter().fold(f32::MIN_POSITIVE, |m, v| m.max(v.abs()));
                        let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-6 * largest;
                        assert!(found.iter().zip(&mean).all(close), "{mesh:?} {}", entry.name);
                    }
                }
            }
        }
    }
}

#[test]
fn payload_on_each_axis_equals_the_formulas() {
    let net = seeded(1, |device| Net::new(4, device));
    for mesh in [(1, 4), (2, 2), (4, 1), (2, 3)] {
        for mode in [Mode::Z2, Mode::Z3] {
            let ranks = on_ranks(mesh.0 * mesh.1, |world| {
                let (net, dedicated) = dedicate_on(&world, mesh, &net, |d| d.mode(mode))?;
                let mut muon = MuonConfig::new().init(&dedicated)?;
                world.recorder().reset_counters();
                let backward = loss(net.forward(batch(0, world.rank().0))).backward();
                let _ =
                    muon.step(0.01, net.clone(), GradientsParams::from_grads(backward, &net))?;
                Ok((world.recorder().counters(), dedicated.plan().clone()))
            })
            .unwrap();
            let plan = &ranks[0].1;
            let total = |group: &str, op: OpKind| -> u64 {
                ranks.iter().map(|(counters, _)| counters.of_group(group, op).payload_bytes).sum()
            };
            let traffic = Traffic::predict(plan, mode, ElemBytes::FP32);
            let what = format!("{mesh:?} {mode}");
            // One replica's are predicted, and there are as many as the replicate axis is long.
            let axes = [
                (OpKind::Broadcast, "shard/weights", mesh.0 * traffic.weights_per_micro_batch()),
                (OpKind::Reduce, "shard/gradients", mesh.0 * traffic.gradients_per_sync()),
                (OpKind::Reduce, "replicate/gradients", traffic.replicate_gradients_per_step()),
                (OpKind::Broadcast, "replicate/weights", traffic.publish_per_step()),
            ];
            for (op, group, predicted) in axes {
                assert_eq!(total(group, op), predicted as u64, "{what} {group}");
            }
        }
    }
}

#[test]
fn a_rank_holds_its_columns_matrices_between_steps_and_copies_agree() {
    let mesh = (2, 2);
    let net = seeded(1, |device| Net::new(4, device));
    let ranks = on_ranks(4, |world| {
        let (net, dedicated) = dedicate_on(&world, mesh, &net, |d| d)?;
        let mut muon = MuonConfig::new().init(&dedicated)?;
        let backward = loss(net.forward(batch(0, world.rank().0))).backward();
        let _net = muon.step(0.01, net.clone(), GradientsParams::from_grads(backward, &net))?;
        drop(net);
        dedicated.drain()?;
        let held = world.ledger().current_bytes(Holding::OwnedWeights);
        Ok((held, dedicated.plan().clone(), dedicated.routes().clone()))
    })
    .unwrap();
    let (_, plan, routes) = &ranks[0];
    let bytes = |elems: usize| (4 * elems).next_multiple_of(64);
    let replicated: usize = routes
        .entries
        .iter()
        .filter(|entry| entry.owner.is_none())
        .map(|entry| bytes(entry.shape.iter().product()))
        .sum();
    for (rank, (held, ..)) in ranks.iter().enumerate() {
        let column = (0..plan.num_matrices())
            .filter(|&matrix| plan.owner_coordinate(matrix).shard == rank % mesh.1)
            .map(|matrix| bytes(plan.matrices()[matrix].matrix.elems()))
            .sum::<usize>();
        assert_eq!(*held, column + replicated, "rank {rank}");
    }
}

#[test]
fn steps_without_a_forward_between_and_skipped_steps_work() {
    let net = seeded(1, |device| Net::new(2, device));
    on_ranks(4, |world| {
        let (mut net, dedicated) = dedicate_on(&world, (2, 2), &net, |d| d)?;
        let mut muon = MuonConfig::new().init(&dedicated)?;
        for _ in 0..3 {
            net = muon.step(0.01, net, GradientsParams::new())?;
        }
        let backward = loss(net.forward(batch(0, world.rank().0))).backward();
        net = muon.step(0.01, net.clone(), GradientsParams::from_grads(backward, &net))?;
        let evaluated = net.clone();
        let y = loss(evaluated.forward(batch(1, 0))).into_scalar::<f32>();
        assert!(y.is_finite());
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_replica_that_dies_during_a_publish_is_named_at_the_next_forward() {
    let net = seeded(1, |device| Net::new(2, device));
    let outcomes = dmuon::runtime::launch_each::<f32, dmuon::Error, _>(4, &options(), |world| {
        let (mut net, dedicated) = dedicate_on(&world, (2, 2), &net, |d| d)?;
        let mut muon = MuonConfig::new().init(&dedicated)?;
        for step in 0..3 {
            let backward = loss(net.forward(batch(step, world.rank().0))).backward();
            let gradients = GradientsParams::from_grads(backward, &net);
            if step == 1 && world.rank() == Rank(3) {
                panic!("rank 3 has had enough");
            }
            net = muon.step(0.01, net, gradients)?;
        }
        Ok(loss(net.forward(batch(9, 0))).into_scalar())
    })
    .unwrap();
    for (rank, outcome) in outcomes.iter().enumerate() {
        let message = outcome.as_ref().unwrap_err().to_string();
        assert!(message.contains("rank 3"), "rank {rank}: {message}");
    }
}

#[test]
fn accumulation_within_replicas_sums_micro_batches_and_crosses_the_mesh_once() {
    let net = seeded(1, |device| Net::new(3, device));
    for mesh in [(1, 2), (2, 2), (4, 1)] {
        for mode in [Mode::Z2, Mode::Z3] {
            let num_ranks = mesh.0 * mesh.1;
            let ranks = on_ranks(num_ranks, |world| {
                let rank = world.rank().0;
                let (net, dedicated) = dedicate_on(&world, mesh, &net, |d| d.mode(mode))?;
                world.recorder().reset_counters();
                let inside = dedicated.accumulate(|| {
                    let first = loss(net.forward(batch(0, rank))).backward();
                    let second = loss(net.forward(batch(1, rank))).backward();
                    [first, second].map(|grads| GradientsParams::from_grads(grads, &net).len())
                });
                assert_eq!(inside, [0, 0]);
                let mut muon = MuonConfig::new().init(&dedicated)?;
                let early = muon.step(0.01, net.clone(), GradientsParams::new());
                assert!(early.unwrap_err().to_string().contains("outside it"));
                // Looking at the model in between loses nothing.
                dedicated.full_model(&net, Rank(0))?;
                let last = loss(net.forward(batch(2, rank))).backward();
                let found = gradients(&net, &GradientsParams::from_grads(last, &net));
                let after = loss(net.forward(batch(3, rank))).backward();
                let after = gradients(&net, &GradientsParams::from_grads(after, &net));
                let counters = world.recorder().counters();
                let crossed =
                    counters.of_group("replicate/gradients", OpKind::Reduce).payload_bytes;
                Ok((found, after, crossed, dedicated.plan().clone()))
            })
            .unwrap();
            let plain = |step: usize, name: &str| -> Vec<Vec<f32>> {
                (0..num_ranks)
                    .map(|rank| {
                        plain_gradients(&net, |net| loss(net.forward(batch(step, rank))))
                            .remove(name)
                            .unwrap()
                    })
                    .collect()
            };
            let name = "layers.1.up.weight";
            let owner = ranks.iter().position(|(found, ..)| found.contains_key(name)).unwrap();
            let means: Vec<_> = (0..3).map(|step| tree_mean(&plain(step, name))).collect();
            for (at, found) in ranks[owner].0[name].iter().enumerate() {
                let sum: f32 = means.iter().map(|mean| mean[at]).sum();
                // Sums of three are taken before the division by the number of ranks here, after it
                // there: two roundings of values of this size.
                assert!((found - sum).abs() <= 4e-7 * (1.0 + sum.abs()), "{mesh:?} {mode}");
            }
            let after = tree_mean(&plain(3, name));
            assert_same_bits(&ranks[owner].1[name], &after, "the backward after sees only its own");
            let crossed: u64 = ranks.iter().map(|(_, _, crossed, _)| crossed).sum();
            let once = 4 * (mesh.0 - 1) * ranks[0].3.total_elems();
            assert_eq!(crossed, 2 * once as u64, "the last of three, and the one after");
        }
    }
}

#[test]
fn publishes_on_a_slow_link_are_awaited_inside_the_next_forward() {
    use dmuon::runtime::Link;
    let net = seeded(1, |device| Net::new(4, device));
    let latency = Duration::from_millis(3);
    let link = Link { latency, bytes_per_second: 1e12, groups: "replicate/" };
    for publish in [ReplicatePublish::Async, ReplicatePublish::Sync] {
        let options = options().with_link(link);
        let ranks = dmuon::launch_with::<_, dmuon::Error, _>(4, &options, |world| {
            let (mut net, dedicated) = dedicate_on(&world, (4, 1), &net, |d| d.publish(publish))?;
            let mut muon = MuonConfig::new().init(&dedicated)?;
            let rank = world.rank().0;
            let backward = loss(net.forward(batch(0, rank))).backward();
            let gradients = GradientsParams::from_grads(backward, &net);
            let before = world.recorder().events().len();
            net = muon.step(0.01, net, gradients)?;
            let _ = net.forward(batch(1, rank));
            Ok(world.recorder().events().split_off(before))
        })
        .unwrap();
        for events in &ranks {
            let entered = events.iter().position(|e| e.kind == dmuon::EventKind::ForwardEnter);
            let arrived = events.iter().filter(|event| {
                event.kind == dmuon::EventKind::Completed(OpKind::Broadcast)
                    && event.group.as_deref() == Some("replicate/weights")
            });
            let inside = arrived.clone().filter(|event| event.at > events[entered.unwrap()].at);
            assert!(arrived.count() > 0);
            assert_eq!(inside.count() > 0, publish == ReplicatePublish::Async);
        }
    }
}
