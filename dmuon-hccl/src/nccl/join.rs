//! Joining a world of processes over NCCL: the control connection first, the library's world through
//! it.

use super::{
    error::NcclJoinError,
    lane::NcclLane,
    safe::{Comm, Device, Library},
    tally::{Entry, Tally},
};
use crate::{
    Environment, LaunchSpec, Process,
    control::{Credentials, GroupId, Host, Member, Watch},
    device::{Lane, Staged, Turns, is_order_asked},
    processes::{Opening, Release, part},
};
use dmuon_core::{EngineOptions, Error, Result};
use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// How long a process that cannot take part waits for the others, to tell them.
const NEWS_TIME: Duration = Duration::from_secs(5);

/// Between two looks at a communicator that is being formed.
const PAUSE: Duration = Duration::from_millis(1);

/// What this process needs of its own.
#[derive(Debug)]
struct Equipment {
    device: Device,
    library: Library,
}

/// Joins the world of all processes that the launcher started, on the device of this process's
/// local rank.
///
/// # Collective
/// Every process.
///
/// # Errors
/// [`NcclJoinError`], as [`Error::External`]: no driver, device or library, nowhere to meet, or
/// somebody who does not come within the deadline. The others are told.
pub fn join(spec: &LaunchSpec, options: &EngineOptions) -> Result<Process> {
    // Settings that cannot be read fail this rank before the others count on it.
    let (deadline, _) = (options.resolved_deadline()?, options.resolved_verify()?);
    if is_order_asked(options)? {
        return Err(Error::external(NcclJoinError::Ordered));
    }
    let equipment = Equipment::find(spec);
    let patience = if equipment.is_ok() { deadline } else { deadline.min(NEWS_TIME) };
    let met = meet(spec, patience);
    let equipment = equipment.map_err(Error::external);
    let (member, host) = match met {
        Ok(met) => met,
        // What this process lacks says more than that the others are not here.
        Err(error) => return Err(equipment.err().unwrap_or_else(|| Error::external(error))),
    };
    let tally = Arc::new(Tally::default());
    let connect = |equipment: Equipment| equipment.connect(&member, spec, deadline, &tally);
    let lane = equipment.and_then(connect).inspect_err(|error| {
        member.fail(error.clone().seen_from_afar(spec.rank));
        part(&member, host.as_ref());
        tally.give_up();
    })?;
    let (conduit, engine) = (Staged::new(lane), Some(tally as Arc<dyn Release>));
    Process::open(Opening { conduit, member, host, engine }, options)
}

/// Meets everybody at the place that the launcher names.
fn meet(spec: &LaunchSpec, deadline: Duration) -> Result<(Member, Option<Host>), NcclJoinError> {
    let claim = spec.claim();
    let place = spec.rendezvous.as_ref().ok_or(NcclJoinError::NoMeetingPlace { claim })?;
    let credentials = Credentials::read(spec, &Environment::of_process());
    Ok(place.meet(&credentials, deadline)?)
}

impl Equipment {
    fn find(spec: &LaunchSpec) -> Result<Self, NcclJoinError> {
        let device = Device::open(&spec.claim())?;
        Ok(Self { device, library: Library::open()? })
    }

    /// Forms the world, whose id rank 0 makes up and tells.
    fn connect(
        &self,
        member: &Member,
        spec: &LaunchSpec,
        deadline: Duration,
        tally: &Arc<Tally>,
    ) -> Result<NcclLane> {
        let refused = |source| Error::external(NcclJoinError::Library { source });
        let own = match spec.rank.0 {
            0 => Some(self.library.unique_id().map_err(refused)?.to_string()),
            _ => None,
        };
        let id = member.share("nccl", own.as_deref(), deadline)?;
        let id = id.parse().map_err(|_| Error::message("rank 0's NCCL id cannot be read"))?;
        let place = (spec.rank.0, spec.world_size);
        let comm = Comm::init(&self.library, &self.device, id, place).map_err(refused)?;
        let turns = Turns::new(member.board(), GroupId::WORLD, spec.world_size);
        let lane = NcclLane::forming(comm, turns, Entry::new(tally));
        let mut lane = lane.map_err(refused)?;
        wait_for(&mut lane, member.watch(), deadline)?;
        Ok(lane)
    }
}

/// Waits until all ranks are connected.
fn wait_for(lane: &mut NcclLane, watch: &Watch, deadline: Duration) -> Result<()> {
    let since = Instant::now();
    loop {
        let is_ready = lane.poll();
        if is_ready.map_err(|source| Error::external(NcclJoinError::Library { source }))? {
            return Ok(());
        }
        if let Some(failure) = watch.failure() {
            return Err(failure);
        }
        if since.elapsed() > deadline {
            return Err(Error::external(NcclJoinError::Late { waited: deadline }));
        }
        thread::sleep(PAUSE);
    }
}
