//! A collective that has been started and may be waited for, whatever engine runs it.

use crate::{Result, SharedBuffer, recorder::Trace};
use std::{fmt, time::Duration};

/// A started collective. Dropping it gives up the result but never cancels the collective: other
/// ranks still complete.
#[must_use = "a collective that nobody waits for cannot report failure"]
pub struct Work {
    pending: Box<dyn Pending>,
    trace: Trace,
}

/// The engine's side of a [`Work`].
pub trait Pending: Send + Sync {
    /// Waits for this rank's part to be done and hands over its output.
    ///
    /// # Errors
    /// The deadline passed, or the collective failed on any rank.
    fn wait(self: Box<Self>, deadline: Duration) -> Result<Option<SharedBuffer>>;

    /// Whether [`wait`](Pending::wait) would return at once.
    fn is_done(&self) -> bool;
}

impl Work {
    /// Couples an engine's pending operation with the recording of its call.
    pub fn new(pending: Box<dyn Pending>, trace: Trace) -> Self {
        Self { pending, trace }
    }

    /// Waits for at most `deadline` and hands over this rank's output, if the call has one here.
    ///
    /// # Errors
    /// [`Error::TimedOut`](crate::Error::TimedOut) naming who is missing, which also fails the
    /// group for everybody; or whatever failed the collective on another rank, at once.
    pub fn wait(self, deadline: Duration) -> Result<Option<SharedBuffer>> {
        let Self { pending, trace } = self;
        let result = pending.wait(deadline);
        match &result {
            Ok(_) => trace.completed(),
            Err(_) => trace.failed(),
        }
        result
    }

    /// Whether [`wait`](Work::wait) would return at once, with a result or an error.
    pub fn is_done(&self) -> bool {
        self.pending.is_done()
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Work").field(&self.trace).finish()
    }
}
