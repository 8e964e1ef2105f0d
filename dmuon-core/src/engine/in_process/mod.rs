//! The default engine: ranks are threads of this process, and buffers travel as shared memory.
//!
//! Ranks meet in a `Slot` per (group, sequence number), found in the world's `Hub`. Locks are taken
//! hub first, slot second; arithmetic runs without either, on a helper thread or on a rank that
//! waits anyway.

mod combine;
mod hub;
mod member;
mod slot;

use crate::{
    BufferPool, Error, Group, Ledger, Rank, Recorder, Result, Seat, World, engine::EngineOptions,
};
use hub::Hub;
use member::Member;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

/// A world of threads before the threads exist.
#[derive(Debug)]
pub(crate) struct InProcess {
    hub: Arc<Hub>,
    recorders: Vec<Recorder>,
    dump: Option<PathBuf>,
}

impl InProcess {
    /// A world of `num_ranks`.
    pub(crate) fn new(num_ranks: usize, options: &EngineOptions) -> Result<Self> {
        if num_ranks == 0 {
            return Err(Error::EmptyWorld);
        }
        let start = Instant::now();
        let recorder = |rank| Recorder::new(Rank(rank), start, options.recorder_capacity);
        Ok(Self {
            hub: Hub::new(num_ranks, options)?,
            recorders: (0..num_ranks).map(recorder).collect(),
            dump: options.resolved_dump(),
        })
    }

    /// The view of `rank`; to be asked for once per rank.
    pub(crate) fn world(&self, rank: Rank) -> World {
        let recorder = self.recorders[rank.0].clone();
        let group: Arc<dyn Group> = Member::world(self.hub.clone(), rank, recorder.clone());
        let pool = self.hub.pool(rank).clone();
        World::new(group, pool, Ledger::new(), recorder, self.hub.deadline())
    }

    /// The place of `rank`.
    pub(crate) fn seat(&self, rank: Rank) -> impl Seat {
        ThreadSeat { engine: self, rank }
    }

    /// Fails the world on behalf of `rank`, unless it has failed before.
    pub(crate) fn fail(&self, rank: Rank, cause: Error) {
        self.hub.fail(rank, cause);
    }

    /// Who failed first, and why.
    pub(crate) fn failure(&self) -> Option<(Rank, Error)> {
        self.hub.failure()
    }
}

/// One rank's place among the threads.
#[derive(Debug)]
struct ThreadSeat<'a> {
    engine: &'a InProcess,
    rank: Rank,
}

impl Seat for ThreadSeat<'_> {
    fn world(&self) -> World {
        self.engine.world(self.rank)
    }

    fn fail(&self, cause: Error) {
        self.engine.fail(self.rank, cause);
    }

    fn finish(&self) {
        self.engine.hub.finish(self.rank);
    }

    fn dump_directory(&self) -> Option<&Path> {
        self.engine.dump.as_deref()
    }
}

/// The pools of a group's members, in group order.
fn pools_of(hub: &Hub, ranks: &[Rank]) -> Vec<BufferPool> {
    ranks.iter().map(|rank| hub.pool(*rank).clone()).collect()
}
