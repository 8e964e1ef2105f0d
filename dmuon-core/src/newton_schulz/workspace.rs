//! Scratch memory of the iteration, grown to the largest matrix seen and then reused.

use std::num::NonZeroUsize;

use faer::Par;

use super::view::View;

/// How many threads one matrix product may use. Results do not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Parallelism {
    /// The calling thread alone: right where ranks are threads that share the cores.
    #[default]
    Serial,
    /// Up to this many threads of the current rayon pool.
    Threads(NonZeroUsize),
}

impl Parallelism {
    pub(super) fn par(self) -> Par {
        match self {
            Self::Serial => Par::Seq,
            Self::Threads(threads) if threads.get() == 1 => Par::Seq,
            Self::Threads(threads) => Par::Rayon(threads),
        }
    }
}

/// Scratch memory for [`NewtonSchulz`](super::NewtonSchulz), one per thread that calls it.
///
/// After the largest matrix has been through it a call allocates nothing here. (faer's kernels
/// keep a per-thread packing buffer of their own, and a small job table per parallel product.)
#[derive(Debug, Default)]
pub struct Workspace {
    parallelism: Parallelism,
    x: Vec<f32>,
    squares: [Vec<f32>; 4],
}

/// The buffers of one call, cut to size: `x` is `m × n`, the others are `m × m`.
pub(super) struct Scratch<'a> {
    pub(super) x: &'a mut [f32],
    pub(super) squares: [&'a mut [f32]; 4],
    pub(super) par: Par,
}

impl Workspace {
    /// An empty workspace whose products run with the given parallelism.
    pub fn new(parallelism: Parallelism) -> Self {
        Self { parallelism, ..Self::default() }
    }

    /// The parallelism of its products.
    pub fn parallelism(&self) -> Parallelism {
        self.parallelism
    }

    /// Bytes held: `4·(m·n + 4·m²)` for the largest matrix that took the Gram form,
    /// `4·(m·n + 2·m²)` for the direct form.
    pub fn allocated_bytes(&self) -> usize {
        let elems: usize = self.squares.iter().map(Vec::capacity).sum();
        (self.x.capacity() + elems) * size_of::<f32>()
    }

    /// Buffers for one matrix; `num_squares` of the square ones are used, the rest stay empty.
    pub(super) fn scratch(&mut self, view: View, num_squares: usize) -> Scratch<'_> {
        let square = view.m() * view.m();
        let mut index = 0;
        let squares = self.squares.each_mut().map(|buffer| {
            index += 1;
            at_least(buffer, if index <= num_squares { square } else { 0 })
        });
        Scratch { x: at_least(&mut self.x, view.len()), squares, par: self.parallelism.par() }
    }
}

fn at_least(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        buffer.reserve_exact(len - buffer.len());
        buffer.resize(len, 0.0);
    }
    &mut buffer[..len]
}
