//! One collective under way over MPI's messages: its communicator, its tag, its pieces.

use super::safe::{Comm, Sending, Tag};
use crate::{
    LibraryError,
    control::Place,
    processes::{self, Stop},
};
use dmuon_core::{BufferPool, Call};
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    ops::Range,
};

/// Bytes of one message of a long transfer: halves of the tree overlap, and sums stay in cache.
const CHUNK_BYTES: usize = 512 << 10;

/// What a collective needs while it runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Course<'a> {
    pub(super) general: &'a processes::Course<'a>,
    pub(super) comm: &'a Comm,
    pub(super) pool: &'a BufferPool,
    pub(super) tag: Tag,
}

impl Course<'_> {
    pub(super) fn rank(&self) -> usize {
        self.comm.rank()
    }

    pub(super) fn size(&self) -> usize {
        self.comm.size()
    }

    /// See [`processes::Course::wait`].
    pub(super) fn wait<T>(
        &self,
        peers: &[usize],
        poll: impl FnMut() -> Result<Option<T>, LibraryError>,
    ) -> Result<T, Stop> {
        self.general.wait(peers, poll)
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
