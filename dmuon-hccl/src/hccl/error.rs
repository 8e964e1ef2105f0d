//! Why a process could not join the others over HCCL, and what to do about it.

use crate::{Claim, EngineLoadError, LaunchError, LibraryError, control::RendezvousError};
use dmuon_core::Rank;
use std::{io, time::Duration};

/// Why a process could not join the others over HCCL.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HcclJoinError {
    /// There is no library, or a wrong one.
    #[error(
        "{source}. On a machine with Ascend devices, source the set_env.sh of CANN 8.0 or newer \
         first"
    )]
    Load {
        /// What was looked for.
        #[from]
        source: EngineLoadError,
    },
    /// A library refused.
    #[error("HCCL could not start: {source}")]
    Library {
        /// What it said.
        #[from]
        source: LibraryError,
    },
    /// Only the library's own order of sums is to be had.
    #[error(
        "HCCL sums in an order of its own, so collectives cannot be ordered: unset \
         DMUON_COLLECTIVES, or choose `library`"
    )]
    Ordered,
    /// Nobody says which device is this process's.
    #[error(
        "{claim}, but nothing says which device it takes: set LOCAL_RANK, or RANK_TABLE_FILE to a \
         rank table that lists its device_id"
    )]
    NoLocalRank {
        /// Who this process is.
        claim: Claim,
    },
    /// There are not so many devices.
    #[error(
        "{claim} takes device {device}, but AscendCL shows {num_devices}: start at most as many \
         processes on a machine as it has devices, and look at ASCEND_RT_VISIBLE_DEVICES"
    )]
    NoDevice {
        /// Who this process is.
        claim: Claim,
        /// The device it wants.
        device: usize,
        /// How many there are.
        num_devices: usize,
    },
    /// Nobody says where the ranks meet.
    #[error(
        "{claim}, but nothing says where the ranks meet: set MASTER_ADDR and MASTER_PORT, or \
         DMUON_RENDEZVOUS=file:///path"
    )]
    NoMeetingPlace {
        /// Who this process is.
        claim: Claim,
    },
    /// The rank table cannot be used.
    #[error(transparent)]
    RankTable(#[from] LaunchError),
    /// What rank 0 shared is no root information.
    #[error("rank 0's root information is not HCCL's; start the same program on all ranks")]
    RootInfo,
    /// The device does not open.
    #[error(
        "AscendCL did not open this rank's device within {} s: does `npu-smi info` show it, and who \
         uses it?",
        waited.as_secs_f64()
    )]
    Stuck {
        /// How long this process waited.
        waited: Duration,
    },
    /// The communicator of all ranks was not made in time.
    #[error("HCCL did not connect the ranks within {} s; {}", waited.as_secs_f64(), late(missing))]
    Late {
        /// How long this process waited.
        waited: Duration,
        /// Ranks that did not come as far as this one.
        missing: Vec<Rank>,
    },
    /// The control connection could not be made.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The operating system refused a thread.
    #[error("no thread for HCCL: {source}")]
    Thread {
        /// What it said.
        source: io::Error,
    },
}

/// Who is missing, or where else to look.
fn late(missing: &[Rank]) -> String {
    if missing.is_empty() {
        return "all of them asked it to, so look at their network (HCCL_IF_IP and \
                HCCL_SOCKET_IFNAME choose it) and at HCCL's own log"
            .into();
    }
    let missing: Vec<usize> = missing.iter().map(|rank| rank.0).collect();
    format!("ranks {missing:?} did not ask it to: look at what they wait for")
}
