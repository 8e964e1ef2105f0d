//! The one trait behind which every engine hides: ordered collectives over a group of ranks.

use crate::{CallSite, DeviceTransfer, Error, FloatType, Rank, Result, SharedBuffer, Work};
use serde::{Deserialize, Serialize};
use std::{
    fmt::{self, Debug},
    sync::Arc,
};

/// A group of ranks and the collectives they run together.
///
/// # Collective
/// Calls match up by order: the n-th [`start`](Group::start) on a group must be the same [`Call`]
/// on every rank of it. Nothing is promised between different groups, so two groups may be driven
/// in any interleaving. Starting never waits for other ranks; waiting on the [`Work`] does.
///
/// Sums are taken in one canonical order, [`reduce::tree_sum`](crate::reduce::tree_sum) over group
/// ranks, so results do not depend on arrival, threads or chunks.
pub trait Group: Send + Sync + Debug {
    /// The name errors and recordings use, such as `shard/weights`.
    fn name(&self) -> &str;

    /// This rank's place in the group.
    fn rank(&self) -> usize;

    /// How many ranks the group has.
    fn size(&self) -> usize;

    /// World ranks of the members, in group order.
    fn ranks(&self) -> &[Rank];

    /// What the engine behind the group can do.
    fn capabilities(&self) -> Capabilities;

    /// Forms groups of the ranks with the same `color`, ordered by `key`, then by rank.
    ///
    /// # Collective
    /// Every rank of this group, with the same `name`. Waits for all of them.
    ///
    /// # Errors
    /// As [`Work::wait`].
    fn split(&self, color: usize, key: usize, name: &str) -> Result<Arc<dyn Group>>;

    /// Starts a collective. `input` is present on the ranks [`Call::input_bytes`] says.
    ///
    /// # Collective
    /// Every rank of the group, in the same order.
    ///
    /// # Errors
    /// The group has failed before, or the call is malformed. The latter fails the whole group:
    /// other ranks are told instead of left waiting.
    fn start(&self, call: Call, input: Option<SharedBuffer>) -> Result<Work>;

    /// Starts a collective on memory of the device that [`Capabilities::memory`] names. The call is
    /// the one that [`start`](Self::start) takes; the buffers hold the elements of the call
    /// [as it is carried out](Call::carried_out). What this process had put on the device before is
    /// done before the input is read or the output written, and the output may be used as soon as
    /// [`Work::wait`] returns, which is without a buffer.
    ///
    /// # Collective
    /// As [`start`](Self::start), with which it shares the order; other ranks may call that instead.
    ///
    /// # Errors
    /// As [`start`](Self::start). An engine that takes host memory only refuses, which fails the
    /// group.
    fn start_on_device(&self, call: Call, transfer: DeviceTransfer) -> Result<Work> {
        drop(transfer);
        Err(self.refuse_device(&call))
    }

    /// Fails the group over a call on memory of a device, which its engine does not take.
    fn refuse_device(&self, call: &Call) -> Error {
        let text = format!("{} takes buffers in host memory only: {}", self.name(), call.brief());
        let error = Error::message(text);
        self.abort(error.clone());
        error
    }

    /// Whether the group still works.
    ///
    /// # Errors
    /// Why it does not.
    fn health(&self) -> Result<()>;

    /// Fails the group on every rank: waits return and later starts are refused with `cause`.
    fn abort(&self, cause: Error);
}

/// What an engine can do, and where its buffers live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Where buffers may live.
    pub memory: Memory,
    /// Whether a broadcast hands every rank the root's own memory.
    pub shares_memory: bool,
    /// Whether [`Group::abort`] reaches ranks that already wait.
    pub aborts_waits: bool,
    /// Whether the engine could average by itself; dmuon sums and scales once regardless.
    pub native_average: bool,
}

/// Where buffers may live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Memory {
    /// In host memory.
    Host,
    /// In host memory, or in that of a CUDA device, in its primary context; see
    /// [`Group::start_on_device`].
    HostOrCuda {
        /// The device's number in this process.
        ordinal: usize,
    },
}

