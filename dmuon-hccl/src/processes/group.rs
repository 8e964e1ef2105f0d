//! A group of processes as one of them sees it.

use super::{
    conduit::{Conduit, Fencing},
    course::Stop,
    progress::{self, Freight, Job, Rig, Shared, Started, Ticket},
};
use crate::control::{GroupId, Place};
use dmuon_core::{
    Call, CallSite, Capabilities, DeviceTransfer, Element, Error, Group, Memory, Op, Pending, Rank,
    Recorder, Result, SharedBuffer, Work,
};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    time::Duration,
};

/// A member of a group of processes.
#[derive(Debug)]
pub(super) struct ProcessGroup<C: Conduit> {
    shared: Arc<Shared>,
    id: GroupId,
    name: Arc<str>,
    rank: usize,
    ranks: Arc<[Rank]>,
    recorder: Recorder,
    fencing: Option<Box<dyn Fencing<C::Fence>>>,
    queue: Mutex<Queue<C>>,
}

/// What starting a call changes, so that calls are numbered in the order in which they run.
#[derive(Debug)]
struct Queue<C> {
    jobs: mpsc::Sender<Job<C>>,
    num_calls: u64,
    num_splits: u64,
}

impl<C: Conduit> ProcessGroup<C> {
    /// The group of a conduit, with a thread of its own.
    pub(super) fn new(
        rig: Rig<C>,
        id: GroupId,
        name: &str,
        recorder: Recorder,
    ) -> Result<Arc<Self>> {
        let (shared, ranks, rank) = (rig.shared.clone(), rig.ranks.clone(), rig.conduit.rank());
        let fencing = rig.conduit.fencing();
        let queue = Queue { jobs: progress::start(rig, name)?, num_calls: 0, num_splits: 0 };
        let (name, queue) = (name.into(), Mutex::new(queue));
        Ok(Arc::new(Self { shared, id, name, rank, ranks, recorder, fencing, queue }))
    }

    fn world_rank(&self) -> Rank {
        self.ranks[self.rank]
    }

    fn site(&self, call: &Call, sequence: u64) -> CallSite {
        let (op, label, group) = (call.op.kind(), call.label.clone(), self.name.clone());
        CallSite { op, label, group, sequence }
    }

    /// Takes note of a call, and announces it where calls are verified.
    fn note(&self, place: Place, site: &CallSite, call: &Call) {
        self.shared.member.note(place, call);
        if self.shared.verify && self.ranks.len() > 1 {
            self.shared.member.announce(place, site.clone(), call.clone(), self.ranks.len());
        }
    }

    /// Numbers, checks and records a call with what `load` brings to it, and puts it at the end of
    /// the queue. What is wrong with it fails everybody.
    fn begin(
        &self,
        call: Call,
        load: impl FnOnce(&CallSite) -> Result<Freight<C::Fence>>,
    ) -> Result<Work> {
        self.health()?;
        let mut queue = self.lock();
        let sequence = queue.num_calls;
        queue.num_calls += 1;
        let (site, place) = (self.site(&call, sequence), (self.rank, self.ranks.len()));
        let checked = load(&site).and_then(|freight| {
            freight.check(&call, place, self.world_rank(), &site)?;
            Ok(freight)
        });
        let freight = checked.inspect_err(|error| drop(self.shared.member.fail(error.clone())))?;
        let trace = self.recorder.issue(&call, &self.name, sequence, place);
        let place = Place { group: self.id, sequence };
        self.note(place, &site, &call);
        let at = site.clone();
        let ticket = match freight {
            // A group of one gets back what it brought, or has it where it is.
            Freight::Host(input) if self.ranks.len() == 1 => Ticket::with(Ok(input)),
            Freight::Device(..) if self.ranks.len() == 1 => Ticket::with(Ok(None)),
            freight => self
                .enqueue(&queue, (place, &site), move |rig| rig.run(&call, (place, &at), freight)),
        };
        drop(queue);
        Ok(Work::new(Box::new(self.in_flight(ticket, place, site)), trace))
    }

