//! What moves, counted: payload against the formulas, calls against the plan, and when reduces start.

use crate::support::*;
use burn::tensor::Tensor;
use dmuon::partition::{ElemBytes, Traffic};
use dmuon::runtime::{Counters, Event};
use dmuon::{Dedicated, EventKind, Mode, OpKind, Plan};

/// One forward and backward; returns each rank's counters and events of it, and the plan.
fn one_step(
    num_ranks: usize,
    num_layers: usize,
    mode: Mode,
    prefetch: usize,
) -> (Vec<(Counters, Vec<Event>)>, Plan) {
    let net = seeded(1, |device| Net::new(num_layers, device));
    let ranks = on_ranks(num_ranks, |world| {
        let (net, dedicated) = dedicate(&world, &net, |d| d.mode(mode).prefetch(prefetch))?;
        world.recorder().reset_counters();
        let loss = loss(net.forward(batch(0, world.rank().0)));
        let _ = loss.backward();
        let recorder = world.recorder();
        Ok(((recorder.counters(), recorder.events()), dedicated.plan().clone()))
    });
    let (ranks, plans): (Vec<_>, Vec<_>) = ranks.unwrap().into_iter().unzip();
    (ranks, plans[0].clone())
}

fn payload(ranks: &[(Counters, Vec<Event>)], group: &str, op: OpKind) -> u64 {
    ranks.iter().map(|(counters, _)| counters.of_group(group, op).payload_bytes).sum()
}

#[test]
fn payload_over_all_ranks_equals_the_formulas() {
    for num_ranks in [1, 2, 3, 4, 8] {
        for (mode, weight_passes) in [(Mode::Z2, 1), (Mode::Z3, 2)] {
            for prefetch in [0, 1, 9] {
                let (ranks, plan) = one_step(num_ranks, 4, mode, prefetch);
                let owned = 4 * plan.total_elems() as u64;
                let others = num_ranks as u64 - 1;
                let weights = payload(&ranks, "shard/weights", OpKind::Broadcast);
                assert_eq!(weights, weight_passes * others * owned, "{num_ranks} {mode}");
                let gradients = payload(&ranks, "shard/gradients", OpKind::Reduce);
                assert_eq!(gradients, others * owned, "{num_ranks} {mode}");
                let predicted = Traffic::predict(&plan, mode, ElemBytes::FP32);
                assert_eq!(weights, predicted.weights_per_micro_batch() as u64);
                assert_eq!(gradients, predicted.gradients_per_sync() as u64);
            }
        }
    }
}

#[test]
fn one_broadcast_and_one_reduce_for_each_boundary_and_owner() {
    for (mode, weight_passes) in [(Mode::Z2, 1), (Mode::Z3, 2)] {
        let (ranks, plan) = one_step(3, 4, mode, 1);
        let packs: u64 = plan.boundaries().iter().map(|b| b.packs.len() as u64).sum();
        assert!(packs < plan.num_matrices() as u64 + 4);
        for (counters, _) in &ranks {
            let broadcasts = counters.of_group("shard/weights", OpKind::Broadcast);
            assert_eq!(broadcasts.num_calls, weight_passes * packs, "{mode}");
            assert_eq!(counters.of_group("shard/gradients", OpKind::Reduce).num_calls, packs);
            // Norms and biases of each boundary, and stem and head: one call each.
            let averaged = counters.of_group("shard/gradients", OpKind::AllReduce);
            assert_eq!(averaged.num_calls, plan.boundaries().len() as u64 + 1);
        }
    }
}