/// A collective and its root, as a rank in the group. Reductions sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Op {
    /// The root's buffer reaches every rank.
    Broadcast {
        /// Who sends.
        root: usize,
    },
    /// The sum of all buffers reaches the root.
    Reduce {
        /// Who receives.
        root: usize,
    },
    /// The sum of all buffers reaches every rank.
    AllReduce,
    /// Every rank receives all buffers, in group order.
    AllGather,
    /// Rank r receives the sum of everybody's r-th part.
    ReduceScatter,
    /// Rank r receives everybody's r-th part, in group order.
    AllToAll,
    /// Nobody goes on before everybody has arrived.
    Barrier,
}

/// A collective without its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpKind {
    /// See [`Op::Broadcast`].
    Broadcast,
    /// See [`Op::Reduce`].
    Reduce,
    /// See [`Op::AllReduce`].
    AllReduce,
    /// See [`Op::AllGather`].
    AllGather,
    /// See [`Op::ReduceScatter`].
    ReduceScatter,
    /// See [`Op::AllToAll`].
    AllToAll,
    /// See [`Op::Barrier`].
    Barrier,
}

/// What a buffer is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Element {
    /// Single precision, summed in single precision.
    F32,
    /// Double precision, summed in double precision.
    F64,
    /// Half precision, summed in single precision and rounded once.
    F16,
    /// bfloat16, summed in single precision and rounded once.
    Bf16,
    /// Bytes: moved, never summed.
    U8,
}

/// One collective call; alike on every rank of the group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Call {
    /// What to do.
    pub op: Op,
    /// The boundary or parameter it is done for.
    pub label: Arc<str>,
    /// What the buffers are made of.
    pub element: Element,
    /// Elements in one rank's part. All-gather puts out `size` parts, reduce-scatter takes `size`
    /// parts, all-to-all does both; a barrier has none.
    pub num_elems: usize,
    /// Elements of a part that are neither padding nor bookkeeping: what traffic counts.
    pub payload_elems: usize,
}

impl Call {
    /// A call whose elements are all payload.
    pub fn new(op: Op, label: impl Into<Arc<str>>, element: Element, num_elems: usize) -> Self {
        Self { op, label: label.into(), element, num_elems, payload_elems: num_elems }
    }

    /// A barrier.
    pub fn barrier(label: impl Into<Arc<str>>) -> Self {
        Self::new(Op::Barrier, label, Element::U8, 0)
    }

    /// Counts only `payload_elems` of each part as payload, the rest as overhead.
    #[must_use]
    pub fn with_payload(mut self, payload_elems: usize) -> Self {
        debug_assert!(payload_elems <= self.num_elems);
        self.payload_elems = payload_elems;
        self
    }

    /// The type of the elements, where they are narrower than what they are summed in: an engine
    /// without sums of its own for it widens inputs, sums in `f32` and narrows the result.
    pub fn sums_widened(&self) -> Option<FloatType> {
        match self.element {
            Element::F16 if self.op.sums() => Some(FloatType::F16),
            Element::Bf16 if self.op.sums() => Some(FloatType::Bf16),
            _ => None,
        }
    }

    /// The call as an engine without sums of narrow elements carries it out: with inputs that are
    /// widened before and results that are narrowed after.
    pub fn carried_out(&self) -> Self {
        match self.sums_widened() {
            Some(_) => Self { element: Element::F32, ..self.clone() },
            None => self.clone(),
        }
    }

    /// Bytes in one rank's part.
    pub fn part_bytes(&self) -> usize {
        self.num_elems * self.element.num_bytes()
    }

    /// Bytes of input on `rank` of a group of `size`, `None` where the call takes no buffer.
    pub fn input_bytes(&self, rank: usize, size: usize) -> Option<usize> {
        match self.op {
            Op::Broadcast { root } => (rank == root).then(|| self.part_bytes()),
            Op::Reduce { .. } | Op::AllReduce | Op::AllGather => Some(self.part_bytes()),
            Op::ReduceScatter | Op::AllToAll => Some(size * self.part_bytes()),
            Op::Barrier => None,
        }
    }

    /// Bytes of output on `rank` of a group of `size`, `None` where there is no buffer.
    pub fn output_bytes(&self, rank: usize, size: usize) -> Option<usize> {
        match self.op {
            Op::Reduce { root } => (rank == root).then(|| self.part_bytes()),
            Op::Broadcast { .. } | Op::AllReduce | Op::ReduceScatter => Some(self.part_bytes()),
            Op::AllGather | Op::AllToAll => Some(size * self.part_bytes()),
            Op::Barrier => None,
        }
    }

