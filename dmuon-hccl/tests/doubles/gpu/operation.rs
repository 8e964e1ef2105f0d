//! What a collective reads, whom it needs, and what it computes.

use crate::memory::Span;
use std::ffi::c_int;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Broadcast { root: usize },
    Reduce { root: usize },
    AllReduce,
    AllGather,
    ReduceScatter,
}

/// What must be alike on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) kind: Kind,
    pub(crate) count: usize,
    pub(crate) datatype: Datatype,
}

/// The types that dmuon uses, by NCCL's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Datatype {
    Uint8 = 1,
    Float32 = 7,
    Float64 = 8,
}

/// One rank's part of a collective.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) shape: Shape,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

impl Datatype {
    pub(crate) fn of(number: c_int) -> Option<Self> {
        [Self::Uint8, Self::Float32, Self::Float64].into_iter().find(|it| *it as c_int == number)
    }

    pub(crate) fn num_bytes(self) -> usize {
        match self {
            Self::Uint8 => 1,
            Self::Float32 => 4,
            Self::Float64 => 8,
        }
    }
}

impl Operation {
    fn part(&self) -> usize {
        self.shape.count * self.shape.datatype.num_bytes()
    }

    /// What `rank` of `size` brings.
    pub(crate) fn input(&self, rank: usize, size: usize) -> Option<Span> {
        let num_bytes = match self.shape.kind {
            Kind::Broadcast { root } if rank != root => return None,
            Kind::ReduceScatter => size * self.part(),
            _ => self.part(),
        };
        Some(Span { start: self.from, num_bytes })
    }

    /// What `rank` of `size` gets.
    pub(crate) fn output(&self, rank: usize, size: usize) -> Option<Span> {
        let num_bytes = match self.shape.kind {
            Kind::Reduce { root } if rank != root => return None,
            Kind::AllGather => size * self.part(),
            _ => self.part(),
        };
        Some(Span { start: self.to, num_bytes })
    }

    /// Those without whom `rank` of `size` cannot be done.
    pub(crate) fn needs(&self, rank: usize, size: usize) -> Vec<usize> {
        match self.shape.kind {
            Kind::Broadcast { root } => vec![root],
            Kind::Reduce { root } if rank != root => vec![rank],
            _ => (0..size).collect(),
        }
    }

    /// What `rank` gets of the `inputs` of those it needs.
    pub(crate) fn result(&self, rank: usize, inputs: &[&[u8]]) -> Vec<u8> {
        match self.shape.kind {
            Kind::Broadcast { .. } | Kind::AllGather => inputs.concat(),
            Kind::Reduce { .. } | Kind::AllReduce => self.sum(inputs),
            Kind::ReduceScatter => {
                let part = rank * self.part()..(rank + 1) * self.part();
                self.sum(&inputs.iter().map(|input| &input[part.clone()]).collect::<Vec<_>>())
            }
        }
    }

    /// The sum, in rank order.
    fn sum(&self, inputs: &[&[u8]]) -> Vec<u8> {
        match self.shape.datatype {
            Datatype::Uint8 => panic!("dmuon never sums bytes"),
            Datatype::Float32 => sum(inputs, f32::from_ne_bytes, |a, b| a + b, f32::to_ne_bytes),
            Datatype::Float64 => sum(inputs, f64::from_ne_bytes, |a, b| a + b, f64::to_ne_bytes),
        }
    }
}

fn sum<T, const N: usize>(
    inputs: &[&[u8]],
    read: impl Fn([u8; N]) -> T,
    add: impl Fn(T, T) -> T,
    write: impl Fn(T) -> [u8; N],
) -> Vec<u8> {
    let (first, others) = inputs.split_first().expect("a sum has at least this rank");
    let mut sum = first.as_chunks::<N>().0.to_vec();
    for other in others {
        for (sum, value) in sum.iter_mut().zip(other.as_chunks::<N>().0) {
            *sum = write(add(read(*sum), read(*value)));
        }
    }
    sum.into_flattened()
}
