//! One rank's handle to a group of threads.

use super::{
    hub::{GroupId, Hub, Lane, Meeting},
    slot::Slot,
};
use crate::{
    Buffer, Call, CallSite, Capabilities, Element, Error, Group, Memory, Op, Rank, Recorder,
    Result, SharedBuffer, Work, engine::Sharing, work::Pending,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// A member of a group of threads.
#[derive(Debug)]
pub(super) struct Member {
    hub: Arc<Hub>,
    id: GroupId,
    name: Arc<str>,
    rank: usize,
    ranks: Arc<[Rank]>,
    recorder: Recorder,
    num_calls: AtomicU64,
    num_splits: AtomicU64,
}

impl Member {
    /// The group of all ranks as `rank` sees it.
    pub(super) fn world(hub: Arc<Hub>, rank: Rank, recorder: Recorder) -> Arc<Self> {
        let ranks = (0..hub.num_ranks()).map(Rank).collect();
        Arc::new(Self::new(hub, GroupId::WORLD, "world", (rank.0, ranks), recorder))
    }

    fn new(
        hub: Arc<Hub>,
        id: GroupId,
        name: &str,
        (rank, ranks): (usize, Arc<[Rank]>),
        recorder: Recorder,
    ) -> Self {
        let (num_calls, num_splits) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { hub, id, name: name.into(), rank, ranks, recorder, num_calls, num_splits }
    }

    fn world_rank(&self) -> Rank {
        self.ranks[self.rank]
    }

    fn check(&self) -> Result<()> {
        self.hub.failure().map_or(Ok(()), |(_, cause)| Err(cause))
    }

    fn meeting(&self, lane: Lane, call: &Call, sequence: u64) -> Meeting {
        let (op, label, group) = (call.op.kind(), call.label.clone(), self.name.clone());
        let site = CallSite { op, label, group, sequence };
        Meeting { group: self.id, lane, site, ranks: self.ranks.clone() }
    }

    /// Enters a checked call.
    fn enter(
        &self,
        meeting: &Meeting,
        call: Call,
        input: Option<SharedBuffer>,
    ) -> Result<InFlight> {
        let landing = self.landing(&call);
        let slot = self.hub.start(meeting, self.rank, call, input)?;
        let (hub, rank, world_rank) = (self.hub.clone(), self.rank, self.world_rank());
        Ok(InFlight { hub, slot, rank, world_rank, landing })
    }

    /// Memory of this rank's own, for an output that would else be another rank's memory.
    fn landing(&self, call: &Call) -> Option<Buffer> {
        let foreign = match call.op {
            Op::Broadcast { root } => self.rank != root,
            Op::AllReduce | Op::AllGather => self.rank != 0,
            Op::Reduce { .. } | Op::ReduceScatter | Op::AllToAll | Op::Barrier => false,
        };
        if self.hub.sharing() == Sharing::Share || !foreign {
            return None;
        }
        let bytes = call.output_bytes(self.rank, self.ranks.len())?;
        Some(self.hub.pool(self.world_rank()).take(bytes))
    }

    /// Exchanges (color, key) with the other members and returns the split's number.
    fn exchange(&self, color: usize, key: usize, name: &str) -> Result<(u64, Vec<[u64; 2]>)> {
        let own = Buffer::from_elements(&[color as u64, key as u64]).freeze();
        let label = format!("split into {name}");
        let call = Call::new(Op::AllGather, label, Element::U8, own.len_bytes());
        let split = self.num_splits.fetch_add(1, Ordering::Relaxed);
        let in_flight = self.enter(&self.meeting(Lane::Split, &call, split), call, Some(own))?;
        let all = Box::new(in_flight).wait(self.hub.deadline())?;
        let all = all.expect("an all-gather puts out a buffer on every rank");
        Ok((split, all.elements::<[u64; 2]>().to_vec()))
    }
}

impl Group for Member {
    fn name(&self) -> &str {
        &self.name
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.ranks.len()
    }

    fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            memory: Memory::Host,
            shares_memory: self.hub.sharing() == Sharing::Share,
            aborts_waits: true,
            native_average: false,
        }
    }

    fn split(&self, color: usize, key: usize, name: &str) -> Result<Arc<dyn Group>> {
        let (split, all) = self.exchange(color, key, name)?;
        let mut members: Vec<(u64, usize)> = all
            .iter()
            .enumerate()
            .filter(|(_, [other, _])| *other == color as u64)
            .map(|(rank, [_, key])| (*key, rank))
            .collect();
        members.sort_unstable();
        let rank = members.iter().position(|(_, rank)| *rank == self.rank);
        let rank = rank.expect("a rank has its own color");
        let ranks = members.iter().map(|(_, rank)| self.ranks[*rank]).collect();
        let id = self.hub.subgroup(self.id, split, color);
        let (hub, recorder) = (self.hub.clone(), self.recorder.clone());
        Ok(Arc::new(Self::new(hub, id, name, (rank, ranks), recorder)))
    }

    fn start(&self, call: Call, input: Option<SharedBuffer>) -> Result<Work> {
        self.check()?;
        let sequence = self.num_calls.fetch_add(1, Ordering::Relaxed);
        let place = (self.rank, self.ranks.len());
        let meeting = self.meeting(Lane::Call, &call, sequence);
        let input_bytes = input.as_ref().map(SharedBuffer::len_bytes);
        call.check(place, input_bytes, self.world_rank(), || meeting.site.clone())
            .inspect_err(|error| drop(self.hub.fail(self.world_rank(), error.clone())))?;
        let trace = self.recorder.issue(&call, &self.name, sequence, place);
        let in_flight = self.enter(&meeting, call, input).inspect_err(|_| trace.failed())?;
        Ok(Work::new(Box::new(in_flight), trace))
    }

    fn health(&self) -> Result<()> {
        self.check()
    }

    fn abort(&self, cause: Error) {
        self.hub.fail(self.world_rank(), cause.seen_from_afar(self.world_rank()));
    }
}

/// A call this rank has started.
#[derive(Debug)]
struct InFlight {
    hub: Arc<Hub>,
    slot: Arc<Slot>,
    rank: usize,
    world_rank: Rank,
    landing: Option<Buffer>,
}

impl Pending for InFlight {
    fn wait(mut self: Box<Self>, deadline: Duration) -> Result<Option<SharedBuffer>> {
        let output = self.slot.wait(self.rank, deadline).map_err(|error| match error {
            timed_out @ Error::TimedOut { .. } => self.hub.fail(self.world_rank, timed_out),
            other => other,
        })?;
        Ok(match (output, self.landing.take()) {
            (Some(source), Some(mut landing)) => {
                landing.as_mut_slice().copy_from_slice(&source);
                Some(landing.freeze())
            }
            (output, _) => output,
        })
    }

    fn is_done(&self) -> bool {
        self.slot.is_done(self.rank)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.slot.close(self.rank);
    }
}
