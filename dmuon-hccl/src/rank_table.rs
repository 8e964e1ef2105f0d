//! Ascend's rank table, as far as a launch needs it: how many ranks there are, and their numbers.

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
        let text = env.read(&path).map_err(|error| table_error(&path, error.to_string()))?;
        let table: Table =
            serde_json::from_str(&text).map_err(|error| table_error(&path, error.to_string()))?;
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

impl Table {
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
            Self::Text(id) => id
                .parse()
                .map_err(|_| table_error(path, format!("its rank_id {id:?} is not a number"))),
        }
    }
}

fn table_error(path: &Path, reason: String) -> LaunchError {
    LaunchError::RankTable { path: path.to_owned(), reason }
}
