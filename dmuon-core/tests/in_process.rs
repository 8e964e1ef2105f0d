//! What only ranks that are threads can promise: shared memory, pretended links, launching.

use dmuon_core::{
    Buffer, Call, DeviceTransfer, Dump, Element, EngineOptions, Error, Holding, Link, Op, Rank,
    Result, SharedBuffer, Sharing, World, catch, launch, launch_each, launch_with, raise,
};
use std::{thread, time::Duration};

const PATIENCE: Duration = Duration::from_secs(20);
const NUM_ELEMS: usize = 1000;

fn broadcast(world: &World) -> Result<SharedBuffer> {
    let own = (world.rank() == Rank(0)).then(|| world.pool().take_zeroed(4 * NUM_ELEMS).freeze());
    let call = Call::new(Op::Broadcast { root: 0 }, "layers.0", Element::F32, NUM_ELEMS);
    let output = world.group().start(call, own)?.wait(PATIENCE)?;
    Ok(output.expect("every rank receives"))
}

fn options() -> EngineOptions {
    EngineOptions::default().with_deadline(PATIENCE)
}

#[test]
fn sharing_hands_out_the_very_same_memory() {
    let outputs = launch_with(4, &options(), |world| broadcast(&world)).expect("no failure");
    assert!(outputs.iter().all(|output| output.ptr_eq(&outputs[0])));
}

#[test]
fn copying_counts_an_allocation_on_every_rank() {
    let options = options().with_sharing(Sharing::Copy);
    let held = launch_with(4, &options, |world| {
        let output = broadcast(&world)?;
        let lease = world.ledger().hold(Holding::Weights, output);
        let held = world.ledger().current_bytes(Holding::Weights);
        drop(lease);
        Ok::<_, Error>((held, world.pool().high_water_bytes(), world.pool().in_use_bytes()))
    });
    for (rank, (held, high_water, in_use)) in held.expect("no failure").into_iter().enumerate() {
        assert_eq!((held, high_water), (4 * NUM_ELEMS, 4 * NUM_ELEMS + 32), "rank {rank}");
        // The slot lets go of the root's buffer only when the last receiver has copied it.
        assert!(rank == 0 || in_use == 0, "rank {rank} still holds {in_use} bytes");
    }
}

#[test]
fn second_step_allocates_nothing() {
    let grown = launch_with(3, &options(), |world| {
        let mut allocations = Vec::new();
        for _ in 0..3 {
            let own = world.pool().take_zeroed(4 * NUM_ELEMS).freeze();
            let call = Call::new(Op::Reduce { root: 1 }, "layers.0", Element::F32, NUM_ELEMS);
            drop(world.group().start(call, Some(own))?.wait(PATIENCE)?);
            allocations.push(world.pool().num_allocations());
        }
        Ok::<_, Error>(allocations)
    });
    for allocations in grown.expect("no failure") {
        assert_eq!(allocations[0], allocations[2], "{allocations:?}");
    }
}

#[test]
fn a_link_too_slow_for_the_deadline_blames_nobody() {
    let link = Link { latency: Duration::from_secs(3600), bytes_per_second: 1e9, groups: "" };
    let outcome = launch_with(2, &options().with_link(link), |world| {
        world.group().start(Call::barrier("step"), None)?.wait(Duration::from_millis(100))
    });
    let text = outcome.expect_err("an hour is longer").to_string();
    assert!(text.contains("every rank arrived"), "{text}");
}

#[test]
fn a_link_delivers_what_memory_would() {
    let link = Link { latency: Duration::from_millis(2), bytes_per_second: 1e9, groups: "" };
    let outputs = launch_with(2, &options().with_link(link), |world| broadcast(&world));
    assert!(outputs.expect("no failure").iter().all(|output| output.as_f32() == [0.0; NUM_ELEMS]));
}

#[test]
fn ranks_are_named_threads_in_order() {
    let names = launch(3, |_| Ok::<_, Error>(thread::current().name().map(str::to_owned)));
    let expected = [0, 1, 2].map(|rank| Some(format!("rank-{rank}")));
    assert_eq!(names.expect("no failure"), expected);
}

