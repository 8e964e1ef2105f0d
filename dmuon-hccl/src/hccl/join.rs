//! Joining a world of processes over HCCL: the control connection first, HCCL's world through it.

use super::{
    error::HcclJoinError,
    lane::{Ground, HcclLane},
    libraries::Libraries,
    order::Order,
    safe::{Comm, Device, Library, RootInfo, Settings},
};
use crate::{
    Environment, LaunchSpec, Process,
    control::{Credentials, Member},
    device::{Staged, is_order_asked},
    processes::{Opening, part},
    rank_table,
};
use dmuon_core::{EngineOptions, Error, Rank, Result};
use std::{
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

/// What rank 0's root information is shared as.
const ROOT: &str = "hccl root";

/// Joins the world of all processes that the launcher started, over the libraries that the
/// environment names.
///
/// # Collective
/// Every process.
///
/// # Errors
/// [`HcclJoinError`], as [`Error::External`]: no library or device, or somebody who does not come
/// within the deadline. What fails one process fails all that have met.
pub fn join(spec: &LaunchSpec, options: &EngineOptions) -> Result<Process> {
    join_with(&Libraries::read(&Environment::of_process()), spec, options)
}

/// [`join`] over libraries of the program's choice.
///
/// # Errors
/// As [`join`].
pub fn join_with(
    libraries: &Libraries,
    spec: &LaunchSpec,
    options: &EngineOptions,
) -> Result<Process> {
    if is_order_asked(options)? {
        return Err(Error::external(HcclJoinError::Ordered));
    }
    // Settings that cannot be read fail this rank before the others count on it.
    let (deadline, _) = (options.resolved_deadline()?, options.resolved_verify()?);
    let nowhere = || Error::external(HcclJoinError::NoMeetingPlace { claim: spec.claim() });
    let place = spec.rendezvous.as_ref().ok_or_else(nowhere)?;
    let met = place.meet(&Credentials::read(spec, &Environment::of_process()), deadline);
    let (member, host) = met.map_err(|error| Error::external(HcclJoinError::from(error)))?;
    let start =
        Start { libraries, spec, member: &member, until: Instant::now() + deadline, deadline };
    // The others wait for this rank from here on.
    let lane = start.lane().inspect_err(|error| {
        member.fail(error.clone().seen_from_afar(spec.rank));
        part(&member, host.as_ref());
    })?;
    let conduit = Staged::new(lane);
    Process::open(Opening { conduit, member, host, engine: None }, options)
}

/// The start of a rank that has met the others.
struct Start<'a> {
    libraries: &'a Libraries,
    spec: &'a LaunchSpec,
    member: &'a Member,
    until: Instant,
    deadline: Duration,
}

impl Start<'_> {
    /// Opens this rank's device and connects it to the others.
    fn lane(&self) -> Result<HcclLane> {
        let size = self.spec.world_size;
        let (device, root) = self.open()?;
        let world = match size {
            1 => None,
            _ => Some(Arc::new(self.connect(&device, root)?)),
        };
        let settings = Settings::read(&Environment::of_process());
        let ground = Ground { device, world, board: self.member.board(), settings };
        let lane = HcclLane::of_world(ground, Order::of_world(self.spec.rank.0, size));
        lane.map_err(|error| Error::external(HcclJoinError::from(error)))
    }

    /// Opens the device, and makes it the root of a new world where one is needed.
    fn open(&self) -> Result<(Arc<Device>, Option<RootInfo>)> {
        let (libraries, spec) = (self.libraries.clone(), self.spec.clone());
        let is_root = spec.rank == Rank(0) && spec.world_size > 1 && spec.rank_table.is_none();
        let work = move || {
            let device = open_device(&libraries, &spec)?;
            let root = is_root.then(|| RootInfo::new(&device)).transpose()?;
            Ok((device, root))
        };
        self.bounded(work, || HcclJoinError::Stuck { waited: self.deadline })
    }

    /// Makes the communicator of all ranks.
    fn connect(&self, device: &Arc<Device>, root: Option<RootInfo>) -> Result<Comm> {
        let (rank, size) = (self.spec.rank.0, self.spec.world_size);
        let table = self.spec.rank_table.clone();
        let root = match table {
            Some(_) => None,
            None => Some(self.share(root)?),
        };
        self.member.board().post(&attendance(self.spec.rank), "here");
        let own = device.clone();
        let work = move || {
            own.enter()?;
            Ok(match (&root, &table) {
                (Some(root), _) => Comm::around(own, root, (rank, size))?,
                (None, Some(table)) => Comm::of_table(own, table, (rank, size))?,
                (None, None) => return Err(HcclJoinError::RootInfo),
            })
        };
        let late = || HcclJoinError::Late { waited: self.deadline, missing: self.absent() };
        // Whatever the library is doing then, nobody waits for it any more.
        self.bounded(work, late).inspect_err(|_| device.abandon())
    }

    /// Rank 0's root information, on every rank.
    fn share(&self, own: Option<RootInfo>) -> Result<RootInfo> {
        let own = own.map(|info| info.to_hex());
        let text = self.member.share(ROOT, own.as_deref(), self.left())?;
        RootInfo::from_hex(&text).ok_or_else(|| Error::external(HcclJoinError::RootInfo))
    }

    /// Runs what may block in a library, on a thread that is left behind if it does for too long.
    fn bounded<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, HcclJoinError> + Send + 'static,
        late: impl FnOnce() -> HcclJoinError,
    ) -> Result<T> {
        let (sender, receiver) = mpsc::channel();
        let watch = self.member.watch().clone();
        let body = move || {
            // Nobody takes it if this is too late.
            let _taken = sender.send(work());
            watch.notify();
        };
        let thread = thread::Builder::new().name("dmuon-hccl".into()).spawn(body);
        thread.map_err(|source| Error::external(HcclJoinError::Thread { source }))?;
        match self.member.watch().wait(self.left(), || receiver.try_recv().ok()) {
            Some(outcome) => outcome?.map_err(Error::external),
            None => Err(Error::external(late())),
        }
    }

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Ranks that have not come as far as asking HCCL to connect them.
    fn absent(&self) -> Vec<Rank> {
        let board = self.member.board();
        let is_absent = |rank: &Rank| board.posted(&attendance(*rank)).is_none();
        (0..self.spec.world_size).map(Rank).filter(is_absent).collect()
    }
}

/// The device that is this rank's.
fn open_device(libraries: &Libraries, spec: &LaunchSpec) -> Result<Arc<Device>, HcclJoinError> {
    let library = Library::open::<HcclJoinError>(libraries)?;
    let (claim, num_devices) = (spec.claim(), library.num_devices()?);
    let listed = match &spec.rank_table {
        Some(path) => rank_table::device_in(path, claim, &Environment::of_process())?,
        None => None,
    };
    let device = spec.local_rank.or(listed).ok_or(HcclJoinError::NoLocalRank { claim })?;
    if device >= num_devices {
        return Err(HcclJoinError::NoDevice { claim, device, num_devices });
    }
    Ok(Arc::new(Device::open(library, device)?))
}

/// What a rank posts before it asks HCCL to connect it.
fn attendance(rank: Rank) -> String {
    format!("hccl rank {rank}")
}
