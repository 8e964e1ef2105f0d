//! Joining a world of processes over MPI: the library's world first, the control connection through it.

use super::{
    conduit::MpiConduit,
    error::MpiJoinError,
    runtime::Runtime,
    safe::{Comm, Library},
};
use crate::{
    Claim, LaunchSpec, Process, Rendezvous,
    control::{Credentials, Host, Member},
    processes::Opening,
};
use dmuon_core::{EngineOptions, Error, Rank, Result};
use serde::{Deserialize, Serialize};
use std::{
    hash::{BuildHasher, RandomState},
    time::{Duration, Instant},
};

/// Room for rank 0's invitation, and for a machine's name.
const INVITATION_BYTES: usize = 1024;
const NAME_BYTES: usize = 256;

/// What rank 0 tells everybody over MPI: where it listens, or why it can't.
#[derive(Debug, Serialize, Deserialize)]
struct Invitation {
    address: Result<String, String>,
    token: String,
}

/// Joins the world of all processes that the launcher started.
///
/// # Collective
/// Every process.
///
/// # Errors
/// [`MpiJoinError`], as [`Error::External`]: no library, a library that counts other ranks than
/// the launcher, or somebody who does not come within the deadline.
pub fn join(spec: &LaunchSpec, options: &EngineOptions) -> Result<Process> {
    let deadline = options.resolved_deadline()?;
    let (verify, collectives) = (options.resolved_verify()?, options.resolved_collectives()?);
    let runtime = Runtime::acquire(deadline).map_err(Error::external)?;
    let (comm, host, member) = connect(&runtime, spec, deadline).map_err(Error::external)?;
    let conduit = MpiConduit { comm, collectives, verify };
    Process::open(Opening { conduit, member, host, engine: Some(runtime) }, options)
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
    let joined = Member::join(&address, &Credentials { token, rank, world_size }, deadline);
    let member = joined.inspect_err(|_| host.iter().for_each(Host::dismiss))?;
    Ok((comm, host, member))
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
