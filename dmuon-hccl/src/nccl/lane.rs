//! The lane that collectives run on: a communicator, and a stream with memory for it.

use super::{
    safe::{Comm, Scratch, Splitting, Summand},
    tally::Entry,
};
use crate::{LibraryError, device::Lane, processes::Division};
use dmuon_core::{Call, Element, Op};
use std::thread;

/// A communicator with its stream; nothing once it is aborted.
#[derive(Debug)]
pub(super) struct NcclLane {
    wire: Option<Wire>,
    stage: Stage,
    rank: usize,
    size: usize,
}

#[derive(Debug)]
struct Wire {
    comm: Comm,
    scratch: Scratch,
    entry: Entry,
}

/// A communicator that is being split off.
#[derive(Debug)]
pub(super) struct Forming {
    splitting: Splitting,
    /// The new one's, once it is there.
    entry: Option<Entry>,
}

/// How far the last collective is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Done; nothing is on the stream.
    Done,
    /// Asked for: the library puts it on the stream in its own time.
    Asked,
    /// On the stream, with a mark behind it.
    Marked,
}

impl NcclLane {
    /// The lane of a communicator that is being formed, which is polled for like a collective.
    pub(super) fn forming(comm: Comm, entry: Entry) -> Result<Self, LibraryError> {
        let (rank, size) = (comm.rank(), comm.size());
        let scratch = Scratch::new(comm.device())?;
        Ok(Self { wire: Some(Wire { comm, scratch, entry }), stage: Stage::Asked, rank, size })
    }

    fn wire(&mut self) -> Result<&mut Wire, LibraryError> {
        self.wire.as_mut().ok_or_else(|| {
            let text = "the communicator has been aborted here".into();
            LibraryError { call: "ncclCommAbort", code: 0, text }
        })
    }
}

impl Lane for NcclLane {
    type Forming = Forming;

    const NATIVE_AVERAGE: bool = true;

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn issue(&mut self, call: &Call, input: Option<&[u8]>) -> Result<(), LibraryError> {
        let wire = self.wire()?;
        if let Some(input) = input {
            wire.scratch.upload(input)?;
        }
        self.stage = Stage::Asked;
        self.wire()?.start(call)
    }

    fn poll(&mut self) -> Result<bool, LibraryError> {
        let stage = self.stage;
        let Wire { comm, scratch, .. } = self.wire()?;
        if !comm.is_idle()? {
            return Ok(false);
        }
        // Only now is the collective on the stream, so that a mark comes after it.
        if stage == Stage::Asked {
            scratch.mark()?;
        }
        let is_done = scratch.is_past_mark()?;
        self.stage = if is_done { Stage::Done } else { Stage::Marked };
        Ok(is_done)
    }

    fn collect(&mut self, _: &Call, output: &mut [u8]) -> Result<(), LibraryError> {
        self.wire()?.scratch.download(output)
    }

    fn split(&mut self, division: &Division) -> Result<Forming, LibraryError> {
        let place = (division.rank, division.members.len());
        let wire = self.wire()?;
        let splitting = wire.comm.split(division.color, place)?;
        Ok(Forming { splitting, entry: Some(wire.entry.another()) })
    }

    fn formed(forming: &mut Forming) -> Result<Option<Self>, LibraryError> {
        let Some(comm) = forming.splitting.poll()? else { return Ok(None) };
        let Some(entry) = forming.entry.take() else { return Ok(None) };
        let mut lane = Self::forming(comm, entry)?;
        lane.stage = Stage::Done;
        Ok(Some(lane))
    }

    fn abort(&mut self) {
        if let Some(wire) = self.wire.take() {
            retire("nccl-abort", wire, Comm::abort);
        }
    }
}

impl Wire {
    fn start(&mut self, call: &Call) -> Result<(), LibraryError> {
        let Self { comm, scratch, .. } = self;
        let summand = if call.element == Element::F64 { Summand::F64 } else { Summand::F32 };
        let (sum, num_bytes) = ((call.num_elems, summand), call.part_bytes());
        match call.op {
            Op::Broadcast { root } => comm.broadcast(scratch, num_bytes, root),
            Op::Reduce { root } => comm.reduce(scratch, sum, root),
            Op::AllReduce => comm.all_reduce(scratch, sum),
            Op::AllGather => comm.all_gather(scratch, num_bytes),
            Op::ReduceScatter => comm.reduce_scatter(scratch, sum),
            Op::AllToAll => comm.all_to_all(scratch, num_bytes),
            // Nobody has the sum before everybody has come.
            Op::Barrier => comm.all_reduce(scratch, (1, Summand::F32)),
        }
    }
}

impl Drop for NcclLane {
    /// Frees what the library holds: in good order, unless a collective is under way.
    fn drop(&mut self) {
        let end = if self.stage == Stage::Done { Comm::destroy } else { Comm::abort };
        if let Some(wire) = self.wire.take() {
            retire("nccl-end", wire, end);
        }
    }
}

/// Ends a communicator on a thread of its own, as it may take long, and frees its memory after that.
fn retire(name: &str, Wire { comm, scratch, entry }: Wire, end: fn(Comm)) {
    let body = move || {
        end(comm);
        drop(scratch);
        drop(entry);
    };
    if let Err(error) = thread::Builder::new().name(name.into()).spawn(body) {
        tracing::warn!(%error, "no thread to end a communicator on: it is not freed");
    }
}
