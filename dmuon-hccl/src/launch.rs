//! Reads how this process was launched; never guesses when two launchers tell different stories.

use crate::{Claim, Environment, LaunchError, Rendezvous, Source, rank_table::RankTable};
use dmuon_core::Rank;
use std::path::PathBuf;

/// Sources in the environment, in order of precedence; the rank table comes last.
const SOURCES: [Source; 4] = [Source::Torchrun, Source::OpenMpi, Source::Pmi, Source::Slurm];

/// How this process takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launch {
    /// Alone: ranks are its threads.
    InProcess,
    /// As one rank of several processes.
    Process(LaunchSpec),
}

/// One process's place among several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchSpec {
    /// This process.
    pub rank: Rank,
    /// How many processes there are.
    pub world_size: usize,
    /// This process's number on its machine, where known; picks the device.
    pub local_rank: Option<usize>,
    /// Where the ranks meet, where known.
    pub rendezvous: Option<Rendezvous>,
    /// Ascend's rank table, where given.
    pub rank_table: Option<PathBuf>,
    /// Who said so.
    pub source: Source,
}

/// Reads the launch from the explicit configuration and the environment.
///
/// The first source of explicit configuration, `RANK`/`WORLD_SIZE`, `OMPI_COMM_WORLD_*`, `PMI_*`,
/// `SLURM_*` and `RANK_TABLE_FILE` decides; all others that are present must agree. With none of
/// them, ranks are threads. An explicit [`Launch::InProcess`] is taken at its word.
///
/// # Errors
/// Half a launch, numbers that are none, ranks out of range, or sources that disagree.
pub fn read_launch(explicit: Option<Launch>, env: &Environment<'_>) -> Result<Launch, LaunchError> {
    let explicit = match explicit {
        Some(Launch::InProcess) => return Ok(Launch::InProcess),
        Some(Launch::Process(spec)) => Some(spec),
        None => None,
    };
    let table = RankTable::read(env)?;
    let claims = claims(explicit.as_ref(), table.as_ref(), env)?;
    let Some(first) = claims.first() else {
        return table.map_or(Ok(Launch::InProcess), |table| Err(table_without_rank(&table)));
    };
    check_agreement(&claims, table.as_ref())?;
    let explicit = explicit.unwrap_or_else(|| LaunchSpec::from_claim(first));
    Ok(Launch::Process(LaunchSpec {
        local_rank: claims.iter().find_map(|claim| claim.local_rank),
        rendezvous: match explicit.rendezvous {
            Some(rendezvous) => Some(rendezvous),
            None => Rendezvous::read(env)?,
        },
        rank_table: explicit.rank_table.or(table.map(|table| table.path)),
        ..LaunchSpec::from_claim(first)
    }))
}

/// What everybody who is there says, in order of precedence.
fn claims(
    explicit: Option<&LaunchSpec>,
    table: Option<&RankTable>,
    env: &Environment<'_>,
) -> Result<Vec<Claim>, LaunchError> {
    let mut claims = Vec::new();
    claims.extend(
        explicit
            .map(|spec| Claim { source: Source::Explicit, ..spec.claim() }.checked())
            .transpose()?,
    );
    for source in SOURCES {
        claims.extend(source.claim(env)?);
    }
    claims.extend(table.and_then(|table| table.claim));
    if let Some(first) = claims.first().copied() {
        claims.retain(|claim| !claim.is_daemon_around(&first, env));
    }
    Ok(claims)
}

fn check_agreement(claims: &[Claim], table: Option<&RankTable>) -> Result<(), LaunchError> {
    let Some((first, others)) = claims.split_first() else { return Ok(()) };
    if let Some(second) = others.iter().find(|other| !first.agrees_with(other)) {
        return Err(LaunchError::Disagree { first: *first, second: *second });
    }
    match table {
        Some(table) if table.world_size != first.world_size => Err(LaunchError::TableSize {
            claim: *first,
            path: table.path.clone(),
            table_size: table.world_size,
        }),
        _ => Ok(()),
    }
}

fn table_without_rank(table: &RankTable) -> LaunchError {
    let value = table.path.display().to_string();
    LaunchError::Incomplete { found: "RANK_TABLE_FILE", value, missing: "RANK_ID" }
}

impl LaunchSpec {
    /// A spec for the program's own configuration.
    pub fn new(rank: Rank, world_size: usize) -> Self {
        let (local_rank, source) = (None, Source::Explicit);
        Self::from_claim(&Claim { source, rank, world_size, local_rank })
    }

