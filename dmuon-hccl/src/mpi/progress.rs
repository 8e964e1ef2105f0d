//! The thread that runs a group's collectives, in the order in which they were started.

use super::{
    course::{Course, Stop, tag_of},
    native, ordered,
    result::MpiError,
    safe::Comm,
};
use crate::control::{Member, Place};
use dmuon_core::{
    Buffer, BufferPool, Call, CallSite, Collectives, Element, Error, Rank, SharedBuffer,
};
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
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
    pub(super) collectives: Collectives,
    /// Calls that are started and not done.
    pub(super) in_flight: AtomicUsize,
}

/// A group's communicator and everything its thread works with.
#[derive(Debug)]
pub(super) struct Rig {
    pub(super) shared: Arc<Shared>,
    pub(super) comm: Comm,
    pub(super) ranks: Arc<[Rank]>,
}

/// Where a result is left for whoever waits.
#[derive(Debug)]
pub(super) struct Ticket<T>(Mutex<Option<Result<T, Error>>>);

/// What a group's thread is asked to do.
pub(super) type Job = Box<dyn FnOnce(&Rig) + Send>;

/// Starts the thread of a group; it ends with the last sender.
pub(super) fn start(rig: Rig, group: &str) -> Result<mpsc::Sender<Job>, Error> {
    let (sender, receiver) = mpsc::channel::<Job>();
    let rank = rig.shared.member.rank();
    let work = move || receiver.into_iter().for_each(|job| job(&rig));
    thread::Builder::new()
        .name(format!("mpi-{group}"))
        .spawn(work)
        .map_err(|source| Error::Thread { rank, source: Arc::new(source) })?;
    Ok(sender)
}

impl Shared {
    /// Waits until every started call is done, or the world has failed.
    pub(super) fn drain(&self) -> Result<(), Error> {
        let idle = || (self.in_flight.load(Ordering::Acquire) == 0).then_some(());
        self.member.watch().wait(Duration::MAX, idle).unwrap_or(Ok(()))
    }
}

impl Rig {
    /// Runs one collective.
    pub(super) fn run(
        &self,
        call: &Call,
        (place, site): (Place, &CallSite),
        input: Option<SharedBuffer>,
    ) -> Result<Option<SharedBuffer>, Error> {
        if let Some(float) = call.sums_widened() {
            let wide = Call { element: Element::F32, ..call.clone() };
            let input = input.map(|input| float.widen(input, &self.shared.pool));
            let sum = self.run(&wide, (place, site), input)?;
            return Ok(sum.map(|sum| float.narrow(sum, &self.shared.pool)));
        }
        let course = self.course(call, place);
        let outcome = match self.shared.collectives {
            Collectives::Library => native::run(&course, call, input, self.shared.verify),
            _ => ordered::run(&course, call, input),
        };
        outcome.map_err(|stop| self.explain(stop, site))
    }

    /// Gathers `own` from every rank, then makes a communicator of those with the same color.
    pub(super) fn split(
        &self,
        call: &Call,
        (place, site): (Place, &CallSite),
        own: [u64; 2],
    ) -> Result<(Vec<[u64; 2]>, Comm), Error> {
        let course = self.course(call, place);
        let input = Buffer::from_elements(&own).freeze();
        let all = ordered::all_gather(&course, &input).map_err(|stop| self.explain(stop, site))?;
        let all = all.elements::<[u64; 2]>().to_vec();
        // The library takes small numbers only: colors are told apart by how many ranks have a
        // lower one, and keys by how many members come earlier.
        let rank = self.comm.rank();
        let color = all.iter().filter(|[color, _]| *color < own[0]).count();
        let earlier = |(other, [color, key]): &(usize, [u64; 2])| {
            *color == own[0] && (*key, *other) < (own[1], rank)
        };
        let key = all.iter().copied().enumerate().filter(earlier).count();
        // Everybody is here, so the library's own split does not wait for long.
        let comm = self.comm.split(color, key);
        let comm = comm.map_err(|error| self.explain(Stop::Library(error), site))?;
        Ok((all, comm))
    }

    fn course(&self, call: &Call, place: Place) -> Course<'_> {
        Course {
            comm: &self.comm,
            ranks: &self.ranks,
            pool: &self.shared.pool,
            watch: self.shared.member.watch(),
            place,
            tag: tag_of(call, place),
        }
    }

    /// The error; a library that refuses once is not trusted again by anybody.
    fn explain(&self, stop: Stop, site: &CallSite) -> Error {
        let broken = matches!(stop, Stop::Library(MpiError { .. }));
        let error = stop.into_error(site, self.comm.rank(), &self.ranks);
        if broken { self.shared.member.fail(error) } else { error }
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
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Result<T, Error>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
