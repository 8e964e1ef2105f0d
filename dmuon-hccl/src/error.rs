//! Why a launch could not be understood or an engine could not be loaded, and what to do about it.

use crate::{Claim, Source};
use std::path::PathBuf;

/// Why the launch could not be read. Nothing is ever guessed: each of these needs a person.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// One variable of a pair is missing.
    #[error(
        "{found}={value} is set but {missing} is not: set both, or unset {found} to run ranks as \
         threads of this process"
    )]
    Incomplete {
        /// The variable that is set.
        found: &'static str,
        /// What it holds.
        value: String,
        /// The variable that should be set too.
        missing: &'static str,
    },
    /// A variable that should hold a number does not.
    #[error("{variable}={value:?} is not a whole number in range: correct it or unset it")]
    NotANumber {
        /// The variable.
        variable: &'static str,
        /// What it holds.
        value: String,
    },
    /// `DMUON_RENDEZVOUS` is no place to meet.
    #[error(
        "DMUON_RENDEZVOUS={value:?} is no place to meet: give `file:///` and a path that all ranks \
         share, or unset it and set MASTER_ADDR and MASTER_PORT"
    )]
    NoMeetingPlace {
        /// What it holds.
        value: String,
    },
    /// A rank outside its world.
    #[error("{claim} is out of range: ranks count from 0 and are below the number of ranks")]
    OutOfRange {
        /// What was said, and by whom.
        claim: Claim,
    },
    /// Two sources describe different launches.
    #[error("{first}, but {second}: unset the variables of the launcher that is not in use")]
    Disagree {
        /// What the source of higher precedence says.
        first: Claim,
        /// What the other one says.
        second: Claim,
    },
    /// The program asks for another number of ranks than the launcher started.
    #[error(
        "the program asks for {asked} ranks, but this process is {claim}: start as many processes \
         as the program asks for ranks, or ask for {}", claim.world_size
    )]
    WorldSize {
        /// What the launcher says.
        claim: Claim,
        /// What the program asks for.
        asked: usize,
    },
    /// This build connects no processes.
    #[error(
        "this process is {claim}, but this build runs ranks as threads of one process: start the \
         program once, without a launcher, or build it with an engine (`--features mpi`, `cuda` or `hccl`)"
    )]
    NoEngine {
        /// What the launcher says.
        claim: Claim,
    },
    /// Nobody says which of its machine's processes this is.
    #[error(
        "{claim}, but nobody says which of its machine's processes it is: start it with a launcher \
         that does, or set LOCAL_RANK, counting from 0 on each machine"
    )]
    NoLocalRank {
        /// What the launcher says.
        claim: Claim,
    },
    /// Several engines could connect the processes.
    #[error(
        "this build has several engines: set DMUON_ENGINE to one of {}, the same for all processes",
        built.join(", ")
    )]
    SeveralEngines {
        /// The engines of this build.
        built: Vec<String>,
    },
    /// `DMUON_ENGINE` names no engine of this build.
    #[error(
        "DMUON_ENGINE={name:?} is none of this build's engines ({}): name one of them, or build \
         with `--features mpi`, `cuda` (nccl) or `hccl`", built.join(", ")
    )]
    UnknownEngine {
        /// What it holds.
        name: String,
        /// The engines of this build.
        built: Vec<String>,
    },
    /// The rank table counts other ranks than the launcher.
    #[error("{claim}, but the rank table {} lists {table_size} ranks", path.display())]
    TableSize {
        /// What the launcher says.
        claim: Claim,
        /// The rank table.
        path: PathBuf,
        /// How many ranks it lists.
        table_size: usize,
    },
    /// The rank table cannot be used.
    #[error("RANK_TABLE_FILE={} cannot be used: {reason}", path.display())]
    RankTable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl LaunchError {
    /// The sources involved, where the error is about sources.
    pub fn sources(&self) -> Vec<Source> {
        match self {
            Self::Disagree { first, second } => vec![first.source, second.source],
            Self::OutOfRange { claim }
            | Self::WorldSize { claim, .. }
            | Self::NoEngine { claim }
            | Self::NoLocalRank { claim }
            | Self::TableSize { claim, .. } => vec![claim.source],
            Self::RankTable { .. } => vec![Source::RankTable],
            Self::Incomplete { .. }
            | Self::NotANumber { .. }
            | Self::NoMeetingPlace { .. }
            | Self::SeveralEngines { .. }
            | Self::UnknownEngine { .. } => Vec::new(),
        }
    }
}

/// Why a collective library could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineLoadError {
    /// The library is not where it was looked for.
    #[error(
        "no {engine} library: tried {}; install one, as docs/launch.md shows, or set {variable} to \
         its path",
        tried.join(", ")
    )]
    NotFound {
        /// The engine, such as MPI.
        engine: &'static str,
        /// Every name and path that was tried, with the loader's complaint.
        tried: Vec<String>,
        /// The variable that overrides the search.
        variable: &'static str,
    },
    /// The library lacks a function that dmuon calls.
    #[error(
        "{} has no symbol {symbol}: it is not the {engine} library dmuon knows, or too old; set \
         {variable} to another one", path.display()
    )]
    MissingSymbol {
        /// The engine.
        engine: &'static str,
        /// The library that was loaded.
        path: PathBuf,
        /// The function that is missing.
        symbol: &'static str,
        /// The variable that overrides the search.
        variable: &'static str,
    },
    /// The library speaks another binary interface.
    #[error(
        "{} has {engine} ABI {found}, dmuon needs {needed}; set {variable} to another library",
        path.display()
    )]
    WrongAbi {
        /// The engine.
        engine: &'static str,
        /// The library that was loaded.
        path: PathBuf,
        /// The version it reports.
        found: String,
        /// The version that is needed.
        needed: &'static str,
        /// The variable that overrides the search.
        variable: &'static str,
    },
}

/// A function of an engine's library that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} returned {code}, \"{text}\"")]
pub struct LibraryError {
    /// The function.
    pub call: &'static str,
    /// Its status.
    pub code: i64,
    /// What the library says about it.
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_errors_say_what_was_tried_and_what_to_set() {
        let error = EngineLoadError::NotFound {
            engine: "MPI",
            tried: vec!["libmpi_abi.so.1".into(), "libmpi_abi.so".into()],
            variable: "DMUON_MPI_LIB",
        };
        let text = error.to_string();
        assert!(text.contains("libmpi_abi.so.1, libmpi_abi.so"), "{text}");
        assert!(text.contains("DMUON_MPI_LIB"), "{text}");
    }
}
