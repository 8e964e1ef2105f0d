//! Counts that do not fit 32 bits. Each rank holds a few GiB, so these run only when asked for.

use crate::{
    processes::run,
    suite::{Engine, PATIENCE, all_succeed},
};
use dmuon_core::{Buffer, Call, Collectives, Element, EngineOptions, Op, Result, World};

/// More bytes than a signed 32-bit count has.
const NUM_BYTES: usize = (1 << 31) + 7;

struct Ordered;

impl Engine for Ordered {
    fn run(num_ranks: usize, body: fn(World) -> Result<()>) -> Vec<Result<()>> {
        run(num_ranks, &EngineOptions::default().with_collectives(Collectives::Ordered), body)
    }
}

struct Library;

impl Engine for Library {
    fn run(num_ranks: usize, body: fn(World) -> Result<()>) -> Vec<Result<()>> {
        run(num_ranks, &EngineOptions::default().with_collectives(Collectives::Library), body)
    }
}

/// Marks both ends and the byte where a 32-bit count would wrap.
fn broadcast(world: World) -> Result<()> {
    let places = [0, (1 << 31) - 1, 1 << 31, NUM_BYTES - 1];
    let own = (world.rank().0 == 0).then(|| {
        let mut buffer = Buffer::zeroed(NUM_BYTES);
        for (place, mark) in places.into_iter().zip(1..) {
            buffer.as_mut_slice()[place] = mark;
        }
        buffer.freeze()
    });
    let call = Call::new(Op::Broadcast { root: 0 }, "large", Element::U8, NUM_BYTES);
    let output = world.group().start(call, own)?.wait(4 * PATIENCE)?;
    let output = output.expect("every rank receives");
    assert_eq!(places.map(|place| output.as_slice()[place]), [1, 2, 3, 4]);
    assert_eq!(output.iter().filter(|byte| **byte != 0).count(), 4);
    Ok(())
}

#[test]
#[ignore = "needs 5 GiB of memory"]
fn more_bytes_than_32_bits_count_are_broadcast_by_us() {
    all_succeed::<Ordered>(2, broadcast);
}

#[test]
#[ignore = "needs 5 GiB of memory"]
fn more_bytes_than_32_bits_count_are_broadcast_by_the_library() {
    all_succeed::<Library>(2, broadcast);
}

#[test]
#[ignore = "needs 13 GiB of memory"]
fn more_bytes_than_32_bits_count_are_exchanged_in_one_message() {
    all_succeed::<Ordered>(2, |world| {
        let mut own = Buffer::zeroed(NUM_BYTES);
        own.as_mut_slice().fill(world.rank().0 as u8 + 1);
        let call = Call::new(Op::AllGather, "large", Element::U8, NUM_BYTES);
        let output = world.group().start(call, Some(own.freeze()))?.wait(4 * PATIENCE)?;
        let output = output.expect("every rank receives");
        let (low, high) = output.as_slice().split_at(NUM_BYTES);
        assert!(low.iter().all(|byte| *byte == 1) && high.iter().all(|byte| *byte == 2));
        Ok(())
    });
}
