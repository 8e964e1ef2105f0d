//! What a group's thread tells the others and reads of them without ever waiting: turns at the
//! library, and small notes.

use super::{log::Place, member::Line, message::ToHost};
use std::sync::Arc;

/// A handle to a rank's control connection; clones share it.
#[derive(Clone, Debug)]
pub struct Board {
    line: Arc<Line>,
}

impl Board {
    pub(super) fn new(line: Arc<Line>) -> Self {
        Self { line }
    }

    /// Waits in line to enter the library at `place`, which a group of `group_size` ranks comes to.
    ///
    /// # Collective
    /// Every rank of the group. Its turn comes when all of them have asked; turns of different
    /// groups come in the same order on all ranks.
    pub fn queue(&self, place: Place, group_size: usize) {
        self.line.say(&ToHost::Queue(place, group_size));
    }

    /// Whether it is the turn of `place`, and no other's before it.
    pub fn is_turn(&self, place: Place) -> bool {
        self.line.watch().is_turn(place)
    }

    /// Gives the turn of `place` up to the next.
    pub fn pass(&self, place: Place) {
        self.line.watch().pass_turn(place);
    }

    /// Tells every rank a small value.
    pub fn post(&self, key: &str, value: &str) {
        self.line.say(&ToHost::Post(key.to_owned(), value.to_owned()));
    }

    /// What some rank has told under this key, if it has arrived.
    pub fn posted(&self, key: &str) -> Option<String> {
        self.line.watch().posted(key)
    }
}
