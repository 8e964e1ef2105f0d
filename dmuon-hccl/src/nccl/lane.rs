//! The lane that collectives run on: a communicator, and a stream with memory for it.

use super::{
    safe::{Comm, Fence, Scratch, Splitting, Summand},
    tally::Entry,
};
use crate::{
    LibraryError,
    device::{Lane, Turn, Turns},
    processes::{Division, Fencing},
};
use dmuon_core::{Call, DeviceTransfer, Element, Op};
use std::{
    mem::{self, discriminant},
    thread,
};

/// A communicator with its stream; nothing once it is aborted.
#[derive(Debug)]
pub(super) struct NcclLane {
    wire: Option<Wire>,
    turns: Turns,
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

/// How far the last collective is.
#[derive(Debug)]
enum Stage {
    /// Done; nothing is on the stream.
    Done,
    /// Waits for its turn.
    Queued(Queued, Turn),
    /// The library puts it on the stream in its own time. Forming a world takes no turn: nothing
    /// else is there.
    Asked(Option<Turn>),
    /// On the stream, with a mark behind it.
    Marked,
}

/// A collective that is not begun.
#[derive(Debug)]
struct Queued {
    call: Call,
    /// What it runs on, if that is not the scratch memory, and behind what.
    lent: Option<(DeviceTransfer, Fence)>,
}

/// A communicator that is being split off.
#[derive(Debug)]
pub(super) struct Forming {
    splitting: Splitting,
    turn: Option<Turn>,
    /// The new one's, once it is there.
    extras: Option<(Turns, Entry)>,
}

impl NcclLane {
    /// The lane of a communicator that is being formed, which is polled for like a collective.
    pub(super) fn forming(comm: Comm, turns: Turns, entry: Entry) -> Result<Self, LibraryError> {
        let (rank, size) = (comm.rank(), comm.size());
        let wire = Some(Wire { scratch: Scratch::new(comm.device())?, comm, entry });
        Ok(Self { wire, turns, stage: Stage::Asked(None), rank, size })
    }

    /// Asks for a turn.
    fn queue(&mut self, queued: Queued) {
        self.stage = Stage::Queued(queued, self.turns.ask());
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
    type Fence = Fence;

    const NATIVE_AVERAGE: bool = true;

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn fencing(&self) -> Option<Box<dyn Fencing<Fence>>> {
        let fencing = self.wire.as_ref()?.comm.device().fencing()?;
        Some(Box::new(fencing))
    }

    fn issue(&mut self, call: &Call, input: Option<&[u8]>) -> Result<(), LibraryError> {
        if let Some(input) = input {
            self.wire()?.scratch.upload(input)?;
        }
        self.queue(Queued { call: call.clone(), lent: None });
        Ok(())
    }

    fn issue_on_device(
        &mut self,
        call: &Call,
        transfer: DeviceTransfer,
        fence: Fence,
    ) -> Result<(), LibraryError> {
        self.queue(Queued { call: call.clone(), lent: Some((transfer, fence)) });
        Ok(())
    }

    fn poll(&mut self) -> Result<bool, LibraryError> {
        loop {
            // Whatever fails here, the communicator is not at rest any more.
            let stage = mem::replace(&mut self.stage, Stage::Marked);
            let before = discriminant(&stage);
            self.stage = self.wire()?.step(stage)?;
            if discriminant(&self.stage) == before {
                return Ok(matches!(self.stage, Stage::Done));
            }
        }
    }

    fn collect(&mut self, _: &Call, output: &mut [u8]) -> Result<(), LibraryError> {
        self.wire()?.scratch.download(output)
    }

    fn split(&mut self, division: &Division) -> Result<Forming, LibraryError> {
        let (size, turn) = (division.members.len(), self.turns.ask());
        let turns = self.turns.of(division.id, size);
        let wire = self.wire()?;
        let splitting = wire.comm.splitting(division.color, (division.rank, size));
        let extras = Some((turns, wire.entry.another()));
        Ok(Forming { splitting, turn: Some(turn), extras })
    }

    fn formed(forming: &mut Forming) -> Result<Option<Self>, LibraryError> {
        if !forming.turn.as_ref().is_some_and(Turn::is_here) {
            return Ok(None);
        }
        let Some(comm) = forming.splitting.poll()? else { return Ok(None) };
        forming.turn.take().into_iter().for_each(Turn::pass);
        let Some((turns, entry)) = forming.extras.take() else { return Ok(None) };
        let mut lane = Self::forming(comm, turns, entry)?;
        lane.stage = Stage::Done;
        Ok(Some(lane))
    }

    fn abort(&mut self) {
        // What is queued is never begun.
        self.stage = Stage::Marked;
        if let Some(wire) = self.wire.take() {
            retire("nccl-abort", wire, Comm::abort);
        }
    }
}

impl Wire {
    /// Goes one stage on, if it can.
    fn step(&mut self, stage: Stage) -> Result<Stage, LibraryError> {
        let is_idle = self.comm.is_idle()?;
        Ok(match stage {
            Stage::Queued(queued, turn) if turn.is_here() => {
                if let Some((transfer, fence)) = queued.lent {
                    self.scratch.lend(transfer, &fence)?;
                }
                self.start(&queued.call)?;
                Stage::Asked(Some(turn))
            }
            // Only now is the collective on the stream, so that a mark comes after it.
            Stage::Asked(turn) if is_idle => {
                self.scratch.mark()?;
                turn.into_iter().for_each(Turn::pass);
                Stage::Marked
            }
            Stage::Marked if self.scratch.is_past_mark()? => Stage::Done,
            same => same,
        })
    }

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
    /// Frees what the library holds: in good order, unless something is under way.
    fn drop(&mut self) {
        let is_done = matches!(self.stage, Stage::Done);
        let end = if is_done { Comm::destroy } else { Comm::abort };
        if let Some(wire) = self.wire.take() {
            retire("nccl-end", wire, end);
        }
    }
}

/// Ends a communicator on a thread of its own, as it may take long, and frees its memory after that,
/// or gives it back.
fn retire(name: &str, Wire { comm, mut scratch, entry }: Wire, end: fn(Comm)) {
    let body = move || {
        end(comm);
        if let Err(error) = scratch.settle() {
            tracing::warn!(%error, "memory that a collective may still use is not given back");
        }
        drop(scratch);
        drop(entry);
    };
    if let Err(error) = thread::Builder::new().name(name.into()).spawn(body) {
        tracing::warn!(%error, "no thread to end a communicator on: it is not freed");
    }
}
