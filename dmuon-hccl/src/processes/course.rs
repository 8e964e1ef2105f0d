//! One collective under way on its group's thread: its memory, and its waits, which end when peers do.

use crate::{
    LibraryError,
    control::{Place, Watch},
};
use dmuon_core::{BufferPool, CallSite, Error, Rank};
use std::{
    thread,
    time::{Duration, Instant},
};

/// A wait gives way to other threads for so long, then it begins to sleep.
const EAGER: Duration = Duration::from_micros(500);

/// A sleep is this share of the wait so far, and no shorter or longer than these.
const NAP_SHARE: u32 = 16;
const NAPS: [Duration; 2] = [Duration::from_micros(20), Duration::from_micros(500)];

/// What a collective needs while it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Course<'a> {
    /// The group's world ranks.
    pub(crate) ranks: &'a [Rank],
    pub(crate) pool: &'a BufferPool,
    pub(crate) watch: &'a Watch,
    pub(crate) place: Place,
}

/// Why a collective ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The world has failed.
    Failed(Error),
    /// A rank of the group, by its place there, returned without starting this call.
    Gone(usize),
    /// The engine's library refused.
    Library(LibraryError),
}

impl From<LibraryError> for Stop {
    fn from(error: LibraryError) -> Self {
        Self::Library(error)
    }
}

impl Stop {
    /// What the rank `rank` of a group of `ranks` is told.
    pub(super) fn into_error(self, at: &CallSite, rank: usize, ranks: &[Rank]) -> Error {
        let (rank, at) = (ranks[rank], at.clone());
        match self {
            Self::Failed(error) => error,
            Self::Gone(gone) => Error::RankReturned { rank: ranks[gone], at },
            Self::Library(LibraryError { call, code, text }) => {
                Error::Library { rank, at, call: call.into(), code, text: text.into() }
            }
        }
    }
}

impl Course<'_> {
    /// Waits for `poll` to have something. Lets the library work meanwhile, as only calls do that.
    ///
    /// # Errors
    /// The world fails, or one of `peers` returned without starting this call.
    pub(crate) fn wait<T>(
        &self,
        peers: &[usize],
        mut poll: impl FnMut() -> Result<Option<T>, LibraryError>,
    ) -> Result<T, Stop> {
        let pause = Pause::start();
        loop {
            if let Some(found) = poll()? {
                return Ok(found);
            }
            if let Some(failure) = self.watch.failure() {
                return Err(Stop::Failed(failure));
            }
            let gone = |peer: &&usize| self.watch.returned_before(self.ranks[**peer], self.place);
            if let Some(gone) = peers.iter().find(gone) {
                return Err(Stop::Gone(*gone));
            }
            pause.pause();
        }
    }
}

/// Between two looks: first gives way, then sleeps for a share of what the wait has taken, so that
/// a long wait costs no processor and no wait becomes much longer by it.
#[derive(Debug)]
struct Pause {
    since: Instant,
}

impl Pause {
    fn start() -> Self {
        Self { since: Instant::now() }
    }

    fn pause(&self) {
        let waited = self.since.elapsed();
        if waited < EAGER {
            return thread::yield_now();
        }
        thread::sleep((waited / NAP_SHARE).clamp(NAPS[0], NAPS[1]));
    }
}
