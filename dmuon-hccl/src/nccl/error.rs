//! Why a process could not join the others over NCCL, and what to do about it.

use crate::{Claim, EngineLoadError, LibraryError, control::RendezvousError};
use std::time::Duration;

/// Why a process could not join the others over NCCL.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NcclJoinError {
    /// There is no library, or a wrong one.
    #[error(transparent)]
    Load(#[from] EngineLoadError),
    /// There is no driver.
    #[error(
        "no GPU driver: looked for {}; NCCL needs NVIDIA's driver on every machine. Without GPUs, \
         run ranks as threads or over MPI, as docs/launch.md shows",
        tried.join(", ")
    )]
    NoDriver {
        /// Every name that was tried, with the loader's complaint.
        tried: Vec<String>,
    },
    /// There is no device for this process.
    #[error(
        "{claim}, but the driver shows this process {num_devices} devices: start no more processes \
         on a machine than it has GPUs, and let each see all of them (CUDA_VISIBLE_DEVICES), as it \
         takes the one of its local rank"
    )]
    NoDevice {
        /// Who this process is.
        claim: Claim,
        /// How many devices it may use.
        num_devices: usize,
    },
    /// Nobody says which device this process takes.
    #[error(
        "{claim}, but nothing says which number it has on its machine, which is that of its device: \
         set LOCAL_RANK"
    )]
    NoLocalRank {
        /// Who this process is.
        claim: Claim,
    },
    /// Nobody says where the ranks meet.
    #[error(
        "{claim}, but nothing says where ranks meet: set MASTER_ADDR and MASTER_PORT, as torchrun \
         does, or DMUON_RENDEZVOUS=file:///path"
    )]
    NoMeetingPlace {
        /// Who this process is.
        claim: Claim,
    },
    /// The canonical order of sums, which is not NCCL's.
    #[error(
        "collectives in the canonical order are asked for, but NCCL sums in an order of its own: \
         choose `library` (DMUON_COLLECTIVES or EngineOptions::with_collectives), or leave the \
         choice out"
    )]
    Ordered,
    /// Driver or library refused.
    #[error("NCCL could not start: {source}")]
    Library {
        /// What it said.
        #[from]
        source: LibraryError,
    },
    /// Somebody met the others and did not start NCCL, or it cannot reach somebody.
    #[error(
        "NCCL did not connect the ranks within {} s, though they met: did one of them stop, and can \
         all reach each other? NCCL_DEBUG=INFO tells which network it uses, NCCL_SOCKET_IFNAME \
         chooses",
        waited.as_secs_f64()
    )]
    Late {
        /// How long this process waited.
        waited: Duration,
    },
    /// The ranks could not meet.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
}