    fn from_claim(claim: &Claim) -> Self {
        let Claim { source, rank, world_size, local_rank } = *claim;
        Self { rank, world_size, local_rank, rendezvous: None, rank_table: None, source }
    }

    /// Who this process is, and who says so.
    pub fn claim(&self) -> Claim {
        let Self { rank, world_size, local_rank, source, .. } = *self;
        Claim { source, rank, world_size, local_rank }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io, path::Path};

    const TABLE: &str = r#"{"server_list": [{"device": [{"rank_id": "0"}, {"rank_id": "1"}]}]}"#;

    /// Reads a launch from `NAME=value` words and a rank table at `/table`.
    fn read(words: &str) -> Result<Launch, LaunchError> {
        read_with(None, words)
    }

    fn read_with(explicit: Option<Launch>, words: &str) -> Result<Launch, LaunchError> {
        let variable = |name: &str| {
            let found = words.split_whitespace().filter_map(|word| word.split_once('='));
            found.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).next()
        };
        let file = |path: &Path| match path.to_str() {
            Some("/table") => Ok(TABLE.to_owned()),
            _ => Err(io::Error::from(io::ErrorKind::NotFound)),
        };
        read_launch(explicit, &Environment::new(&variable, &file))
    }

    fn process(words: &str) -> LaunchSpec {
        match read(words) {
            Ok(Launch::Process(spec)) => spec,
            other => panic!("{words}: {other:?}"),
        }
    }

    fn assert_refused(words: &str, parts: &[&str]) {
        let text = read(words).expect_err(words).to_string();
        for part in parts {
            assert!(text.contains(part), "{words}: {text:?} lacks {part:?}");
        }
    }

    #[test]
    fn nothing_set_means_threads() {
        assert_eq!(read("HOME=/root").ok(), Some(Launch::InProcess));
    }

    #[test]
    fn each_launcher_is_understood() {
        for (words, source) in [
            ("RANK=1 WORLD_SIZE=4 LOCAL_RANK=1", Source::Torchrun),
            (
                "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1",
                Source::OpenMpi,
            ),
            ("PMI_RANK=1 PMI_SIZE=4 MPI_LOCALRANKID=1", Source::Pmi),
            (
                "SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=1 SLURM_LOCALID=1",
                Source::Slurm,
            ),
        ] {
            let spec = process(words);
            assert_eq!((spec.rank, spec.world_size), (Rank(1), 4), "{words}");
            assert_eq!((spec.local_rank, spec.source), (Some(1), source), "{words}");
        }
    }

    #[test]
    fn rank_table_counts_the_ranks() {
        let spec = process("RANK_TABLE_FILE=/table RANK_ID=1");
        assert_eq!((spec.rank, spec.world_size, spec.source), (Rank(1), 2, Source::RankTable));
        assert_eq!(spec.rank_table, Some("/table".into()));
        let spec = process("RANK_TABLE_FILE=/table RANK=0 WORLD_SIZE=2");
        assert_eq!((spec.source, spec.rank_table), (Source::Torchrun, Some("/table".into())));
    }

    #[test]
    fn rank_tables_that_do_not_fit_are_refused() {
        assert_refused("RANK_TABLE_FILE=/table", &["RANK_TABLE_FILE", "RANK_ID is not"]);
        assert_refused("RANK_TABLE_FILE=/table RANK=0 WORLD_SIZE=4", &["of 4", "lists 2 ranks"]);
        assert_refused("RANK_TABLE_FILE=/gone RANK_ID=0", &["RANK_TABLE_FILE=/gone", "not found"]);
        assert_refused("RANK_TABLE_FILE=/table RANK_ID=2", &["rank 2 of 2", "out of range"]);
    }

    #[test]
    fn sources_that_agree_are_one() {
        let spec = process(
            "RANK=3 WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 \
             OMPI_COMM_WORLD_LOCAL_RANK=1",
        );
        assert_eq!((spec.source, spec.local_rank), (Source::Torchrun, Some(1)));
    }

    #[test]
    fn sources_that_disagree_are_both_named() {
        assert_refused(
            "RANK=0 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2",
            &["rank 0 of 2 from RANK and WORLD_SIZE", "rank 1 of 2 from OMPI_COMM_WORLD_RANK"],
        );
        let explicit = Launch::Process(LaunchSpec::new(Rank(0), 8));
        let error = read_with(Some(explicit), "PMI_RANK=0 PMI_SIZE=4").expect_err("8 is not 4");
        assert_eq!(error.sources(), [Source::Explicit, Source::Pmi]);
    }

    #[test]
    fn explicit_threads_are_taken_at_their_word() {
        let launch = read_with(Some(Launch::InProcess), "RANK=zero WORLD_SIZE=2");
        assert_eq!(launch.ok(), Some(Launch::InProcess));
    }

    #[test]
    fn half_a_launch_is_refused() {
        assert_refused("RANK=3", &["RANK=3 is set but WORLD_SIZE is not", "unset RANK"]);
        assert_refused("WORLD_SIZE=4", &["WORLD_SIZE=4 is set but RANK is not"]);
        assert_refused("PMI_SIZE=4", &["PMI_RANK is not"]);
        assert_refused("RANK=0 WORLD_SIZE=1 MASTER_ADDR=a", &["MASTER_PORT is not"]);
        assert_refused("RANK=0 WORLD_SIZE=1 MASTER_PORT=1", &["MASTER_ADDR is not"]);
    }

    #[test]
    fn numbers_that_are_none_are_refused() {
        assert_refused("RANK=one WORLD_SIZE=4", &["RANK=\"one\""]);
        assert_refused("RANK=-1 WORLD_SIZE=4", &["RANK=\"-1\""]);
        assert_refused("RANK=0 WORLD_SIZE=", &["WORLD_SIZE=\"\""]);
        assert_refused("RANK=0 WORLD_SIZE=1 MASTER_ADDR=a MASTER_PORT=70000", &["\"70000\""]);
    }

    #[test]
    fn ranks_out_of_range_are_refused() {
        assert_refused("RANK=4 WORLD_SIZE=4", &["rank 4 of 4", "out of range"]);
        assert_refused("RANK=0 WORLD_SIZE=0", &["rank 0 of 0"]);
        assert_refused("RANK=0 WORLD_SIZE=2 LOCAL_RANK=2", &["local rank 2"]);
    }

    #[test]
    fn rendezvous_is_read() {
        let words = "RANK=0 WORLD_SIZE=2 MASTER_ADDR=node0 MASTER_PORT=29500";
        let address = Rendezvous::Address { host: "node0".into(), port: 29500 };
        assert_eq!(process(words).rendezvous, Some(address));
        let beside_torchrun = format!("{words} TORCHELASTIC_USE_AGENT_STORE=True");
        let next = Rendezvous::Address { host: "node0".into(), port: 29501 };
        assert_eq!(process(&beside_torchrun).rendezvous, Some(next));
        let words = format!("{words} DMUON_RENDEZVOUS=file:///shared/job-7");
        let file = Rendezvous::File { path: "/shared/job-7".into() };
        assert_eq!(process(&words).rendezvous, Some(file));
        assert_refused(
            "RANK=0 WORLD_SIZE=1 DMUON_RENDEZVOUS=/shared/job-7",
            &["DMUON_RENDEZVOUS=\"/shared/job-7\"", "file:///"],
        );
    }

    #[test]
    fn slurm_shells_are_no_launch() {
        for words in [
            // sbatch --ntasks 8: the batch script itself.
            "SLURM_JOB_ID=7 SLURM_NTASKS=8 SLURM_PROCID=0 SLURM_LOCALID=0",
            // The same where Slurm names its special batch step.
            "SLURM_JOB_ID=7 SLURM_NTASKS=8 SLURM_PROCID=0 SLURM_STEP_ID=4294967291 \
             SLURM_STEP_NUM_TASKS=8",
            // salloc into an interactive step.
            "SLURM_NTASKS=8 SLURM_PROCID=0 SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=1",
            // srun of a single task.
            "SLURM_NTASKS=1 SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1",
        ] {
            assert_eq!(read(words).ok(), Some(Launch::InProcess), "{words}");
        }
    }

    #[test]
    fn launchers_started_by_slurm_count_their_own_ranks() {
        let slurm = "SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2 SLURM_PROCID=1";
        let spec = process(&format!("{slurm} RANK=9 WORLD_SIZE=16 LOCAL_RANK=1"));
        assert_eq!((spec.rank, spec.world_size), (Rank(9), 16));
        assert_refused(&format!("{slurm} RANK=0 WORLD_SIZE=2"), &["SLURM_PROCID"]);
    }
}
