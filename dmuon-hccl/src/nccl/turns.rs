//! A group's turns at the device. NCCL's kernels wait for each other across ranks, so work of several
//! communicators must get onto a GPU in one order on all ranks, or they may lock up.

use crate::control::{Board, GroupId, Place};

/// Asks for the turns of one group.
#[derive(Debug)]
pub(super) struct Turns {
    board: Board,
    group: GroupId,
    size: usize,
    num_asked: u64,
}

/// A turn that was asked for: it comes when every rank of the group has asked, and no other begins
/// on this rank until it is passed.
#[derive(Debug)]
pub(super) struct Turn {
    board: Board,
    place: Place,
}

impl Turns {
    /// The turns of a group of `size` ranks.
    pub(super) fn new(board: Board, group: GroupId, size: usize) -> Self {
        Self { board, group, size, num_asked: 0 }
    }

    /// The turns of another group of the same world.
    pub(super) fn of(&self, group: GroupId, size: usize) -> Self {
        Self::new(self.board.clone(), group, size)
    }

    /// Asks for the next one.
    ///
    /// # Collective
    /// Every rank of the group.
    pub(super) fn ask(&mut self) -> Turn {
        let place = Place { group: self.group, sequence: self.num_asked };
        self.num_asked += 1;
        self.board.queue(place, self.size);
        Turn { board: self.board.clone(), place }
    }
}

impl Turn {
    /// Whether it has come.
    pub(super) fn is_here(&self) -> bool {
        self.board.is_turn(self.place)
    }

    /// Gives it up to the next.
    pub(super) fn pass(self) {
        self.board.pass(self.place);
    }
}