#[test]
fn launch_returns_the_root_cause_and_not_its_echo() {
    let outcome: Result<Vec<()>, Box<dyn std::error::Error + Send + Sync>> =
        launch_with(4, &options(), |world| {
            if world.rank() == Rank(2) {
                return Err("the data set is empty".into());
            }
            world.group().start(Call::barrier("step"), None)?.wait(PATIENCE)?;
            Ok(())
        });
    assert_eq!(outcome.expect_err("rank 2 fails").to_string(), "the data set is empty");
}

#[test]
fn a_world_needs_ranks() {
    let outcome = launch(0, |_| Ok::<_, Error>(()));
    assert!(matches!(outcome, Err(Error::EmptyWorld)));
}

#[test]
fn raised_errors_are_caught_and_panics_are_not() {
    assert!(matches!(catch(|| raise(Error::EmptyWorld)), Err(Error::EmptyWorld)));
    assert_eq!(catch(|| 1).ok(), Some(1));
    let outer = std::panic::catch_unwind(|| catch(|| std::panic::resume_unwind(Box::new("other"))));
    assert!(outer.is_err());
}

#[test]
fn a_solo_world_runs_the_same_code() {
    let world = World::solo(&options()).expect("nothing to read");
    let output = broadcast(&world).expect("alone");
    assert_eq!(output.as_f32(), [0.0; NUM_ELEMS]);
}

#[test]
fn a_world_that_outlives_its_launch_says_that_peers_are_gone() {
    let worlds = launch_with(2, &options(), Ok::<_, Error>).expect("no failure");
    let own = Buffer::zeroed(4).freeze();
    let call = Call::new(Op::AllReduce, "late", Element::F32, 1);
    let error = worlds[0].group().start(call, Some(own)).map(drop).expect_err("rank 1 is gone");
    assert!(matches!(error, Error::RankReturned { .. }), "{error}");
}

#[test]
fn failed_launches_leave_a_flight_recording_of_every_rank() {
    let directory = std::env::temp_dir().join(format!("dmuon-flight-{}", std::process::id()));
    let options = options().with_dump(Dump::To(directory.clone()));
    let outcomes = launch_each(2, &options, |world| {
        if world.rank() == Rank(1) {
            raise(Error::message("stale weights"));
        }
        world.group().start(Call::barrier("step"), None)?.wait(PATIENCE).map(drop)
    });
    assert!(outcomes.expect("threads start").iter().all(Result::is_err));
    for rank in 0..2 {
        let path = directory.join(format!("dmuon-rank-{rank}.json"));
        assert!(std::fs::read_to_string(path).expect("dumped").contains("\"counters\""));
    }
    std::fs::remove_dir_all(directory).expect("just made");
}

#[test]
fn the_first_of_two_failures_is_the_cause() {
    let outcome = launch_with(2, &options(), |world| {
        if world.rank() == Rank(0) {
            world.fail(Error::message("first"));
            return Err(Error::message("told by rank 0"));
        }
        while world.group().health().is_ok() {
            thread::sleep(Duration::from_millis(2));
        }
        Err::<(), _>(Error::message("second"))
    });
    assert_eq!(outcome.expect_err("both fail").to_string(), "told by rank 0");
}

#[test]
fn memory_of_devices_is_refused_and_fails_the_group() {
    let results = launch_each(2, &options(), |world| {
        let call = Call::new(Op::AllReduce, "layers.0", Element::F32, 4);
        if world.rank() == Rank(1) {
            return world.group().start_on_device(call, DeviceTransfer::default()).map(drop);
        }
        let own = world.pool().take_zeroed(16).freeze();
        world.group().start(call, Some(own))?.wait(PATIENCE).map(drop)
    });
    let expected = "world takes buffers in host memory only: all_reduce(\"layers.0\")";
    for (rank, result) in results.expect("threads start").into_iter().enumerate() {
        let text = result.expect_err("refused").to_string();
        assert!(text.contains(expected), "rank {rank}: {text}");
    }
}
