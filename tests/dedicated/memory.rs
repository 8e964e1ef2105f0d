//! What a rank can reach, by the ledger and by counted buffers: Z2 and Z3 keep what they promise.

use crate::support::*;
use burn::module::Module;
use dmuon::runtime::{Call, Ledger, Sharing};
use dmuon::{Holding, Mode, Plan, Rank, Result, World};

const LAYERS: usize = 6;

/// Bytes of a unit's packed weights that rank does not own.
fn borrowed_bytes(plan: &Plan, rank: Rank) -> Vec<usize> {
    let borrowed = |boundary: &dmuon::partition::Boundary| {
        let others = boundary.packs.iter().filter(|pack| pack.owner != rank);
        others.flat_map(|pack| &pack.matrices).map(|&matrix| aligned(plan, matrix)).sum()
    };
    plan.boundaries().iter().map(borrowed).collect()
}

/// A matrix in a packed buffer takes whole lines of 64 bytes.
fn aligned(plan: &Plan, matrix: usize) -> usize {
    (4 * plan.matrices()[matrix].matrix.elems()).next_multiple_of(64)
}

fn loans(ledger: &Ledger) -> usize {
    ledger.current_bytes(Holding::Weights)
}

/// The largest sum over `width` neighbours.
fn largest_window(bytes: &[usize], width: usize) -> usize {
    bytes.windows(width.min(bytes.len())).map(|w| w.iter().sum()).max().unwrap_or(0)
}

