//! Where ranks meet that nobody has connected yet, and how they do.

use crate::{
    Environment, LaunchError, LaunchSpec,
    control::{Credentials, Host, Member, RendezvousError, connect},
};
use dmuon_core::Rank;
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Overrides `MASTER_ADDR` and `MASTER_PORT`.
const VARIABLE: &str = "DMUON_RENDEZVOUS";

/// `True` where torchrun itself listens at `MASTER_PORT`, for PyTorch; ranks then meet one port on.
const PORT_IS_TAKEN: &str = "TORCHELASTIC_USE_AGENT_STORE";

/// Names of the variables that tell jobs apart, in order of precedence.
const TOKENS: [&str; 3] = ["DMUON_JOB_TOKEN", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"];

/// Between two looks at a file.
const PAUSE: Duration = Duration::from_millis(20);

/// One attempt to join at what a file says, which may be left from another job.
const ATTEMPT: Duration = Duration::from_secs(1);

/// Where ranks meet before they are connected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rendezvous {
    /// Rank 0 listens at a place that all know: `MASTER_ADDR` and `MASTER_PORT`.
    Address {
        /// Rank 0's machine, as seen from all others.
        host: String,
        /// The port.
        port: u16,
    },
    /// Rank 0 writes where it listens to a file that all can read: `DMUON_RENDEZVOUS=file:///path`.
    File {
        /// The file, of this job alone.
        path: PathBuf,
    },
}

/// What rank 0 writes to the file.
#[derive(Debug, Serialize, Deserialize)]
struct Listing {
    machine: String,
    port: u16,
}

impl Rendezvous {
    /// The place that the environment names, if it does.
    pub(crate) fn read(env: &Environment<'_>) -> Result<Option<Self>, LaunchError> {
        if let Some(value) = env.variable(VARIABLE) {
            let path = value.strip_prefix("file://").filter(|path| path.starts_with('/'));
            let path = path.map(PathBuf::from).map(|path| Some(Self::File { path }));
            return path.ok_or(LaunchError::NoMeetingPlace { value });
        }
        let incomplete =
            |found, value: String, missing| Err(LaunchError::Incomplete { found, value, missing });
        match (env.variable("MASTER_ADDR"), env.number::<u16>("MASTER_PORT")?) {
            (None, None) => Ok(None),
            (Some(host), Some(port)) => {
                let is_taken = env.variable(PORT_IS_TAKEN).is_some_and(|value| value == "True");
                let next = port.checked_add(1).unwrap_or(port - 1);
                let port = if is_taken { next } else { port };
                Ok(Some(Self::Address { host, port }))
            }
            (Some(value), None) => incomplete("MASTER_ADDR", value, "MASTER_PORT"),
            (None, Some(port)) => incomplete("MASTER_PORT", port.to_string(), "MASTER_ADDR"),
        }
    }

    /// Meets all other ranks; rank 0 hosts them. Over the connection go ids and news of failures,
    /// never data.
    ///
    /// # Collective
    /// Every rank, with the same place, token and size.
    ///
    /// # Errors
    /// Rank 0 cannot listen, or this rank is refused or alone for longer than `deadline`.
    pub fn meet(
        &self,
        credentials: &Credentials,
        deadline: Duration,
    ) -> Result<(Member, Option<Host>), RendezvousError> {
        match (self, credentials.rank) {
            (Self::Address { port, .. }, Rank(0)) => {
                let host = Host::listen(&format!("0.0.0.0:{port}"), credentials, deadline)?;
                join_own(host, credentials, deadline)
            }
            (Self::Address { host, port }, _) => {
                let member = Member::join(&format!("{host}:{port}"), credentials, deadline)?;
                Ok((member, None))
            }
            (Self::File { path }, Rank(0)) => {
                let host = Host::listen("0.0.0.0:0", credentials, deadline)?;
                write(path, host.address().port())?;
                let met = join_own(host, credentials, deadline);
                // The next job must not find it; if it cannot be removed, that job reads it again.
                let _removed = fs::remove_file(path);
                met
            }
            (Self::File { path }, _) => Ok((join_listed(path, credentials, deadline)?, None)),
        }
    }
}

impl Credentials {
    /// Those of a launched process. Its job's token is `DMUON_JOB_TOKEN`, else what torchrun or
    /// Slurm calls the job, else empty.
    pub fn read(spec: &LaunchSpec, env: &Environment<'_>) -> Self {
        let token = TOKENS.iter().find_map(|name| env.variable(name)).unwrap_or_default();
        Self { token, rank: spec.rank, world_size: spec.world_size }
    }
}

/// Rank 0 calls itself. If there will be no world, it stays for those who have not heard so.
fn join_own(
    host: Host,
    credentials: &Credentials,
    deadline: Duration,
) -> Result<(Member, Option<Host>), RendezvousError> {
    let address = format!("127.0.0.1:{}", host.address().port());
    let joined = Member::join(&address, credentials, deadline);
    let member = joined.inspect_err(|_| host.dismiss())?;
    Ok((member, Some(host)))
}

/// Writes the listing whole or not at all.
fn write(path: &Path, port: u16) -> Result<(), RendezvousError> {
    let failed = |source| file_error(Rank(0), "write", path, source);
    let json = serde_json::to_vec(&Listing { machine: machine(), port });
    let unfinished = path.with_extension(format!("{}.tmp", std::process::id()));
    fs::write(&unfinished, json.map_err(io::Error::from).map_err(failed)?).map_err(failed)?;
    fs::rename(&unfinished, path).map_err(failed)
}

/// Joins where the file says, looking again as long as nobody is there: it may be an old one.
fn join_listed(
    path: &Path,
    credentials: &Credentials,
    deadline: Duration,
) -> Result<Member, RendezvousError> {
    let start = Instant::now();
    loop {
        let left = deadline.saturating_sub(start.elapsed());
        let connected = read(path)
            .map_err(|source| file_error(credentials.rank, "read", path, source))
            .and_then(|address| Ok((connect(&address, credentials.rank, ATTEMPT)?, address)));
        match connected {
            Ok((stream, address)) => return Member::enter(stream, &address, credentials, left),
            Err(error) if left.is_zero() => return Err(error),
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

/// Where rank 0 listens, as seen from here.
fn read(path: &Path) -> io::Result<String> {
    let listing: Listing = serde_json::from_slice(&fs::read(path)?)?;
    let host = if listing.machine == machine() { "127.0.0.1" } else { &listing.machine };
    Ok(format!("{host}:{}", listing.port))
}

/// The name of this machine.
fn machine() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

fn file_error(rank: Rank, action: &'static str, path: &Path, source: io::Error) -> RendezvousError {
    RendezvousError::File { rank, action, path: path.to_owned(), source }
}
