//! Why ranks could not meet, and what to do about it.

use dmuon_core::Rank;
use serde::{Deserialize, Serialize};
use std::{io, path::PathBuf, time::Duration};

/// Why a rank could not join the others.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// Rank 0 cannot listen.
    #[error(
        "rank 0 cannot listen on {address}: {source}; is another job using it? Choose another \
         MASTER_PORT, the same on every rank"
    )]
    Listen {
        /// Where it tried.
        address: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// Nobody answers.
    #[error(
        "rank {rank} found nobody at {address} for {} s: {source}; is rank 0 running, and is \
         MASTER_ADDR its machine as seen from here?",
        waited.as_secs_f64()
    )]
    Unreachable {
        /// The rank that called.
        rank: Rank,
        /// Where it called.
        address: String,
        /// How long it tried.
        waited: Duration,
        /// What it got last.
        source: io::Error,
    },
    /// The host, or whoever listens there, does not want this rank.
    #[error("rank {rank} was refused at {address}: {refusal}")]
    Refused {
        /// The rank that called.
        rank: Rank,
        /// Where it called.
        address: String,
        /// Why.
        refusal: Refusal,
    },
    /// The file to meet at cannot be used.
    #[error(
        "rank {rank} cannot {action} {}: {source}; every rank needs this path on a file system \
         they share, and a name of its own for each job",
        path.display()
    )]
    File {
        /// The rank.
        rank: Rank,
        /// What it tried to do.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// No thread to listen with.
    #[error("no thread for the control connection: {source}")]
    Thread {
        /// What the operating system said.
        #[from]
        source: io::Error,
    },
}

/// Why the host turns a rank away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Another version of dmuon.
    #[error(
        "it speaks control protocol {theirs}, this program {ours}; start one program everywhere"
    )]
    Version {
        /// The host's.
        theirs: u32,
        /// The caller's.
        ours: u32,
    },
    /// Another job.
    #[error(
        "it belongs to another job (the job tokens differ); choose another MASTER_PORT, or set \
         DMUON_JOB_TOKEN to one value on all ranks of a job"
    )]
    WrongToken,
    /// A world of another size.
    #[error("it expects {theirs} ranks, this rank was told {ours}; start all ranks with one size")]
    WorldSize {
        /// The host's.
        theirs: usize,
        /// The caller's.
        ours: usize,
    },
    /// A rank outside the world.
    #[error("there is no rank {rank} among {world_size}; ranks count from 0")]
    OutOfRange {
        /// The rank.
        rank: usize,
        /// How many there are.
        world_size: usize,
    },
    /// A rank that is there already.
    #[error("rank {rank} is there already; give every process a rank of its own")]
    Duplicate {
        /// The rank.
        rank: usize,
    },
    /// Somebody did not come.
    #[error("not arrived within {} s: ranks {missing:?}; did their processes start?", waited.as_secs_f64())]
    Missing {
        /// Who.
        missing: Vec<usize>,
        /// How long the host waited.
        waited: Duration,
    },
    /// Somebody came and went.
    #[error(
        "rank {rank} went before everybody had arrived, so nobody need wait any longer; what rank \
         {rank} says last tells why"
    )]
    Left {
        /// Who.
        rank: usize,
    },
    /// Whoever answered is not dmuon.
    #[error("whoever listens there is not dmuon; choose another MASTER_PORT")]
    Stranger,
}
