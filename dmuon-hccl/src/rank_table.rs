//! Ascend's rank table, as far as a launch needs it: how many ranks there are, and their numbers and
//! devices.

use crate::{Claim, Environment, LaunchError, Source};
use dmuon_core::Rank;
use serde::Deserialize;
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
struct Table {
    server_list: Vec<Server>,
}

#[derive(Deserialize)]
struct Server {
    device: Vec<Device>,
}

#[derive(Deserialize)]
struct Device {
    rank_id: Id,
    #[cfg(feature = "hccl")]
    device_id: Option<Id>,
}

/// Tables in the field write numbers as text, some as numbers.
#[derive(Deserialize)]
#[serde(untagged)]
enum Id {
    Number(usize),
    Text(String),
}

/// The rank table and what it says about this process.
pub(crate) struct RankTable {
    pub(crate) path: PathBuf,
    pub(crate) world_size: usize,
    /// `None` without `RANK_ID`: then another source must know the rank.
    pub(crate) claim: Option<Claim>,
}

impl RankTable {
    /// Reads the table that `RANK_TABLE_FILE` names, if it names one.
    pub(crate) fn read(env: &Environment<'_>) -> Result<Option<Self>, LaunchError> {
        let Some(path) = env.variable("RANK_TABLE_FILE").map(PathBuf::from) else {
            return Ok(None);
        };
        let table = Table::read(&path, env)?;
        let world_size = table.num_ranks(&path)?;
        let local_rank = None;
        let claim = env
            .number("RANK_ID")?
            .map(|rank| Claim {
                source: Source::RankTable,
                rank: Rank(rank),
                world_size,
                local_rank,
            })
            .map(Claim::checked)
            .transpose()?;
        Ok(Some(Self { path, world_size, claim }))
    }
}

/// Checks that the table at `path` has as many ranks as the `claim` says, and returns the device of
/// the claim's rank.
#[cfg(feature = "hccl")]
pub(crate) fn device_in(
    path: &Path,
    claim: Claim,
    env: &Environment<'_>,
) -> Result<Option<usize>, LaunchError> {
    let table = Table::read(path, env)?;
    let table_size = table.num_ranks(path)?;
    if table_size != claim.world_size {
        return Err(LaunchError::TableSize { claim, path: path.to_owned(), table_size });
    }
    let mut devices = table.server_list.iter().flat_map(|server| &server.device);
    let is_own = |device: &&Device| device.rank_id.parse(path).ok() == Some(claim.rank.0);
    let own = devices.find(is_own).and_then(|device| device.device_id.as_ref());
    own.map(|id| id.parse(path)).transpose()
}

impl Table {
    fn read(path: &Path, env: &Environment<'_>) -> Result<Self, LaunchError> {
        let text = env.read(path).map_err(|error| table_error(path, error.to_string()))?;
        serde_json::from_str(&text).map_err(|error| table_error(path, error.to_string()))
    }

    /// Counts the ranks and checks that they are numbered 0, 1, 2, ..
    fn num_ranks(&self, path: &Path) -> Result<usize, LaunchError> {
        let mut ranks = Vec::new();
        for device in self.server_list.iter().flat_map(|server| &server.device) {
            ranks.push(device.rank_id.parse(path)?);
        }
        ranks.sort_unstable();
        if ranks.is_empty() || ranks.iter().enumerate().any(|(at, rank)| at != *rank) {
            return Err(table_error(path, format!("its rank_ids are {ranks:?}, not 0, 1, 2, ..")));
        }
        Ok(ranks.len())
    }
}

impl Id {
    fn parse(&self, path: &Path) -> Result<usize, LaunchError> {
        match self {
            Self::Number(id) => Ok(*id),
            Self::Text(id) => {
                id.parse().map_err(|_| table_error(path, format!("its id {id:?} is not a number")))
            }
        }
    }
}

fn table_error(path: &Path, reason: String) -> LaunchError {
    LaunchError::RankTable { path: path.to_owned(), reason }
}
