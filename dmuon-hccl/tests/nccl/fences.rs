//! Collectives on memory of a device come behind what was on the device when they were started, and
//! only that.

use crate::{
    conformance::Nccl,
    device::{self, Memory, hold, release},
    doubles::{LACKS, run},
    suite::{self, PATIENCE, all_succeed, input},
};
use dmuon_core::{Buffer, Call, DeviceTransfer, Element, EngineOptions, Op, Result, Work, World};
use std::{
    sync::{Arc, Barrier},
    thread,
    time::Duration,
};

const NUM_BYTES: usize = 4099;

/// Time for a collective that does not wait to go wrong.
const A_WHILE: Duration = Duration::from_millis(100);

/// Where the two ranks of a world, which are threads, meet without using their devices.
static AGREED: Barrier = Barrier::new(2);

/// Starts a broadcast from rank 0.
fn broadcast(world: &World, memory: &Arc<Memory>) -> Result<Work> {
    let lent = Some(memory.lend());
    let transfer = match world.rank().0 {
        0 => DeviceTransfer { input: lent, output: None },
        _ => DeviceTransfer { input: None, output: lent },
    };
    let call = Call::new(Op::Broadcast { root: 0 }, "layers.0", Element::U8, NUM_BYTES);
    world.group().start_on_device(call, transfer)
}

#[test]
fn what_was_on_the_device_before_is_sent() {
    all_succeed::<Nccl>(2, |world| {
        let memory = Memory::zeroed(device::of(&world), NUM_BYTES);
        if world.rank().0 == 0 {
            hold(0);
            memory.set(7);
        }
        let work = broadcast(&world, &memory)?;
        AGREED.wait();
        thread::sleep(A_WHILE);
        assert!(!work.is_done(), "rank 0's bytes are not set");
        AGREED.wait();
        release(0);
        work.wait(PATIENCE)?;
        assert_eq!(memory.read(), [7; NUM_BYTES]);
        Ok(())
    });
}

#[test]
fn what_was_on_the_device_before_does_not_overwrite_results() {
    all_succeed::<Nccl>(2, |world| {
        let memory = Memory::of(device::of(&world), &[9; NUM_BYTES]);
        if world.rank().0 == 1 {
            hold(1);
            memory.set(7);
        }
        let work = broadcast(&world, &memory)?;
        AGREED.wait();
        thread::sleep(A_WHILE);
        release(1);
        work.wait(PATIENCE)?;
        assert_eq!(memory.read(), [9; NUM_BYTES]);
        Ok(())
    });
}

#[test]
fn what_comes_to_the_device_later_is_not_waited_for() {
    all_succeed::<Nccl>(2, |world| {
        let memory = Memory::of(device::of(&world), &[9; NUM_BYTES]);
        let later = Memory::zeroed(device::of(&world), 1);
        // Rank 0's part cannot begin before rank 1 has started: its fence must be there by then.
        if world.rank().0 == 1 {
            AGREED.wait();
        }
        let work = broadcast(&world, &memory)?;
        if world.rank().0 == 0 {
            hold(0);
            later.set(1);
            AGREED.wait();
        }
        work.wait(PATIENCE)?;
        assert_eq!((memory.read(), later.read()), (vec![9; NUM_BYTES], vec![0]));
        AGREED.wait();
        release(0);
        // The device may still write it.
        device::wait_until("set later", || world.rank().0 == 1 || later.read() == [1]);
        Ok(())
    });
}

#[test]
fn without_context_events_buffers_go_through_the_host() {
    let options = EngineOptions::default().with_deadline(PATIENCE);
    let outcomes = run(2, &options, &[(LACKS, "cuCtxRecordEvent")], |world| {
        let (rank, group) = (world.rank().0, world.group());
        assert_eq!(group.capabilities().memory, dmuon_core::Memory::Host);
        let sum = suite::run(&*group, Op::AllReduce, 8, Some(input(rank, 0, 8)))?;
        assert!(sum.is_some());
        if rank == 0 {
            let memory = Memory::zeroed(0, NUM_BYTES);
            let refused = broadcast(&world, &memory).expect_err("it takes host memory only");
            assert_eq!(Arc::strong_count(&memory), 1);
            return Err(refused);
        }
        let zeros = Buffer::zeroed(32).freeze();
        suite::run(&*group, Op::AllReduce, 8, Some(zeros)).map(drop)
    });
    let expected = "world takes buffers in host memory only: broadcast(\"layers.0\")";
    for outcome in outcomes {
        let text = outcome.expect_err("refused").to_string();
        assert!(text.contains(expected), "{text}");
    }
}
