//! Who may say which rank this process is, and what each of them says.

use crate::{Environment, LaunchError};
use dmuon_core::Rank;
use std::fmt;

/// Step ids from here on are Slurm's own: the batch script, an interactive shell, the container.
const SLURM_SPECIAL_STEPS: u64 = 0xffff_fff0;

/// Where a claim comes from, in the order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Source {
    /// The program's own configuration.
    Explicit,
    /// `RANK` and `WORLD_SIZE`, as torchrun sets them.
    Torchrun,
    /// `OMPI_COMM_WORLD_*`, as Open MPI's mpirun sets them.
    OpenMpi,
    /// `PMI_*`, as MPICH's mpiexec sets them.
    Pmi,
    /// `SLURM_*`, as srun sets them.
    Slurm,
    /// `RANK_TABLE_FILE` and `RANK_ID`, as Ascend launchers set them.
    RankTable,
}

/// What a source says about this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Who says it.
    pub source: Source,
    /// This process's rank.
    pub rank: Rank,
    /// How many processes there are.
    pub world_size: usize,
    /// This process's number on its machine, where the source knows.
    pub local_rank: Option<usize>,
}

/// The variables of one source: rank, number of ranks, rank on the machine.
struct Variables {
    rank: &'static str,
    size: &'static str,
    local: &'static str,
}

impl Source {
    /// What this source says, if it is there at all.
    pub(crate) fn claim(self, env: &Environment<'_>) -> Result<Option<Claim>, LaunchError> {
        match self.variables() {
            Some(_) if self == Self::Slurm && !in_slurm_step(env)? => Ok(None),
            Some(variables) => variables.claim(self, env),
            None => Ok(None),
        }
    }

    fn variables(self) -> Option<Variables> {
        let (rank, size, local) = match self {
            Self::Torchrun => ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
            Self::OpenMpi => {
                ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
            }
            Self::Pmi => ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
            Self::Slurm => ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
            Self::Explicit | Self::RankTable => return None,
        };
        Some(Variables { rank, size, local })
    }

    /// The names a person would look for.
    fn name(self) -> &'static str {
        match self {
            Self::Explicit => "the explicit configuration",
            Self::Torchrun => "RANK and WORLD_SIZE",
            Self::OpenMpi => "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE",
            Self::Pmi => "PMI_RANK and PMI_SIZE",
            Self::Slurm => "SLURM_PROCID and SLURM_STEP_NUM_TASKS",
            Self::RankTable => "RANK_TABLE_FILE and RANK_ID",
        }
    }
}

impl Variables {
    fn claim(&self, source: Source, env: &Environment<'_>) -> Result<Option<Claim>, LaunchError> {
        let (rank, size) = (env.number(self.rank)?, env.number(self.size)?);
        let (rank, world_size) = match (rank, size) {
            (None, None) => return Ok(None),
            (Some(rank), Some(size)) => (rank, size),
            (Some(rank), None) => return Err(incomplete(self.rank, rank, self.size)),
            (None, Some(size)) => return Err(incomplete(self.size, size, self.rank)),
        };
        let local_rank = env.number(self.local)?;
        let claim = Claim { source, rank: Rank(rank), world_size, local_rank };
        claim.checked().map(Some)
    }
}

impl Claim {
    /// Refuses ranks outside the world.
    pub(crate) fn checked(self) -> Result<Self, LaunchError> {
        let outside = self.local_rank.unwrap_or(self.rank.0).max(self.rank.0) >= self.world_size;
        if outside { Err(LaunchError::OutOfRange { claim: self }) } else { Ok(self) }
    }

    /// Whether two sources mean the same process. A local rank only one of them knows is no conflict.
    pub(crate) fn agrees_with(&self, other: &Self) -> bool {
        let local = self.local_rank.zip(other.local_rank).is_none_or(|(a, b)| a == b);
        self.rank == other.rank && self.world_size == other.world_size && local
    }

    /// Whether this is a Slurm step of one launcher per machine, inside which `inner` fanned out:
    /// `srun torchrun ..`, or mpirun's own daemons. Their Slurm variables count daemons, not ranks.
    pub(crate) fn is_daemon_around(&self, inner: &Claim, env: &Environment<'_>) -> bool {
        let nodes = env.number("SLURM_STEP_NUM_NODES").ok().flatten();
        self.source == Source::Slurm
            && nodes == Some(self.world_size)
            && inner.source < Source::Slurm
            && inner.world_size > self.world_size
    }
}

/// Whether this process is one task of several in a step that `srun` started. The same variables
/// exist in a plain `salloc` or `sbatch` shell, where they describe the allocation instead.
fn in_slurm_step(env: &Environment<'_>) -> Result<bool, LaunchError> {
    let step: Option<u64> = match env.number("SLURM_STEP_ID")? {
        Some(step) => Some(step),
        None => env.number("SLURM_STEPID")?,
    };
    let tasks: Option<usize> = env.number("SLURM_STEP_NUM_TASKS")?;
    let several = tasks.is_some_and(|tasks| tasks > 1);
    Ok(several && step.is_some_and(|step| step < SLURM_SPECIAL_STEPS))
}

fn incomplete(found: &'static str, value: usize, missing: &'static str) -> LaunchError {
    LaunchError::Incomplete { found, value: value.to_string(), missing }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, rank, world_size, local_rank } = self;
        write!(f, "rank {rank} of {world_size}")?;
        if let Some(local_rank) = local_rank {
            write!(f, " (local rank {local_rank})")?;
        }
        write!(f, " from {source}")
    }
}
