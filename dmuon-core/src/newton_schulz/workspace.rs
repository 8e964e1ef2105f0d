//! Scratch memory of the iteration, grown to the largest matrix seen and then reused.

use std::num::NonZeroUsize;

use crate::kernels::{Panels, Team};

/// How many threads one call may use. Results do not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Parallelism {
    /// The calling thread alone: right where ranks are threads that share the cores.
    #[default]
    Serial,
    /// Up to this many threads of the current rayon pool: a matrix each where the batch has as
    /// many, parts of one product otherwise.
    Threads(NonZeroUsize),
}

impl Parallelism {
    pub(super) fn team(self) -> Team {
        match self {
            Self::Serial => Team::SOLO,
            Self::Threads(threads) => Team(threads),
        }
    }
}

/// Scratch memory for [`NewtonSchulz`](super::NewtonSchulz), one per thread that calls it.
///
/// After the largest matrix has been through it a serial call allocates nothing. (The portable
/// kernel, faer, keeps a packing buffer per thread of its own. Parallel calls may allocate job
/// tables.)
#[derive(Debug, Default)]
pub struct Workspace {
    parallelism: Parallelism,
    x: Vec<f32>,
    squares: [Vec<f32>; 4],
    pub(super) panels: Panels,
    /// A copy of the input by a power of two, where its norm asked for one.
    pub(super) rescaled: Vec<f32>,
    /// A tall matrix of few columns and its result, in rows along their long side.
    pub(super) turned: [Vec<f32>; 2],
    /// One for each thread that works on matrices of a batch; they are serial.
    pub(super) members: Vec<Workspace>,
}

/// The buffers of one matrix, cut to size: `x` is `m × n`, the others are `m × m`.
pub(super) struct Scratch<'a> {
    pub(super) x: &'a mut [f32],
    pub(super) squares: [&'a mut [f32]; 4],
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

    /// Bytes held, by all its threads.
    ///
    /// The largest matrix takes `16·m²` in the Gram form, `4·(m·n + 2·m²)` in the direct form or
    /// with restarts; packed panels add at most `2048·(rows + min(cols, 1024))` and 64 KiB, and
    /// an input whose norm lies outside 1e-10 to 1e15 a copy, `4·m·n`, and a tall one of at most 64
    /// columns two.
    pub fn allocated_bytes(&self) -> usize {
        let several = self.squares.iter().chain(&self.turned);
        let elems = several.chain([&self.x, &self.rescaled]).map(Vec::capacity).sum::<usize>();
        let members: usize = self.members.iter().map(Workspace::allocated_bytes).sum();
        elems * size_of::<f32>() + self.panels.allocated_bytes() + members
    }

    /// Buffers for one matrix; `num_squares` of the square ones are used, the rest stay empty.
    pub(super) fn scratch(
        &mut self,
        x_len: usize,
        m: usize,
        num_squares: usize,
    ) -> (Scratch<'_>, &mut Panels) {
        let mut index = 0;
        let squares = self.squares.each_mut().map(|buffer| {
            index += 1;
            at_least(buffer, if index <= num_squares { m * m } else { 0 })
        });
        (Scratch { x: at_least(&mut self.x, x_len), squares }, &mut self.panels)
    }
}

pub(super) fn at_least(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        buffer.reserve_exact(len - buffer.len());
        buffer.resize(len, 0.0);
    }
    &mut buffer[..len]
}
