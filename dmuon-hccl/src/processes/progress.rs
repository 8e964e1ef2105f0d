//! The thread that runs a group's collectives, in the order in which they were started.

use super::{
    conduit::{Conduit, Division},
    course::{Course, Stop},
};
use crate::control::{GroupId, Member, Place};
use dmuon_core::{Buffer, BufferPool, Call, CallSite, DeviceTransfer, Error, Rank, SharedBuffer};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::Duration,
};

/// What the groups of a world share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) member: Member,
    pub(super) pool: BufferPool,
    pub(super) deadline: Duration,
    pub(super) verify: bool,
    pub(super) under_way: UnderWay,
}

/// Calls that are started and not done, in the order in which they were started.
#[derive(Debug, Default)]
pub(super) struct UnderWay(Mutex<VecDeque<Started>>);

/// A call of a group.
#[derive(Clone, Debug)]
pub(super) struct Started {
    pub(super) place: Place,
    pub(super) site: CallSite,
    /// The group's world ranks.
    pub(super) members: Arc<[Rank]>,
}

/// A group's conduit and everything its thread works with.
#[derive(Debug)]
pub(super) struct Rig<C> {
    pub(super) shared: Arc<Shared>,
    pub(super) conduit: C,
    /// The group's world ranks.
    pub(super) ranks: Arc<[Rank]>,
}

/// What a rank brings to a collective.
#[derive(Debug)]
pub(super) enum Freight<F> {
    /// Its input, in host memory.
    Host(Option<SharedBuffer>),
    /// Memory of the device, and what the device must be past before it is used.
    Device(DeviceTransfer, F),
}

/// Where a result is left for whoever waits.
#[derive(Debug)]
pub(super) struct Ticket<T>(Mutex<Option<Result<T, Error>>>);

/// What a group's thread is asked to do.
pub(super) type Job<C> = Box<dyn FnOnce(&mut Rig<C>) + Send>;

/// Starts the thread of a group; it ends with the last sender.
pub(super) fn start<C: Conduit>(
    mut rig: Rig<C>,
    group: &str,
) -> Result<mpsc::Sender<Job<C>>, Error> {
    let (sender, receiver) = mpsc::channel::<Job<C>>();
    let rank = rig.shared.member.rank();
    let work = move || receiver.into_iter().for_each(|job| job(&mut rig));
    thread::Builder::new()
        .name(group.to_owned())
        .spawn(work)
        .map_err(|source| Error::Thread { rank, source: Arc::new(source) })?;
    Ok(sender)
}

impl Shared {
    /// Waits until every started call is done, also those that nobody has waited for.
    ///
    /// # Errors
    /// The world has failed, or a call takes longer than the deadline; then the world fails now, and
    /// the error names who is missing.
    pub(super) fn drain(&self) -> Result<(), Error> {
        while let Some(Started { place, site, members }) = self.under_way.first() {
            let is_done = || (!self.under_way.contains(place)).then_some(());
            self.member.wait((place, &site), &members, self.deadline, is_done)?;
        }
        Ok(())
    }
}

impl UnderWay {
    /// Adds a call.
    pub(super) fn begin(&self, started: Started) {
        self.lock().push_back(started);
    }

    /// Removes the call at `place`. Whoever waits for that must be woken.
    pub(super) fn end(&self, place: Place) {
        self.lock().retain(|started| started.place != place);
    }

    fn first(&self) -> Option<Started> {
        self.lock().front().cloned()
    }

    fn contains(&self, place: Place) -> bool {
        self.lock().iter().any(|started| started.place == place)
    }

    /// Calls are added and removed whole, so a panic elsewhere does no harm.
    fn lock(&self) -> MutexGuard<'_, VecDeque<Started>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F> Freight<F> {
    /// Checks it and the call, before anything is sent, for the rank at `place` of so many.
    pub(super) fn check(
        &self,
        call: &Call,
        place: (usize, usize),
        caller: Rank,
        site: &CallSite,
    ) -> Result<(), Error> {
        let at = || site.clone();
        match self {
            Self::Host(input) => {
                call.check(place, input.as_ref().map(SharedBuffer::len_bytes), caller, at)
            }
            Self::Device(transfer, _) => transfer.check(&call.carried_out(), place, caller, at),
        }
    }
}

impl<C: Conduit> Rig<C> {
    /// Runs one collective.
    pub(super) fn run(
        &mut self,
        call: &Call,
        at: (Place, &CallSite),
        freight: Freight<C::Fence>,
    ) -> Result<Option<SharedBuffer>, Error> {
        let carried_out = call.carried_out();
        let input = match freight {
            Freight::Host(input) => input,
            Freight::Device(transfer, fence) => {
                let run = |conduit: &mut C, course: &Course<'_>| {
                    conduit.run_on_device(course, &carried_out, transfer, fence)
                };
                return self.travel(at, run).map(|()| None);
            }
        };
        let Some(float) = call.sums_widened() else {
            return self.travel(at, |conduit, course| conduit.run(course, call, input));
        };
        let input = input.map(|input| float.widen(input, &self.shared.pool));
        let sum = self.travel(at, |conduit, course| conduit.run(course, &carried_out, input))?;
        Ok(sum.map(|sum| float.narrow(sum, &self.shared.pool)))
    }

    /// Gathers every rank's color and key, `own` among them, then forms this rank's new group,
    /// the `split`-th of the group `parent`.
    pub(super) fn split(
        &mut self,
        (place, site): (Place, &CallSite),
        (parent, split): (GroupId, u64),
        own: [u64; 2],
    ) -> Result<Rig<C>, Error> {
        let input = Buffer::from_elements(&own).freeze();
        let (division, conduit) = self.travel((place, site), |conduit, course| {
            let all = conduit.all_gather(course, input)?;
            let id = parent.child(split, own[0] as usize);
            let division = Division::of(conduit.rank(), all.elements(), id);
            // Everybody is here, so what follows does not wait for long.
            let part = conduit.split(course, &division)?;
            Ok((division, part))
        })?;
        let ranks = division.members.iter().map(|place| self.ranks[*place]).collect();
        Ok(Rig { shared: self.shared.clone(), conduit, ranks })
    }

    /// Lets the conduit do something. A library that refuses once is not trusted again by anybody.
    fn travel<T>(
        &mut self,
        (place, site): (Place, &CallSite),
        body: impl FnOnce(&mut C, &Course<'_>) -> Result<T, Stop>,
    ) -> Result<T, Error> {
        let (pool, watch) = (&self.shared.pool, &**self.shared.member.watch());
        let course = Course { ranks: &self.ranks, pool, watch, place };
        body(&mut self.conduit, &course).map_err(|stop| {
            let broken = matches!(stop, Stop::Library(_));
            let error = stop.into_error(site, self.conduit.rank(), &self.ranks);
            if broken { self.shared.member.fail(error) } else { error }
        })
    }
}

impl<T> Ticket<T> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(None)))
    }

    /// A ticket whose result is there already.
    pub(super) fn with(result: Result<T, Error>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(result))))
    }

    /// Leaves the result.
    pub(super) fn complete(&self, result: Result<T, Error>) {
        *self.lock() = Some(result);
    }

    /// Takes the result, if it is there.
    pub(super) fn take(&self) -> Option<Result<T, Error>> {
        self.lock().take()
    }

    /// Whether the result is there.
    pub(super) fn is_complete(&self) -> bool {
        self.lock().is_some()
    }

    /// Holds a whole result or none, so a panic elsewhere does no harm.
    fn lock(&self) -> MutexGuard<'_, Option<Result<T, Error>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
