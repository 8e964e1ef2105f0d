//! One rank's view of the world it runs in.

use crate::{
    BufferPool, EngineOptions, Error, Group, Ledger, Rank, Recorder, Result,
    engine::in_process::InProcess,
};
use std::{sync::Arc, time::Duration};

/// What a rank knows and owns: its number, the group of all ranks, its memory and its records.
/// Clones are the same rank.
#[derive(Clone, Debug)]
pub struct World {
    group: Arc<dyn Group>,
    pool: BufferPool,
    ledger: Ledger,
    recorder: Recorder,
    deadline: Duration,
}

impl World {
    /// The view that an engine gives a rank; `group` holds all ranks.
    pub fn new(
        group: Arc<dyn Group>,
        pool: BufferPool,
        ledger: Ledger,
        recorder: Recorder,
        deadline: Duration,
    ) -> Self {
        Self { group, pool, ledger, recorder, deadline }
    }

    /// A world of one on the calling thread: the same code with communication skipped.
    ///
    /// # Errors
    /// The environment holds an unreadable option.
    pub fn solo(options: &EngineOptions) -> Result<Self> {
        Ok(InProcess::new(1, options)?.world(Rank(0)))
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        Rank(self.group.rank())
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.group.size()
    }

    /// The group of all ranks, for control and set-up.
    pub fn group(&self) -> Arc<dyn Group> {
        self.group.clone()
    }

    /// This rank's buffers.
    pub fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// What this rank can reach.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// What this rank does.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// How long any wait may take.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Fails every rank with `cause`, which others see as this rank's failure.
    pub fn fail(&self, cause: Error) {
        self.group.abort(cause);
    }
}
