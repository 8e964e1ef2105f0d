//! What ranks learn when NCCL fails in the middle of a world.

use crate::{
    doubles::run,
    loans,
    suite::{self, PATIENCE, input},
};
use dmuon_core::{Element, EngineOptions, Op, Result, World};

fn all_reduce(world: World) -> Result<()> {
    let own = input(world.rank().0, 0, 8);
    suite::run(&*world.group(), Op::AllReduce, 8, Some(own)).map(drop)
}

/// The same, on memory of devices.
fn all_reduce_there(world: World) -> Result<()> {
    loans::all_reduce(&*world.group(), (Element::F32, 8), [8, 8])
}

/// Everybody's text for a fault of device 1.
fn texts(fault: &str, body: fn(World) -> Result<()>) -> Vec<String> {
    let options = EngineOptions::default().with_deadline(PATIENCE);
    let outcomes = run(3, &options, &[("DMUON_DOUBLE_FAULT", fault)], body);
    outcomes.into_iter().map(|outcome| outcome.expect_err("one fails").to_string()).collect()
}

const LOST: &str = "rank 1: all_reduce of \"layers.0\" on world #0 failed: ncclCommGetAsyncError \
                    returned 6, \"remote process exited or there was a network error: a peer closed \
                    the connection\"";

#[test]
fn a_lost_peer_is_reported_with_call_and_cause_everywhere() {
    assert_eq!(texts("lost-peer", all_reduce), [LOST; 3]);
}

#[test]
fn a_peer_lost_with_memory_of_devices_is_reported_alike() {
    assert_eq!(texts("lost-peer", all_reduce_there), [LOST; 3]);
}

#[test]
fn a_refused_call_is_reported_with_its_name_everywhere() {
    let texts = texts("refusal", all_reduce);
    let expected = "rank 1: all_reduce of \"layers.0\" on world #0 failed: ncclAllReduce returned \
                    1, \"unhandled cuda error: Cuda failure 'too hot'\"";
    assert_eq!(texts, [expected; 3]);
}

#[test]
fn a_fence_that_the_driver_refuses_is_reported_everywhere() {
    let texts = texts("capture", all_reduce_there);
    let expected = "rank 1: all_reduce of \"layers.0\" on world #0 failed: cuCtxRecordEvent \
                    returned 900, \"operation not permitted when stream is capturing\"";
    assert_eq!(texts, [expected; 3]);
}