    /// Puts `work` at the end of the queue; whoever waits gets its result.
    fn enqueue<T: Send + 'static>(
        &self,
        queue: &Queue<C>,
        (place, site): (Place, &CallSite),
        work: impl FnOnce(&mut Rig<C>) -> Result<T> + Send + 'static,
    ) -> Arc<Ticket<T>> {
        let ticket = Ticket::new();
        let left = ticket.clone();
        let (site, members) = (site.clone(), self.ranks.clone());
        self.shared.under_way.begin(Started { place, site, members });
        let job: Job<C> = Box::new(move |rig| {
            // Ends with the input's handle: a rank may write its own input after its wait.
            let outcome = work(rig);
            left.complete(outcome);
            rig.shared.under_way.end(place);
            rig.shared.member.watch().notify();
        });
        if queue.jobs.send(job).is_err() {
            self.shared.under_way.end(place);
            let message = format!("the progress thread of {} is gone", self.name);
            ticket.complete(Err(self.shared.member.fail(Error::message(message))));
        }
        ticket
    }

    fn in_flight<T>(&self, ticket: Arc<Ticket<T>>, place: Place, site: CallSite) -> InFlight<T> {
        let (shared, members) = (self.shared.clone(), self.ranks.clone());
        InFlight { shared, ticket, place, site, members }
    }

    /// Numbers and jobs go together, so a panic elsewhere does no harm.
    fn lock(&self) -> MutexGuard<'_, Queue<C>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Conduit> Group for ProcessGroup<C> {
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
            memory: self.fencing.as_ref().map_or(Memory::Host, |fencing| fencing.memory()),
            shares_memory: false,
            aborts_waits: true,
            native_average: C::NATIVE_AVERAGE,
        }
    }

    fn split(&self, color: usize, key: usize, name: &str) -> Result<Arc<dyn Group>> {
        self.health()?;
        let own = [color as u64, key as u64];
        let call =
            Call::new(Op::AllGather, format!("split into {name}"), Element::U8, size_of_val(&own));
        let mut queue = self.lock();
        let split = queue.num_splits;
        queue.num_splits += 1;
        let place = Place { group: self.id.splits(), sequence: split };
        let site = self.site(&call, split);
        self.note(place, &site, &call);
        let (at, parent) = (site.clone(), (self.id, split));
        let ticket =
            self.enqueue(&queue, (place, &site), move |rig| rig.split((place, &at), parent, own));
        drop(queue);
        let rig = self.in_flight(ticket, place, site).wait(self.shared.deadline)?;
        let id = self.id.child(split, color);
        Ok(Self::new(rig, id, name, self.recorder.clone())?)
    }

    fn start(&self, call: Call, input: Option<SharedBuffer>) -> Result<Work> {
        self.begin(call, |_| Ok(Freight::Host(input)))
    }

    fn start_on_device(&self, call: Call, transfer: DeviceTransfer) -> Result<Work> {
        let Some(fencing) = &self.fencing else { return Err(self.refuse_device(&call)) };
        self.begin(call, |site| match fencing.fence() {
            Ok(fence) => Ok(Freight::Device(transfer, fence)),
            Err(error) => Err(Stop::Library(error).into_error(site, self.rank, &self.ranks)),
        })
    }

    fn health(&self) -> Result<()> {
        self.shared.member.watch().failure().map_or(Ok(()), Err)
    }

    fn abort(&self, cause: Error) {
        self.shared.member.fail(cause.seen_from_afar(self.world_rank()));
    }
}

/// A call this rank has started.
#[derive(Debug)]
struct InFlight<T> {
    shared: Arc<Shared>,
    ticket: Arc<Ticket<T>>,
    place: Place,
    site: CallSite,
    members: Arc<[Rank]>,
}

impl<T> InFlight<T> {
    fn wait(self, deadline: Duration) -> Result<T> {
        let Self { shared, ticket, place, site, members } = self;
        shared.member.wait((place, &site), &members, deadline, || ticket.take())?
    }
}

impl Pending for InFlight<Option<SharedBuffer>> {
    fn wait(self: Box<Self>, deadline: Duration) -> Result<Option<SharedBuffer>> {
        (*self).wait(deadline)
    }

    fn is_done(&self) -> bool {
        self.ticket.is_complete() || self.shared.member.watch().failure().is_some()
    }
}
