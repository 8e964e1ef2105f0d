//! Collectives in which everybody needs something from everybody, sent directly; and the barrier.

use crate::{
    mpi::{course::Course, safe::Landing},
    processes::Stop,
};
use dmuon_core::{
    Buffer, Element, SharedBuffer,
    reduce::{Summand, tree_sum},
};
use std::ops::Range;

/// Where all inputs together are no longer than this, everybody gets and sums all of them: one
/// round instead of two.
const SMALL_BYTES: usize = 64 << 10;

/// Every rank's input, in group order.
pub(in crate::mpi) fn all_gather(
    course: &Course<'_>,
    input: &SharedBuffer,
) -> Result<SharedBuffer, Stop> {
    let part = input.len_bytes();
    let output = course.pool.take(course.size() * part);
    exchange(course, input, |_| 0..part, |_| part, output).map(Buffer::freeze)
}

/// This rank's part of every rank's input, in group order.
pub(super) fn all_to_all(course: &Course<'_>, input: &SharedBuffer) -> Result<SharedBuffer, Stop> {
    parts_of_everybody(course, input).map(Buffer::freeze)
}

/// The sum of everybody's part for this rank.
pub(super) fn reduce_scatter(
    course: &Course<'_>,
    element: Element,
    input: &SharedBuffer,
) -> Result<SharedBuffer, Stop> {
    let parts = parts_of_everybody(course, input)?;
    Ok(sum_parts(course, element, &parts).freeze())
}

/// The sum of all inputs, everywhere.
pub(super) fn all_reduce(
    course: &Course<'_>,
    element: Element,
    input: &SharedBuffer,
) -> Result<SharedBuffer, Stop> {
    let size = course.size();
    if size * input.len_bytes() <= SMALL_BYTES {
        let inputs = all_gather(course, input)?;
        let inputs = inputs.try_into_unique().expect("the only handle");
        return Ok(sum_parts(course, element, &inputs).freeze());
    }
    let width = element.num_bytes();
    let share = Shares { num_elems: input.len_bytes() / width, size, width };
    let own = share.bytes(course.rank());
    let parts = course.pool.take(size * own.len());
    let parts = exchange(course, input, |rank| share.bytes(rank), |_| own.len(), parts)?;
    let sum = sum_parts(course, element, &parts).freeze();
    drop(parts);
    let output = course.pool.take(input.len_bytes());
    let output = exchange(course, &sum, |_| 0..own.len(), |rank| share.bytes(rank).len(), output)?;
    Ok(output.freeze())
}

/// Nobody returns before everybody has called: in round k every rank hears from the one 2ᵏ before
/// it, and so of twice as many.
pub(in crate::mpi) fn barrier(course: &Course<'_>) -> Result<(), Stop> {
    let (rank, size) = (course.rank(), course.size());
    let nothing = Buffer::zeroed(0).freeze();
    let mut distance = 1;
    while distance < size {
        let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
        let mut landing = Landing::new(course.comm, Buffer::zeroed(0));
        landing.receive(0, from, course.tag)?;
        let sending = course.comm.send(&nothing, 0..0, to, course.tag)?;
        course.wait(&[from], || landing.poll())?;
        course.settle(to, sending)?;
        distance *= 2;
    }
    Ok(())
}

fn parts_of_everybody(course: &Course<'_>, input: &SharedBuffer) -> Result<Buffer, Stop> {
    let part = input.len_bytes() / course.size();
    let output = course.pool.take(input.len_bytes());
    exchange(course, input, |rank| rank * part..(rank + 1) * part, |_| part, output)
}

/// Sends every rank its range of `source`, and fills `output` with what comes from each, in order.
fn exchange(
    course: &Course<'_>,
    source: &SharedBuffer,
    outgoing: impl Fn(usize) -> Range<usize>,
    incoming: impl Fn(usize) -> usize,
    output: Buffer,
) -> Result<Buffer, Stop> {
    let (own, size) = (course.rank(), course.size());
    let mut landing = Landing::new(course.comm, output);
    for rank in 0..size {
        if rank == own {
            landing.fill(&source.as_slice()[outgoing(own)]);
        } else {
            landing.receive(incoming(rank), rank, course.tag)?;
        }
    }
    let mut under_way = Vec::with_capacity(size);
    // Everybody begins with the next rank, so that nobody is everybody's first.
    for rank in (1..size).map(|step| (own + step) % size) {
        under_way.push((rank, course.comm.send(source, outgoing(rank), rank, course.tag)?));
    }
    for rank in 0..size {
        course.wait(&[rank], || landing.poll())?;
    }
    for (rank, sending) in under_way {
        course.settle(rank, sending)?;
    }
    Ok(landing.finish())
}

/// The canonical sum of one part for each rank.
fn sum_parts(course: &Course<'_>, element: Element, parts: &Buffer) -> Buffer {
    let mut output = course.pool.take(parts.len_bytes() / course.size());
    match element {
        Element::F64 => sum_parts_as::<f64>(parts, &mut output, course.size()),
        _ => sum_parts_as::<f32>(parts, &mut output, course.size()),
    }
    output
}

fn sum_parts_as<T: Summand>(parts: &Buffer, output: &mut Buffer, size: usize) {
    let part = parts.elements::<T>().len() / size;
    let part_of = |rank: usize| &parts.elements::<T>()[rank * part..(rank + 1) * part];
    let inputs: Vec<&[T]> = (0..size).map(part_of).collect();
    tree_sum(&inputs, output.elements_mut());
}

/// How a buffer is divided when every rank sums a share of it.
#[derive(Clone, Copy, Debug)]
struct Shares {
    num_elems: usize,
    size: usize,
    width: usize,
}

impl Shares {
    fn bytes(self, rank: usize) -> Range<usize> {
        let start = |rank: usize| rank * self.num_elems / self.size * self.width;
        start(rank)..start(rank + 1)
    }
}
