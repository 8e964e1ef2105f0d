//! How many communicators are open or being ended, so that a process does not exit in the middle of
//! ending one: driver and library take that badly.

use crate::processes::Release;
use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// How long a process that leaves waits for its communicators to end: somewhat longer than that may
/// take.
const PATIENCE: Duration = Duration::from_secs(6);

/// The same for a process whose world has failed, which is to end soon.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

/// Counts the communicators of a world.
#[derive(Debug, Default)]
pub(super) struct Tally {
    num_open: Mutex<usize>,
    changed: Condvar,
}

/// Stands for a communicator; dropped when nothing of it is left.
#[derive(Debug)]
pub(super) struct Entry(Arc<Tally>);

impl Entry {
    pub(super) fn new(tally: &Arc<Tally>) -> Self {
        *tally.lock() += 1;
        Self(tally.clone())
    }

    /// An entry for a communicator of the same world.
    pub(super) fn another(&self) -> Self {
        Self::new(&self.0)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let num_open = &mut *self.0.lock();
        *num_open = num_open.saturating_sub(1);
        self.0.changed.notify_all();
    }
}

impl Tally {
    /// Waits until nothing is open; returns how many still are.
    fn wait(&self, at_most: Duration) -> usize {
        let waited = self.changed.wait_timeout_while(self.lock(), at_most, |open| *open > 0);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// A number is whole at every step, so a panic elsewhere does no harm.
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.num_open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Release for Tally {
    /// Waits until nothing is open. Groups that the program keeps stay open.
    fn release(&self) {
        let num_open = self.wait(PATIENCE);
        if num_open > 0 {
            tracing::warn!(num_open, "communicators are open after their world");
        }
    }

    /// Waits for communicators that are being aborted.
    fn give_up(&self) {
        let num_open = self.wait(LAST_PATIENCE);
        tracing::debug!(num_open, "communicators are open after their world has failed");
    }
}
