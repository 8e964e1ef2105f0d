//! Why a process could not join the others over MPI, and what to do about it.

use crate::{Claim, EngineLoadError, LibraryError, control::RendezvousError};
use std::{io, time::Duration};

/// Why a process could not join the others over MPI.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MpiJoinError {
    /// There is no library, or a wrong one.
    #[error(transparent)]
    Load(#[from] EngineLoadError),
    /// The library refused.
    #[error("MPI could not start: {source}")]
    Library {
        /// What it said.
        #[from]
        source: LibraryError,
    },
    /// The library wants to be called by one thread at a time.
    #[error(
        "this MPI library does not let several threads call it (MPI_THREAD_MULTIPLE); use one \
         that was built with thread support, through DMUON_MPI_LIB"
    )]
    Threads,
    /// Somebody else in this process uses MPI.
    #[error("MPI is initialized in this process already; let dmuon be the one that does it")]
    Initialized,
    /// The launcher and the library count differently.
    #[error(
        "{claim}, but the MPI library says rank {rank} of {size}: they do not belong together. \
         Start the program with the mpiexec of that library"
    )]
    Disagree {
        /// What the launcher says.
        claim: Claim,
        /// What the library says.
        rank: usize,
        /// How many ranks it counts.
        size: usize,
    },
    /// Somebody is missing already when MPI starts.
    #[error(
        "MPI did not start within {} s; did all processes of the job reach this point?",
        waited.as_secs_f64()
    )]
    Late {
        /// How long this process waited.
        waited: Duration,
    },
    /// A world of this process failed or is still open.
    #[error(
        "this process's last world failed or is still open, and MPI does not recover: open one \
         world after the other, and start the processes anew after a failure"
    )]
    Busy,
    /// The control connection could not be made.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// Rank 0 could not host.
    #[error("{reason}")]
    Host {
        /// What it said.
        reason: String,
    },
    /// The operating system refused a thread.
    #[error("no thread for MPI: {source}")]
    Thread {
        /// What it said.
        source: io::Error,
    },
}
