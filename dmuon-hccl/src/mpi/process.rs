//! One process's seat in a world of processes: joining it, failing it, leaving it.

use super::{
    error::MpiJoinError,
    group::MpiGroup,
    progress::{Rig, Shared},
    runtime::Runtime,
    safe::{Comm, Library},
};
use crate::{
    Claim, LaunchSpec, Rendezvous,
    control::{Credentials, GroupId, Host, Member},
};
use dmuon_core::{BufferPool, EngineOptions, Error, Ledger, Rank, Recorder, Result, Seat, World};
use serde::{Deserialize, Serialize};
use std::{
    hash::{BuildHasher, RandomState},
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicUsize},
    time::{Duration, Instant},
};

/// How long a process whose world has failed waits for the others before it exits.
const LINGER: Duration = Duration::from_millis(500);

/// Room for rank 0's invitation, and for a machine's name.
const INVITATION_BYTES: usize = 1024;
const NAME_BYTES: usize = 256;

/// A process that has joined a world of processes over MPI.
#[derive(Debug)]
pub struct Process {
    shared: Arc<Shared>,
    world: World,
    runtime: Arc<Runtime>,
    /// On rank 0.
    host: Option<Host>,
    dump: Option<PathBuf>,
}

/// What rank 0 tells everybody over MPI: where it listens, or why it can't.
#[derive(Debug, Serialize, Deserialize)]
struct Invitation {
    address: Result<String, String>,
    token: String,
}

impl Process {
    /// Joins the world of all processes that the launcher started.
    ///
    /// # Collective
    /// Every process.
    ///
    /// # Errors
    /// [`MpiJoinError`], as [`Error::External`]: no library, a library that counts other ranks than
    /// the launcher, or somebody who does not come within the deadline.
    pub fn join(spec: &LaunchSpec, options: &EngineOptions) -> Result<Self> {
        let deadline = options.resolved_deadline()?;
        let (verify, collectives) = (options.resolved_verify()?, options.resolved_collectives()?);
        let runtime = Runtime::acquire(deadline).map_err(Error::external)?;
        let (comm, host, member) = connect(&runtime, spec, deadline).map_err(Error::external)?;
        let (pool, in_flight) = (BufferPool::new(), AtomicUsize::new(0));
        let shared = Shared { member, pool, deadline, verify, collectives, in_flight };
        let shared = Arc::new(shared);
        let world = world(&shared, comm, options)?;
        Ok(Self { shared, world, runtime, host, dump: options.resolved_dump() })
    }

    /// Leaves the world, after the rank has [finished](Seat::finish).
    ///
    /// # Errors
    /// Why the world has failed, on this rank or another.
    pub fn leave(self) -> Result<()> {
        let failure = self.shared.member.watch().failure();
        match &self.host {
            Some(host) => {
                self.shared.member.leave(Duration::ZERO);
                host.linger(LINGER);
            }
            None => self.shared.member.leave(LINGER),
        }
        match failure {
            Some(failure) => Err(failure),
            None => {
                self.runtime.release();
                Ok(())
            }
        }
    }
}

impl Seat for Process {
    fn world(&self) -> World {
        self.world.clone()
    }

    fn fail(&self, cause: Error) {
        self.shared.member.fail(cause);
    }

    /// Waits for this rank's calls, then for all other ranks to finish: MPI lets nobody go early.
    fn finish(&self) {
        let finished = self.shared.drain().and_then(|()| self.shared.member.finish());
        if let Err(failure) = finished {
            tracing::debug!(%failure, "the world failed before this rank could leave");
        }
    }

    fn dump_directory(&self) -> Option<&Path> {
        self.dump.as_deref()
    }
}

