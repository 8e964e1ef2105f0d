//! A group's turns at the device. Ranks wait for each other there, or inside the library on the way, so
//! work of several communicators must get there in one order on all ranks, or they may lock up.

use crate::control::{Board, GroupId, Place};

/// Asks for the turns of one group.
#[derive(Debug)]
pub(crate) struct Turns {
    board: Board,
    group: GroupId,
    size: usize,
    num_asked: u64,
}

/// A turn that was asked for: it comes when every rank of the group has asked, and no other begins
/// on this rank until it is passed.
#[derive(Debug)]
pub(crate) struct Turn {
    board: Board,
    place: Place,
}

impl Turns {
    /// The turns of a group of `size` ranks.
    pub(crate) fn new(board: Board, group: GroupId, size: usize) -> Self {
        Self { board, group, size, num_asked: 0 }
    }

    /// The turns of another group of the same world.
    #[cfg(feature = "cuda")]
    pub(crate) fn of(&self, group: GroupId, size: usize) -> Self {
        Self::new(self.board.clone(), group, size)
    }

    /// Where the group's ranks ask.
    #[cfg(feature = "hccl")]
    pub(crate) fn board(&self) -> &Board {
        &self.board
    }

    /// Whose turns they are.
    #[cfg(feature = "hccl")]
    pub(crate) fn group(&self) -> GroupId {
        self.group
    }

    /// Asks for the next one.
    ///
    /// # Collective
    /// Every rank of the group.
    pub(crate) fn ask(&mut self) -> Turn {
        let place = Place { group: self.group, sequence: self.num_asked };
        self.num_asked += 1;
        self.board.queue(place, self.size);
        Turn { board: self.board.clone(), place }
    }
}

impl Turn {
    /// Whether it has come.
    pub(crate) fn is_here(&self) -> bool {
        self.board.is_turn(self.place)
    }

    /// Gives it up to the next.
    pub(crate) fn pass(self) {
        self.board.pass(self.place);
    }
}
