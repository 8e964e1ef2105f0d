//! Joining a world of processes over HCCL: the control connection first, HCCL's world through it.

use super::{
    error::HcclJoinError,
    lane::{Ground, HcclLane},
    libraries::Libraries,
    order::Order,
    safe::{Comm, Device, Library, RootInfo, Settings},
};
use crate::{
    Environment, LaunchSpec, LibraryError, Process,
    control::{Board, Credentials, Member},
    device::Staged,
    processes::Opening,
    rank_table,
};
use dmuon_core::{Collectives, EngineOptions, Error, Rank, Result};
use std::{
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

/// What rank 0's root information is shared as.
const ROOT: &str = "hccl root";

/// How the communicator is made, and where it is left.
type Making = Box<dyn FnOnce(Arc<Device>) -> Result<Comm, LibraryError> + Send>;
type Outcome = Arc<Mutex<Option<Result<Comm, LibraryError>>>>;

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
    check_order(options)?;
    let deadline = options.resolved_deadline()?;
    let place = spec.rendezvous.as_ref();
    let nowhere = || Error::external(HcclJoinError::NoMeetingPlace { claim: spec.claim() });
    let credentials = Credentials::read(spec, &Environment::of_process());
    let met = place.ok_or_else(nowhere)?.meet(&credentials, deadline);
    let (member, host) = met.map_err(|error| Error::external(HcclJoinError::Rendezvous(error)))?;
    // The others wait for this rank from here on.
    let lane = start(libraries, spec, (&member, deadline))
        .inspect_err(|error| drop(member.fail(error.clone().seen_from_afar(spec.rank))))?;
    let conduit = Staged::new(lane);
    Process::open(Opening { conduit, member, host, engine: None }, options)
}

/// Refuses a choice that HCCL cannot follow.
fn check_order(options: &EngineOptions) -> Result<()> {
    let is_chosen = options.collectives != Collectives::FromEnvironment
        || std::env::var_os("DMUON_COLLECTIVES").is_some();
    if is_chosen && options.resolved_collectives()? == Collectives::Ordered {
        return Err(Error::external(HcclJoinError::Ordered));
    }
    Ok(())
}

/// Opens this rank's device and connects it to the others.
fn start(
    libraries: &Libraries,
    spec: &LaunchSpec,
    (member, deadline): (&Member, Duration),
) -> Result<HcclLane> {
    let device = open_device(libraries, spec).map_err(Error::external)?;
    let world = match spec.world_size {
        1 => None,
        _ => Some(Arc::new(connect(&device, spec, (member, deadline))?)),
    };
    let settings = Settings::read(&Environment::of_process());
    let ground = Ground { device, world, board: member.board(), settings };
    let lane = HcclLane::of_world(ground, Order::of_world(spec.rank.0, spec.world_size));
    lane.map_err(|error| Error::external(HcclJoinError::from(error)))
}

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

/// Makes the communicator of all ranks, on a thread that may be left behind.
fn connect(
    device: &Arc<Device>,
    spec: &LaunchSpec,
    (member, deadline): (&Member, Duration),
) -> Result<Comm> {
    let (rank, size) = (spec.rank.0, spec.world_size);
    let making: Making = match spec.rank_table.clone() {
        Some(path) => Box::new(move |device| Comm::of_table(device, &path, rank)),
        None => {
            let root = share_root(device, (member, deadline))?;
            Box::new(move |device| Comm::around(device, &root, (rank, size)))
        }
    };
    member.board().post(&attendance(spec.rank), "here");
    let place = spawn(making, device.clone(), member).map_err(Error::external)?;
    let poll = || place.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(outcome) = member.watch().wait(deadline, poll) else {
        device.abandon();
        let missing = absent(&member.board(), size);
        return Err(Error::external(HcclJoinError::Late { waited: deadline, missing }));
    };
    outcome
        .inspect_err(|_| device.abandon())?
        .map_err(|error| Error::external(HcclJoinError::from(error)))
}

/// Has a thread of its own make the communicator, and leave it.
fn spawn(making: Making, device: Arc<Device>, member: &Member) -> Result<Outcome, HcclJoinError> {
    let (outcome, watch) = (Outcome::default(), member.watch().clone());
    let place = outcome.clone();
    let work = move || {
        let made = device.enter().and_then(|()| making(device));
        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
        watch.notify();
    };
    let thread = thread::Builder::new().name("dmuon-hccl".into()).spawn(work);
    thread.map_err(|source| HcclJoinError::Thread { source })?;
    Ok(outcome)
}

/// Rank 0's root information, on every rank.
fn share_root(device: &Device, (member, deadline): (&Member, Duration)) -> Result<RootInfo> {
    let own = match member.rank() {
        Rank(0) => {
            let info = RootInfo::new(device);
            Some(info.map_err(|error| Error::external(HcclJoinError::from(error)))?.to_hex())
        }
        _ => None,
    };
    let text = member.share(ROOT, own.as_deref(), deadline)?;
    RootInfo::from_hex(&text).ok_or_else(|| Error::external(HcclJoinError::RootInfo))
}

/// Ranks that have not come as far as asking HCCL to connect them.
fn absent(board: &Board, size: usize) -> Vec<Rank> {
    (0..size).map(Rank).filter(|rank| board.posted(&attendance(*rank)).is_none()).collect()
}

/// What a rank posts before it asks HCCL to connect it.
fn attendance(rank: Rank) -> String {
    format!("hccl rank {rank}")
}
