//! Collectives of our own over the library's messages, whose sums take the canonical order of
//! [`dmuon_core::reduce`]: the same bits as ranks that are threads, whoever is early or late.
//!
//! A long broadcast or reduce travels in pieces along a tree, so that its levels overlap. What
//! everybody needs from everybody is sent directly.

mod broadcast;
mod exchange;
mod reduce;
mod tree;

use super::course::Course;
use crate::processes::Stop;
use dmuon_core::{Call, Op, SharedBuffer};

pub(super) use exchange::{all_gather, barrier};

/// Runs `call`, whose input has been checked.
pub(super) fn run(
    course: &Course<'_>,
    call: &Call,
    input: Option<SharedBuffer>,
) -> Result<Option<SharedBuffer>, Stop> {
    match (call.op, input) {
        (Op::Broadcast { root }, input) => {
            broadcast::broadcast(course, call.part_bytes(), root, input).map(Some)
        }
        (Op::Reduce { root }, Some(input)) => reduce::reduce(course, call.element, root, input),
        (Op::AllReduce, Some(input)) => {
            exchange::all_reduce(course, call.element, &input).map(Some)
        }
        (Op::AllGather, Some(input)) => all_gather(course, &input).map(Some),
        (Op::ReduceScatter, Some(input)) => {
            exchange::reduce_scatter(course, call.element, &input).map(Some)
        }
        (Op::AllToAll, Some(input)) => exchange::all_to_all(course, &input).map(Some),
        (Op::Barrier, _) => barrier(course).map(|()| None),
        (_, None) => unreachable!("calls are checked when they start: every rank has a buffer"),
    }
}