    /// Whether `rank` of a group of `size` gets back what it brings.
    pub fn returns_input(&self, rank: usize, size: usize) -> bool {
        size == 1 || self.op == (Op::Broadcast { root: rank })
    }

    /// How many parts count as `rank`'s traffic in a group of `size`: received by a broadcast or
    /// all-gather, else sent. An all-reduce counts as a reduce to rank 0 and a broadcast from it.
    pub(crate) fn traffic_parts(&self, rank: usize, size: usize) -> u64 {
        let others = (size - 1) as u64;
        match self.op {
            Op::Broadcast { root } | Op::Reduce { root } => u64::from(rank != root),
            Op::AllReduce => 2 * u64::from(rank != 0),
            Op::AllGather | Op::ReduceScatter | Op::AllToAll => others,
            Op::Barrier => 0,
        }
    }

    /// Checks the call and the length of `rank`'s input before anything is sent; every engine does
    /// this first.
    ///
    /// # Errors
    /// A root outside the group, a sum over bytes, a missing, unexpected or ill-sized buffer.
    pub fn check(
        &self,
        (rank, size): (usize, usize),
        input_bytes: Option<usize>,
        caller: Rank,
        at: impl Fn() -> CallSite,
    ) -> Result<()> {
        if let Some(root) = self.op.root().filter(|root| *root >= size) {
            return Err(Error::Root { rank: caller, at: at(), root, size });
        }
        if self.op.sums() && self.element == Element::U8 {
            let element = self.element.name();
            return Err(Error::NotSummable { rank: caller, at: at(), element });
        }
        let (expected, actual) = (self.input_bytes(rank, size), input_bytes);
        if expected != actual {
            return Err(Error::Input { rank: caller, at: at(), expected, actual });
        }
        Ok(())
    }

    /// The call as a mismatch reports it: `broadcast("layers.3")`.
    pub(crate) fn brief(&self) -> String {
        format!("{}(\"{}\")", self.op.kind(), self.label)
    }

    /// The call with everything that must agree.
    pub(crate) fn detailed(&self) -> String {
        let root = self.op.root().map(|root| format!("root {root}, ")).unwrap_or_default();
        let Self { label, element, num_elems, payload_elems, .. } = self;
        format!(
            "{}(\"{label}\", {root}{num_elems} {}, {payload_elems} payload)",
            self.op.kind(),
            element.name()
        )
    }
}

impl Op {
    /// The collective without its root.
    pub fn kind(self) -> OpKind {
        match self {
            Self::Broadcast { .. } => OpKind::Broadcast,
            Self::Reduce { .. } => OpKind::Reduce,
            Self::AllReduce => OpKind::AllReduce,
            Self::AllGather => OpKind::AllGather,
            Self::ReduceScatter => OpKind::ReduceScatter,
            Self::AllToAll => OpKind::AllToAll,
            Self::Barrier => OpKind::Barrier,
        }
    }

    /// The root, where there is one.
    pub fn root(self) -> Option<usize> {
        match self {
            Self::Broadcast { root } | Self::Reduce { root } => Some(root),
            _ => None,
        }
    }

    fn sums(self) -> bool {
        matches!(self, Self::Reduce { .. } | Self::AllReduce | Self::ReduceScatter)
    }
}

impl OpKind {
    /// Every kind, in declaration order.
    pub const ALL: [Self; 7] = [
        Self::Broadcast,
        Self::Reduce,
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::Barrier,
    ];
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::Barrier => "barrier",
        })
    }
}

impl Element {
    /// Size of one element in bytes.
    pub fn num_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F64 => 8,
            Self::F16 | Self::Bf16 => 2,
            Self::U8 => 1,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::U8 => "u8",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_of_a_group_is_others_times_payload() {
        let size = 4;
        let total = |op| {
            let call = Call::new(op, "x", Element::F32, 5);
            (0..size).map(|rank| call.traffic_parts(rank, size)).sum::<u64>()
        };
        assert_eq!(total(Op::Broadcast { root: 2 }), 3);
        assert_eq!(total(Op::Reduce { root: 1 }), 3);
        assert_eq!(total(Op::AllReduce), 6);
        assert_eq!(total(Op::AllGather), 12);
        assert_eq!(total(Op::ReduceScatter), 12);
        assert_eq!(total(Op::Barrier), 0);
    }
}
