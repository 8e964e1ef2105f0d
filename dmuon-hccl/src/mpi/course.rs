//! One collective under way on its group's progress thread: its memory, its tag, and its waits,
//! which end when peers do.

use super::{
    result::MpiError,
    safe::{Comm, Sending, Tag},
};
use crate::control::{Place, Watch};
use dmuon_core::{BufferPool, Call, CallSite, Error, Rank};
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    ops::Range,
    thread,
    time::{Duration, Instant},
};

/// Bytes of one message of a long transfer: halves of the tree overlap, and sums stay in cache.
const CHUNK_BYTES: usize = 512 << 10;

/// A wait gives way to other threads for so long, then it begins to sleep.
const EAGER: Duration = Duration::from_micros(500);

/// A sleep is this share of the wait so far, and no shorter or longer than these.
const NAP_SHARE: u32 = 16;
const NAPS: [Duration; 2] = [Duration::from_micros(20), Duration::from_micros(500)];

/// What a collective needs while it runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Course<'a> {
    pub(super) comm: &'a Comm,
    pub(super) ranks: &'a [Rank],
    pub(super) pool: &'a BufferPool,
    pub(super) watch: &'a Watch,
    pub(super) place: Place,
    pub(super) tag: Tag,
}

/// Why a collective ended early.
#[derive(Debug)]
pub(super) enum Stop {
    /// The world has failed.
    Failed(Error),
    /// A rank of the group, by its place there, returned without starting this call.
    Gone(usize),
    /// The library refused.
    Library(MpiError),
}

impl From<MpiError> for Stop {
    fn from(error: MpiError) -> Self {
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
            Self::Library(MpiError { call, code, text }) => {
                Error::Library { rank, at, call: call.into(), code: code.into(), text: text.into() }
            }
        }
    }
}

impl Course<'_> {
    pub(super) fn rank(&self) -> usize {
        self.comm.rank()
    }

    pub(super) fn size(&self) -> usize {
        self.comm.size()
    }

    /// Waits for `poll` to have something. Lets the library work meanwhile, as only calls do that.
    ///
    /// # Errors
    /// The world fails, or one of `peers` returned without starting this call.
    pub(super) fn wait<T>(
        &self,
        peers: &[usize],
        mut poll: impl FnMut() -> Result<Option<T>, MpiError>,
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

    /// Waits until the bytes are gone. A receiver that returned needs none.
    pub(super) fn settle(&self, to: usize, mut sending: Sending<'_>) -> Result<(), Stop> {
        match self.wait(&[to], || Ok(sending.poll()?.then_some(()))) {
            Err(Stop::Gone(_)) => Ok(()),
            other => other,
        }
    }
}

/// A tag that calls share only if they are alike, short of bad luck in 2¹⁵, so that data does not
/// reach another call before the difference is named.
pub(super) fn tag_of(call: &Call, place: Place) -> Tag {
    let mut hasher = DefaultHasher::new();
    (call, place).hash(&mut hasher);
    Tag::new(hasher.finish())
}

/// The pieces that `num_bytes` travel in; at least one, be it empty, so that ranks do meet.
pub(super) fn chunks(num_bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let num_chunks = num_bytes.div_ceil(CHUNK_BYTES).max(1);
    (0..num_chunks).map(move |chunk| {
        let start = chunk * CHUNK_BYTES;
        start..num_bytes.min(start + CHUNK_BYTES)
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::GroupId;
    use dmuon_core::{Element, Op};

    #[test]
    fn chunks_cover_everything_in_order() {
        for num_bytes in [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES] {
            let chunks: Vec<_> = chunks(num_bytes).collect();
            assert_eq!(chunks[0].start, 0);
            assert!(chunks.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert_eq!(chunks.last().map(|chunk| chunk.end), Some(num_bytes));
        }
    }

    #[test]
    fn calls_that_differ_in_anything_have_tags_of_their_own() {
        let place = |sequence| Place { group: GroupId::WORLD, sequence };
        let call = |label, num| Call::new(Op::AllReduce, label, Element::F32, num);
        let tag = tag_of(&call("layers.0", 4), place(1));
        assert_eq!(tag, tag_of(&call("layers.0", 4), place(1)));
        for other in [
            tag_of(&call("layers.1", 4), place(1)),
            tag_of(&call("layers.0", 5), place(1)),
            tag_of(&call("layers.0", 4), place(2)),
        ] {
            assert_ne!(tag, other);
        }
    }
}
