//! Reduce: partial sums flow up the canonical tree, a piece at a time.

use super::tree::{ReduceTree, Side};
use crate::{
    mpi::{
        course::{Course, chunks},
        safe::{Landing, Sending},
    },
    processes::Stop,
};
use dmuon_core::{Buffer, Element, SharedBuffer, reduce::Summand};
use std::{collections::VecDeque, ops::Range};

/// Pieces under way to or from one neighbour at once.
const WINDOW: usize = 4;

/// Sums every rank's input at the root; other ranks get nothing.
pub(super) fn reduce(
    course: &Course<'_>,
    element: Element,
    root: usize,
    input: SharedBuffer,
) -> Result<Option<SharedBuffer>, Stop> {
    let tree = ReduceTree::new(course.rank(), course.size(), root);
    match tree.parent {
        Some(parent) if tree.children.is_empty() => {
            let pieces = chunks(input.len_bytes()).map(|range| Ok((input.clone(), range)));
            send_up(course, parent, pieces)?;
            Ok(None)
        }
        Some(parent) => {
            let mut sums = Sums::new(course, &tree.children, element, &input);
            let pieces = chunks(input.len_bytes()).map(|range| {
                let mut sum = course.pool.take(range.len());
                sums.next(range.clone(), sum.as_mut_slice())?;
                Ok((sum.freeze(), 0..range.len()))
            });
            send_up(course, parent, pieces)?;
            Ok(None)
        }
        None => {
            let mut output = course.pool.take(input.len_bytes());
            let mut sums = Sums::new(course, &tree.children, element, &input);
            for range in chunks(input.len_bytes()) {
                sums.next(range.clone(), &mut output.as_mut_slice()[range])?;
            }
            Ok(Some(output.freeze()))
        }
    }
}

/// Sends pieces to the parent, a few at a time.
fn send_up(
    course: &Course<'_>,
    parent: usize,
    pieces: impl Iterator<Item = Result<(SharedBuffer, Range<usize>), Stop>>,
) -> Result<(), Stop> {
    let mut under_way: VecDeque<Sending<'_>> = VecDeque::new();
    for piece in pieces {
        let (source, range) = piece?;
        under_way.push_back(course.comm.send(&source, range, parent, course.tag)?);
        if under_way.len() > WINDOW {
            under_way.pop_front().map_or(Ok(()), |oldest| course.settle(parent, oldest))?;
        }
    }
    under_way.into_iter().try_for_each(|sending| course.settle(parent, sending))
}

/// The sums of this rank's input and its children's partial sums, piece after piece.
struct Sums<'a> {
    course: &'a Course<'a>,
    children: &'a [(usize, Side)],
    element: Element,
    input: &'a SharedBuffer,
    /// Pieces that are on their way, of every child in order.
    arriving: VecDeque<Vec<Landing<'a>>>,
    to_come: Box<dyn Iterator<Item = Range<usize>>>,
}

impl<'a> Sums<'a> {
    fn new(
        course: &'a Course<'a>,
        children: &'a [(usize, Side)],
        element: Element,
        input: &'a SharedBuffer,
    ) -> Self {
        let to_come = Box::new(chunks(input.len_bytes()));
        Self { course, children, element, input, arriving: VecDeque::new(), to_come }
    }

    /// Writes the sum of the next piece, which is `range` of the input.
    fn next(&mut self, range: Range<usize>, sum: &mut [u8]) -> Result<(), Stop> {
        while self.arriving.len() < WINDOW {
            let Some(chunk) = self.to_come.next() else { break };
            let landings = self.children.iter().map(|(child, _)| self.expect(*child, chunk.len()));
            let landings = landings.collect::<Result<_, _>>()?;
            self.arriving.push_back(landings);
        }
        let landings = self.arriving.pop_front().unwrap_or_default();
        let own = &self.input.as_slice()[range];
        let mut is_first = true;
        for (mut landing, (child, side)) in landings.into_iter().zip(self.children) {
            self.course.wait(&[*child], || landing.poll())?;
            let other = landing.finish();
            let own = is_first.then_some(own);
            match self.element {
                Element::F64 => add::<f64>(sum, own, &other, *side),
                _ => add::<f32>(sum, own, &other, *side),
            }
            is_first = false;
        }
        Ok(())
    }

    fn expect(&self, child: usize, num_bytes: usize) -> Result<Landing<'a>, Stop> {
        let course = self.course;
        let mut landing = Landing::new(course.comm, course.pool.take(num_bytes));
        landing.receive(num_bytes, child, course.tag)?;
        Ok(landing)
    }
}

/// Adds `other` on its side of `own`, or of what `sum` holds already.
fn add<T: Summand>(sum: &mut [u8], own: Option<&[u8]>, other: &Buffer, side: Side) {
    let sum: &mut [T] = bytemuck::cast_slice_mut(sum);
    let other: &[T] = other.elements();
    let joined = |own: T, other: T| match side {
        Side::Left => other + own,
        Side::Right => own + other,
    };
    match own {
        Some(own) => {
            let own: &[T] = bytemuck::cast_slice(own);
            for (sum, (own, other)) in sum.iter_mut().zip(own.iter().zip(other)) {
                *sum = joined(*own, *other);
            }
        }
        None => {
            for (sum, other) in sum.iter_mut().zip(other) {
                *sum = joined(*sum, *other);
            }
        }
    }
}
