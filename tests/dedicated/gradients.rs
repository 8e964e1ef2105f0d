//! Averaged gradients against plain Burn's, bit for bit.

use crate::support::*;
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use dmuon::{Mode, Rank};

/// Checks every rank's registered gradients against the mean of what plain Burn computes.
fn check<M: Module + Sync>(
    num_ranks: usize,
    mode: Mode,
    prefetch: usize,
    model: &M,
    forward: impl Fn(&M, Tensor<3>) -> Tensor<3> + Sync,
) {
    let plain: Vec<Named> = (0..num_ranks)
        .map(|rank| plain_gradients(model, |model| loss(forward(model, batch(0, rank)))))
        .collect();
    let found = on_ranks(num_ranks, |world| {
        let (model, dedicated) = dedicate(&world, model, |d| d.mode(mode).prefetch(prefetch))?;
        let loss = loss(forward(&model, batch(0, world.rank().0)));
        let found = gradients(&model, &GradientsParams::from_grads(loss.backward(), &model));
        Ok((found, dedicated.routes().clone()))
    })
    .unwrap();
    for (rank, (found, routes)) in found.iter().enumerate() {
        let here = |owner: Option<usize>| owner.is_none_or(|owner| owner == rank);
        let expected = routes.entries.iter().filter(|entry| here(entry.owner));
        assert!(
            found.keys().eq(expected
                .clone()
                .map(|entry| &entry.name)
                .collect::<std::collections::BTreeSet<_>>()),
            "rank {rank}"
        );
        for (name, gradient) in found {
            let ranks: Vec<_> = plain.iter().map(|plain| plain[name].clone()).collect();
            assert_same_bits(gradient, &tree_mean(&ranks), &format!("rank {rank}: {name}"));
        }
    }
    assert!(found[0].1.entries.iter().any(|entry| entry.owner == Some(Rank(num_ranks - 1).0)));
}

#[test]
fn hooked_blocks_average_plain_burns_gradients_bit_for_bit() {
    let net = seeded(1, |device| Net::new(3, device));
    for num_ranks in [1, 2, 3, 4] {
        for (mode, prefetch) in [(Mode::Z2, 0), (Mode::Z2, 1), (Mode::Z3, 0), (Mode::Z3, 2)] {
            check(num_ranks, mode, prefetch, &net, Net::forward);
        }
    }
}

#[test]
fn eight_ranks_average_bit_for_bit() {
    let net = seeded(2, |device| Net::new(4, device));
    for mode in [Mode::Z2, Mode::Z3] {
        check(8, mode, 1, &net, Net::forward);
    }
}

#[test]
fn a_closed_encoder_averages_bit_for_bit() {
    let net = seeded(3, |device| Closed::new(2, device));
    for num_ranks in [1, 2, 3, 4] {
        for mode in [Mode::Z2, Mode::Z3] {
            check(num_ranks, mode, 1, &net, Closed::forward);
        }
    }
}