/// Meets everybody over MPI, and then over the control connection.
fn connect(
    runtime: &Runtime,
    spec: &LaunchSpec,
    deadline: Duration,
) -> Result<(Comm, Option<Host>, Member), MpiJoinError> {
    let (claim, rendezvous) = (spec.claim(), spec.rendezvous.clone());
    let meeting = move |library: &Library| meet(library, claim, rendezvous, deadline);
    let (comm, host, invitation) = runtime.run(deadline, meeting)??;
    let address = invitation.address.map_err(|reason| MpiJoinError::Host { reason })?;
    let (token, rank, world_size) = (invitation.token, comm.world_rank(), comm.size());
    let member = Member::join(&address, &Credentials { token, rank, world_size }, deadline)?;
    Ok((comm, host, member))
}

fn world(shared: &Arc<Shared>, comm: Comm, options: &EngineOptions) -> Result<World> {
    let (rank, size) = (comm.world_rank(), comm.size());
    let recorder = Recorder::new(rank, Instant::now(), options.recorder_capacity);
    let ranks = (0..size).map(Rank).collect();
    let rig = Rig { shared: shared.clone(), comm, ranks };
    let group = MpiGroup::new(rig, GroupId::WORLD, "world", recorder.clone())?;
    let (pool, deadline) = (shared.pool.clone(), shared.deadline);
    Ok(World::new(group, pool, Ledger::new(), recorder, deadline))
}

/// Makes a communicator of all processes, and has rank 0 invite everybody to its control
/// connection. Runs on the thread that owns MPI, and blocks until everybody is here.
fn meet(
    library: &Library,
    claim: Claim,
    rendezvous: Option<Rendezvous>,
    deadline: Duration,
) -> Result<(Comm, Option<Host>, Invitation), MpiJoinError> {
    let comm = Comm::world(library)?;
    let (rank, size) = (comm.rank(), comm.size());
    if (claim.rank.0, claim.world_size) != (rank, size) {
        return Err(MpiJoinError::Disagree { claim, rank, size });
    }
    let machines = machines(library, &comm)?;
    let (host, invitation) = match rank {
        0 => invite(&machines, rendezvous, size, deadline),
        _ => (None, Invitation { address: Err("no invitation".into()), token: String::new() }),
    };
    let mut bytes = serde_json::to_vec(&invitation).unwrap_or_default();
    bytes.resize(INVITATION_BYTES, b' ');
    match rank {
        0 => comm.broadcast_from_here(&bytes)?,
        _ => comm.broadcast_from(0, &mut bytes)?,
    }
    let invitation = serde_json::from_slice(&bytes).map_err(|error| MpiJoinError::Host {
        reason: format!("rank 0's invitation cannot be read: {error}"),
    })?;
    Ok((comm, host, invitation))
}

/// The name of every rank's machine.
fn machines(library: &Library, comm: &Comm) -> Result<Vec<String>, MpiJoinError> {
    let mut own = library.processor_name()?.into_bytes();
    own.resize(NAME_BYTES, 0);
    let mut all = vec![0; comm.size() * NAME_BYTES];
    comm.all_gather(&own, &mut all)?;
    let name = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
    Ok(all.chunks(NAME_BYTES).map(name).collect())
}

/// Listens where everybody can reach it: at the given place, else on this machine alone if all
/// ranks are on it, else on all its networks.
fn invite(
    machines: &[String],
    rendezvous: Option<Rendezvous>,
    world_size: usize,
    deadline: Duration,
) -> (Option<Host>, Invitation) {
    let is_shared = machines.iter().all(|machine| *machine == machines[0]);
    let (bind, name) = match (rendezvous, is_shared) {
        (Some(Rendezvous::Address { host, port }), _) => (format!("0.0.0.0:{port}"), host),
        (_, true) => ("127.0.0.1:0".to_owned(), "127.0.0.1".to_owned()),
        (_, false) => ("0.0.0.0:0".to_owned(), machines[0].clone()),
    };
    let token = format!("{:016x}", RandomState::new().hash_one(Instant::now()));
    let credentials = Credentials { token: token.clone(), rank: Rank(0), world_size };
    match Host::listen(&bind, &credentials, deadline) {
        Ok(host) => {
            let address = Ok(format!("{name}:{}", host.address().port()));
            (Some(host), Invitation { address, token })
        }
        Err(error) => (None, Invitation { address: Err(error.to_string()), token }),
    }
}