#[test]
fn z3_borrows_no_more_than_one_boundary_and_the_prefetched_ones() {
    let net = seeded(1, |device| Net::new(LAYERS, device));
    for prefetch in [0, 1, 2] {
        on_ranks(4, |world| {
            let (net, dedicated) = dedicate(&world, &net, |d| d.mode(Mode::Z3).prefetch(prefetch))?;
            let borrowed = borrowed_bytes(dedicated.plan(), world.rank());
            let bound = largest_window(&borrowed, 1 + prefetch);
            let ledger = world.ledger();
            assert_eq!(loans(ledger), 0);
            ledger.reset_peak();
            let loss = loss(net.forward(batch(0, world.rank().0)));
            assert_eq!(loans(ledger), 0, "after forward");
            let peak = ledger.peak_bytes(Holding::Weights);
            assert!(0 < peak && peak <= bound, "forward: {peak} of {bound}");
            ledger.reset_peak();
            let _ = loss.backward();
            assert_eq!(loans(ledger), 0, "after backward");
            let peak = ledger.peak_bytes(Holding::Weights);
            assert!(0 < peak && peak <= bound, "backward: {peak} of {bound}");
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn nothing_is_left_of_a_model_that_is_dropped() {
    let net = seeded(1, |device| Net::new(LAYERS, device));
    on_ranks(2, |world| {
        let (net, dedicated) = dedicate(&world, &net, |d| d.mode(Mode::Z2))?;
        drop(loss(net.forward(batch(0, world.rank().0))).backward());
        assert!(net.num_params() > 0, "a traversal keeps nothing");
        assert!(world.ledger().current_total_bytes() > 0);
        drop((net, dedicated));
        assert_eq!(world.ledger().current_total_bytes(), 0);
        Ok(())
    })
    .unwrap();
}

#[test]
fn z3_frees_views_of_weights_on_a_checkpointing_device() {
    // Burn keeps a view of a linear weight on the tape when the rows fill its tiles, as here.
    let shape = [2, 32, WIDTH];
    let device = device().gradient_checkpointing();
    let input = || burn::tensor::Tensor::<3>::ones(shape, &device);
    let net = seeded(1, |_| Net::new(LAYERS, &device));
    on_ranks(2, |world| {
        let mesh = dmuon::Mesh::new(&world)?;
        let (net, _dedicated) = dmuon::Dedicate::new(&mesh)
            .mode(Mode::Z3)
            .apply(burn::module::Module::fork(net.clone(), &device))?;
        let loss = loss(net.forward(input()));
        assert_eq!(loans(world.ledger()), 0, "after forward");
        let _ = loss.backward();
        assert_eq!(loans(world.ledger()), 0, "after backward");
        Ok(())
    })
    .unwrap();
}

#[test]
fn z2_borrows_everything_until_each_boundarys_backward() {
    let net = seeded(1, |device| Net::new(LAYERS, device));
    on_ranks(3, |world| {
        let (net, dedicated) = dedicate(&world, &net, |d| d.mode(Mode::Z2))?;
        let all: usize = borrowed_bytes(dedicated.plan(), world.rank()).iter().sum();
        let loss = loss(net.forward(batch(0, world.rank().0)));
        assert_eq!(loans(world.ledger()), all);
        let _ = loss.backward();
        assert_eq!(loans(world.ledger()), 0);
        Ok(())
    })
    .unwrap();
}

#[test]
fn between_steps_a_rank_holds_what_it_owns() {
    let net = seeded(1, |device| Net::new(LAYERS, device));
    let owned = on_ranks(4, |world| {
        let (_net, dedicated) = dedicate(&world, &net, |d| d)?;
        let plan = dedicated.plan();
        let mine = plan.owned_by(world.rank()).iter().map(|&matrix| aligned(plan, matrix));
        let replicated: usize = dedicated
            .routes()
            .entries
            .iter()
            .filter(|entry| entry.owner.is_none())
            .map(|entry| (4 * entry.shape.iter().product::<usize>()).next_multiple_of(64))
            .sum();
        let held = world.ledger().current_bytes(Holding::OwnedWeights);
        assert_eq!(held, mine.sum::<usize>() + replicated);
        Ok(held - replicated)
    })
    .unwrap();
    let whole: usize = owned.iter().sum();
    assert!(owned.iter().all(|&held| held < whole / 2));
}

/// Waits until every rank is done with what came before: results that are alike on all ranks live
/// in the first rank's pool until the last rank lets go.
fn settle(world: &World) {
    let barrier = Call::barrier("settle");
    world.group().start(barrier, None).unwrap().wait(DEADLINE).unwrap();
}

/// Live bytes of a rank's own buffers, when each rank copies what it receives.
fn copied(
    mode: Mode,
    measure: impl Fn(&World, &dyn Fn() -> burn::tensor::Tensor<1>, usize) + Sync,
) {
    let net = seeded(1, |device| Net::new(LAYERS, device));
    let options = options().with_sharing(Sharing::Copy);
    dmuon::launch_with(4, &options, |world| -> Result<()> {
        let (net, dedicated) = dedicate(&world, &net, |d| d.mode(mode).prefetch(0))?;
        let borrowed = borrowed_bytes(dedicated.plan(), world.rank());
        let bound = match mode {
            Mode::Z2 => borrowed.iter().sum(),
            Mode::Z3 => largest_window(&borrowed, 1),
        };
        let rank = world.rank().0;
        measure(&world, &|| loss(net.forward(batch(0, rank))), bound);
        Ok(())
    })
    .unwrap();
}

#[test]
fn counted_buffers_confirm_the_ledger() {
    for mode in [Mode::Z2, Mode::Z3] {
        copied(mode, |world, forward, bound| {
            settle(world);
            let before = world.pool().in_use_bytes();
            world.pool().reset_high_water();
            let loss = forward();
            let held = world.pool().in_use_bytes() - before;
            let high = world.pool().high_water_bytes() - before;
            match mode {
                Mode::Z2 => assert_eq!(held, bound),
                Mode::Z3 => assert_eq!(held, 0),
            }
            assert!(high <= bound, "{mode}: {high} of {bound}");
            drop(loss);
        });
    }
}

#[test]
fn gradient_buffers_return_to_the_pool_inside_backward() {
    copied(Mode::Z3, |world, forward, _| {
        settle(world);
        let before = world.pool().in_use_bytes();
        let loss = forward();
        world.pool().reset_high_water();
        let gradients = loss.backward();
        settle(world);
        // What is left are this rank's own averages, which the optimizer is about to take.
        let averages = world.ledger().current_bytes(Holding::Gradients);
        assert_eq!(world.pool().in_use_bytes() - before, averages);
        settle(world);
        drop(gradients);
        assert_eq!(world.pool().in_use_bytes(), before);
    });
}
