//! Broadcast: pieces of the root's buffer flow down a tree.

use super::tree::BroadcastTree;
use crate::{
    mpi::{
        course::{Course, chunks},
        safe::Landing,
    },
    processes::Stop,
};
use dmuon_core::SharedBuffer;
use std::collections::VecDeque;

/// Pieces under way to or from one neighbour at once.
const WINDOW: usize = 4;

/// Brings `num_bytes` of the root's buffer to every rank; the root gets its own handle back.
pub(super) fn broadcast(
    course: &Course<'_>,
    num_bytes: usize,
    root: usize,
    input: Option<SharedBuffer>,
) -> Result<SharedBuffer, Stop> {
    let tree = BroadcastTree::new(course.rank(), course.size(), root);
    match (tree.parent, input) {
        (Some(parent), _) => receive(course, num_bytes, parent, &tree.children),
        (None, Some(source)) => {
            send(course, &source, &tree.children)?;
            Ok(source)
        }
        (None, None) => unreachable!("calls are checked when they start: the root has a buffer"),
    }
}

fn send(course: &Course<'_>, source: &SharedBuffer, children: &[usize]) -> Result<(), Stop> {
    let mut under_way = VecDeque::new();
    for range in chunks(source.len_bytes()) {
        for &child in children {
            let sending = course.comm.send(source, range.clone(), child, course.tag)?;
            under_way.push_back((child, sending));
        }
        while under_way.len() > WINDOW * children.len() {
            if let Some((child, sending)) = under_way.pop_front() {
                course.settle(child, sending)?;
            }
        }
    }
    under_way.into_iter().try_for_each(|(child, sending)| course.settle(child, sending))
}

fn receive(
    course: &Course<'_>,
    num_bytes: usize,
    parent: usize,
    children: &[usize],
) -> Result<SharedBuffer, Stop> {
    let mut landing = Landing::new(course.comm, course.pool.take(num_bytes));
    let mut to_come = chunks(num_bytes);
    let num_chunks = chunks(num_bytes).count();
    for chunk in to_come.by_ref().take(WINDOW) {
        landing.receive(chunk.len(), parent, course.tag)?;
    }
    for _ in 0..num_chunks {
        let range = course.wait(&[parent], || landing.poll())?;
        if let Some(chunk) = to_come.next() {
            landing.receive(chunk.len(), parent, course.tag)?;
        }
        for &child in children {
            landing.pass_on(range.clone(), child, course.tag)?;
        }
        let room = WINDOW * children.len();
        course.wait(children, || Ok((landing.poll_outgoing()? <= room).then_some(())))?;
    }
    course.wait(children, || Ok((landing.poll_outgoing()? == 0).then_some(())))?;
    Ok(landing.finish().freeze())
}