#[test]
fn a_boundary_starts_its_reduce_before_the_previous_one_runs_backward() {
    for mode in [Mode::Z2, Mode::Z3] {
        let (ranks, _) = one_step(2, 4, mode, 1);
        for (_, events) in &ranks {
            let at = |kind: EventKind, label: &str| {
                let found = events.iter().position(|e| e.kind == kind && &*e.label == label);
                found.unwrap_or_else(|| panic!("no {kind:?} of {label}"))
            };
            for layer in 1..4 {
                let (this, previous) = (format!("layers.{layer}"), format!("layers.{}", layer - 1));
                let reduced = at(EventKind::Issued(OpKind::Reduce), &this);
                assert!(reduced < at(EventKind::BackwardEnter, &previous), "{mode} {this}");
            }
            let last = at(EventKind::Issued(OpKind::Reduce), "layers.0");
            assert!(last < events.iter().position(|e| e.kind == EventKind::Root).unwrap());
        }
    }
}

#[test]
fn the_next_boundary_is_prefetched_in_both_directions() {
    let (ranks, _) = one_step(2, 4, Mode::Z3, 1);
    for (_, events) in &ranks {
        let broadcast = EventKind::Issued(OpKind::Broadcast);
        let issued: Vec<usize> =
            (0..events.len()).filter(|&at| events[at].kind == broadcast).collect();
        let of = |label: &str| -> Vec<usize> {
            issued.iter().copied().filter(|&at| &*events[at].label == label).collect()
        };
        let first = |kind: EventKind, label: &str| {
            events.iter().position(|e| e.kind == kind && &*e.label == label).unwrap()
        };
        for layer in 1..4 {
            let (this, previous) = (format!("layers.{layer}"), format!("layers.{}", layer - 1));
            let forward = *of(&this).first().unwrap();
            assert!(forward < first(EventKind::ForwardLeave, &previous), "{this}");
            let backward = *of(&previous).last().unwrap();
            assert!(backward < first(EventKind::BackwardLeave, &this), "{previous}");
        }
    }
}

/// A first block on raw input: nothing in backward reads its weight.
fn raw_steps(world: dmuon::World, num_steps: usize) -> dmuon::Result<(Vec<u64>, Dedicated)> {
    use burn::nn::{Linear, LinearConfig};
    #[derive(burn::module::Module, Debug)]
    struct Raw {
        layers: Vec<dmuon::Hooked<Linear>>,
    }
    let raw = seeded(5, |device| Raw {
        layers: (0..3)
            .map(|_| dmuon::Hooked::new(LinearConfig::new(WIDTH, WIDTH).init(device)))
            .collect(),
    });
    let (mut raw, dedicated) = dedicate(&world, &raw, |d| d.mode(Mode::Z3))?;
    let mut muon = dmuon::MuonConfig::new().init(&dedicated)?;
    let mut moved = Vec::new();
    for step in 0..num_steps {
        world.recorder().reset_counters();
        let x: Tensor<3> = batch(step, world.rank().0);
        let y = raw.layers.iter().fold(x, |x, layer| layer.run(x, |linear, x| linear.forward(x)));
        let backward = loss(y).backward();
        let counters = world.recorder().counters();
        moved.push(counters.of_group("shard/weights", OpKind::Broadcast).payload_bytes);
        let gradients = burn::optim::GradientsParams::from_grads(backward, &raw);
        raw = muon.step(1e-2, raw, gradients)?;
    }
    Ok((moved, dedicated))
}

#[test]
fn a_boundary_nobody_reads_in_backward_is_not_broadcast_again_after_the_first_step() {
    let ranks = on_ranks(2, |world| {
        let (moved, dedicated) = raw_steps(world, 3)?;
        Ok((moved, dedicated.plan().clone()))
    })
    .unwrap();
    let plan = &ranks[0].1;
    let total = |step: usize| -> u64 { ranks.iter().map(|(moved, _)| moved[step]).sum() };
    let full = Traffic::predict(plan, Mode::Z3, ElemBytes::FP32);
    assert_eq!(total(0), full.weights_per_micro_batch() as u64);
    let learned = full.without_backward(0);
    assert_eq!(total(1), learned.weights_per_micro_batch() as u64);
    assert_eq!(total(2), learned.weights_per_micro_batch() as u64);
    assert!(total(1) < total(0));
}
