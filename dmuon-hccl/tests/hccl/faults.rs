//! What ranks learn when a device, a communicator or a stream fails.

use crate::{
    double,
    ranks::{Ranks, assert_all_contain},
    suite::{PATIENCE, input, run},
};
use dmuon_core::{Call, Element, Error, Op, Result, Verify, World};
use std::{
    panic,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

fn barrier(world: &World) -> Result<()> {
    run(&*world.group(), Op::Barrier, 0, None).map(drop)
}

/// Long before anybody's deadline.
fn assert_soon(start: Instant) {
    assert!(start.elapsed() < PATIENCE / 2, "took {:?}", start.elapsed());
}

#[test]
fn what_a_communicator_notices_is_told_to_all() {
    let ranks = Ranks::new(3);
    // Rank 0's stream keeps the others waiting, one of whom looks and finds something.
    double::stall(ranks.device(0));
    double::notice(ranks.device(1), 21);
    let start = Instant::now();
    let texts = ranks.texts(|world| barrier(&world));
    assert_all_contain(
        &texts,
        &["rank 1: barrier", "HcclGetCommAsyncError returned 21", "error cqe"],
    );
    assert_soon(start);
}

#[test]
fn a_stream_that_times_out_is_told_to_all() {
    let ranks = Ranks::new(3);
    double::stall(ranks.device(2));
    double::lose_patience(ranks.device(0), 200);
    let start = Instant::now();
    let texts = ranks.texts(|world| barrier(&world));
    let parts = ["rank 0: barrier", "aclrtSynchronizeStreamWithTimeout returned 507048", "EI0002"];
    assert_all_contain(&texts, &parts);
    assert_soon(start);
}

#[test]
fn a_stalled_stream_ends_with_the_deadline() {
    let mut ranks = Ranks::new(3);
    ranks.options = ranks.options.with_deadline(Duration::from_millis(500));
    double::stall(ranks.device(1));
    let texts = ranks.texts(|world| {
        let work = world.group().start(dmuon_core::Call::barrier("step"), None)?;
        work.wait(Duration::from_millis(500)).map(drop)
    });
    assert_all_contain(&texts, &["timed out after 0.5 s; every rank arrived"]);
}

#[test]
fn a_device_without_memory_is_told_to_all() {
    let ranks = Ranks::new(2);
    let texts = ranks.texts(|world| {
        barrier(&world)?;
        double::run_out_of_memory(ranks.device(1));
        let own = Some(input(world.rank().0, 0, 1 << 20));
        run(&*world.group(), Op::AllReduce, 1 << 20, own).map(drop)
    });
    assert_all_contain(&texts, &["rank 1: all_reduce", "aclrtMalloc returned 207001", "EL0004"]);
}

/// A group's name, and so its thread's, that nothing else here has.
const QUEUED: &str = "queued when a peer died";

/// Panics of threads with that name.
static NUM_PANICS: AtomicUsize = AtomicUsize::new(0);

#[test]
fn calls_that_are_queued_when_a_peer_dies_end_without_a_panic() {
    let earlier = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let counts = thread::current().name() == Some(QUEUED);
        NUM_PANICS.fetch_add(usize::from(counts), Ordering::AcqRel);
        earlier(info);
    }));
    let ranks = Ranks::new(2);
    let texts = ranks.texts(|world| {
        let (rank, group) = (world.rank().0, world.group().split(0, world.rank().0, QUEUED)?);
        double::stall(ranks.device(0));
        let (own, call) = (input(rank, 0, 4), Call::new(Op::AllReduce, "sum", Element::F32, 4));
        let works = [(); 2].map(|()| group.start(call.clone(), Some(own.clone())));
        if rank == 1 {
            wait_until(|| double::num_calls(ranks.device(0), "HcclAllReduce") == 1);
            return Err(Error::message("out of luck"));
        }
        let outcomes = works.map(|work| work?.wait(PATIENCE).map(drop));
        // The thread lets go of what a call has brought when it is done with it.
        wait_until(|| own.num_handles() == 1);
        outcomes.into_iter().collect()
    });
    assert_all_contain(&texts, &["out of luck"]);
    assert_eq!(NUM_PANICS.load(Ordering::Acquire), 0);
}

#[test]
fn a_call_that_nobody_waits_for_has_the_deadline() {
    let mut ranks = Ranks::new(2);
    ranks.options = ranks.options.with_deadline(Duration::from_millis(500));
    let texts = ranks.texts(|world| {
        if world.rank().0 == 0 {
            return world.group().start(Call::barrier("step"), None).map(drop);
        }
        wait_until(|| world.group().health().is_err());
        world.group().health()
    });
    let expected =
        "rank 0: barrier of \"step\" on world #0 timed out after 0.5 s; not arrived: [1]";
    assert_eq!(texts[1], expected);
}

fn wait_until(poll: impl Fn() -> bool) {
    let start = Instant::now();
    while !poll() {
        assert!(start.elapsed() < PATIENCE, "it does not happen");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Without verification, a missing rank must not let the others into the library either.
#[test]
fn nobody_is_in_the_library_while_a_rank_is_missing() {
    let mut ranks = Ranks::new(3);
    ranks.options = ranks.options.with_verify(Verify::Never);
    let texts = ranks.texts(|world| {
        if world.rank().0 == 1 {
            while world.group().health().is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
            return world.group().health();
        }
        let work = world.group().start(dmuon_core::Call::barrier("step"), None)?;
        work.wait(Duration::from_millis(300)).map(drop)
    });
    assert_all_contain(&texts, &["timed out after 0.3 s; not arrived: [1]"]);
    assert!((0..3).all(|rank| double::num_calls(ranks.device(rank), "HcclAllReduce") == 0));
}
