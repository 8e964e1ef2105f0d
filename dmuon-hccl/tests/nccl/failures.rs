//! What ranks learn when NCCL fails in the middle of a world.

use crate::{
    doubles::run,
    suite::{self, PATIENCE, input},
};
use dmuon_core::{EngineOptions, Op, Result, World};

fn all_reduce(world: World) -> Result<()> {
    let own = input(world.rank().0, 0, 8);
    suite::run(&*world.group(), Op::AllReduce, 8, Some(own)).map(drop)
}

/// Everybody's text for a fault of device 1.
fn texts(fault: &str) -> Vec<String> {
    let options = EngineOptions::default().with_deadline(PATIENCE);
    let outcomes = run(3, &options, &[("DMUON_DOUBLE_FAULT", fault)], all_reduce);
    outcomes.into_iter().map(|outcome| outcome.expect_err("one fails").to_string()).collect()
}

#[test]
fn a_lost_peer_is_reported_with_call_and_cause_everywhere() {
    let texts = texts("lost-peer");
    let expected = "rank 1: all_reduce of \"layers.0\" on world #0 failed: ncclCommGetAsyncError \
                    returned 6, \"remote process exited or there was a network error: a peer \
                    closed the connection\"";
    assert_eq!(texts, [expected; 3]);
}

#[test]
fn a_refused_call_is_reported_with_its_name_everywhere() {
    let texts = texts("refusal");
    let expected = "rank 1: all_reduce of \"layers.0\" on world #0 failed: ncclAllReduce returned \
                    1, \"unhandled cuda error: Cuda failure 'too hot'\"";
    assert_eq!(texts, [expected; 3]);
}
