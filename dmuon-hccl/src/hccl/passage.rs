//! A group's way through HCCL: in turn, and around an all-to-all that devices lack the resources for.

use super::{
    ballot::{Ballot, Refusal, Trust, Vote},
    order::Order,
    safe::{Channel, Transfer},
};
use crate::{
    LibraryError,
    control::{Board, GroupId, Place},
};

/// A channel that is entered by the whole group at once, and by all groups in one order on all ranks:
/// HCCL wants that, and may wait inside a call for ranks that have not come.
#[derive(Debug)]
pub(super) struct Passage {
    channel: Channel,
    board: Board,
    id: GroupId,
    /// World ranks, by rank in the communicator.
    ranks: Vec<usize>,
    /// This rank in the communicator.
    rank: usize,
    num_turns: u64,
    stage: Stage,
    trust: Trust,
    relay: Option<Relay>,
    /// What an all-to-all by broadcasts has brought, by rank in the communicator.
    relayed: Vec<u8>,
}

/// How far the transfer is.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Done, or never begun.
    Rest,
    /// Waits until the whole group is at this place.
    Queued(Transfer, Place),
    /// The stream is at it.
    Running,
    /// Waits for what the library said to everybody's first all-to-all.
    Tried { part_bytes: usize },
    /// Waits for the stream to be past what the library refused.
    Refused { part_bytes: usize },
}

/// An all-to-all by one broadcast from each rank, of everything it sends.
#[derive(Clone, Copy, Debug)]
struct Relay {
    part_bytes: usize,
    root: usize,
}

impl Passage {
    /// The passage of a group's channel, after the turn in which it was made.
    pub(super) fn new(channel: Channel, board: Board, id: GroupId, order: &Order) -> Self {
        let ranks = order.members().into_iter().map(|rank| rank as usize).collect();
        Self {
            channel,
            board,
            id,
            ranks,
            rank: order.comm_rank(),
            num_turns: 1,
            stage: Stage::Rest,
            trust: Trust::Unknown,
            relay: None,
            relayed: Vec::new(),
        }
    }

    /// The place of the turn in which a group's communicator is made.
    pub(super) fn entrance(id: GroupId) -> Place {
        Place { group: id, sequence: 0 }
    }

    /// Begins a transfer of what `parts` bring, each to its offset.
    ///
    /// # Collective
    /// Every rank of the group, with the same transfer.
    pub(super) fn start<'a>(
        &mut self,
        transfer: Transfer,
        parts: impl IntoIterator<Item = (usize, &'a [u8])>,
    ) -> Result<(), LibraryError> {
        self.channel.enter()?;
        let (outgoing, incoming) = transfer.room(self.ranks.len());
        self.channel.reserve(outgoing, incoming)?;
        for (offset, part) in parts {
            self.channel.upload(offset, part)?;
        }
        self.relayed.clear();
        match transfer {
            Transfer::AllToAll { part_bytes } if self.trust == Trust::Withheld => {
                self.relay(part_bytes);
            }
            _ => self.queue(transfer),
        }
        Ok(())
    }

    /// Whether the transfer is done. Moves it along, waiting for nobody.
    pub(super) fn poll(&mut self) -> Result<bool, LibraryError> {
        self.channel.enter()?;
        loop {
            let goes_on = match self.stage {
                Stage::Rest => return Ok(true),
                Stage::Queued(transfer, place) => self.enter_in_turn(transfer, place)?,
                Stage::Running => self.run()?,
                Stage::Tried { part_bytes } => self.count_votes(part_bytes)?,
                Stage::Refused { part_bytes } => self.settle(part_bytes)?,
            };
            if !goes_on {
                return Ok(false);
            }
        }
    }

    /// Copies what has come in to `bytes`, from `offset` on.
    pub(super) fn receive(&self, offset: usize, bytes: &mut [u8]) -> Result<(), LibraryError> {
        if !self.relayed.is_empty() {
            bytes.copy_from_slice(&self.relayed[offset..offset + bytes.len()]);
            return Ok(());
        }
        self.channel.enter()?;
        self.channel.download(offset, bytes)
    }

    /// Gives up what is on the stream.
    pub(super) fn abort(&mut self) {
        if self.channel.enter().is_ok() {
            self.channel.abort();
        }
    }

    /// Waits in line with a transfer.
    fn queue(&mut self, transfer: Transfer) {
        let place = Place { group: self.id, sequence: self.num_turns };
        self.num_turns += 1;
        self.board.queue(place, self.ranks.len());
        self.stage = Stage::Queued(transfer, place);
    }

    fn enter_in_turn(&mut self, transfer: Transfer, place: Place) -> Result<bool, LibraryError> {
        if !self.board.is_turn(place) {
            return Ok(false);
        }
        let issued = self.channel.issue(transfer);
        self.board.pass(place);
        match transfer {
            Transfer::AllToAll { part_bytes } if self.trust == Trust::Unknown => {
                self.vote(part_bytes, issued)?;
            }
            _ => {
                issued.map_err(Refusal::with_cure)?;
                self.stage = Stage::Running;
            }
        }
        Ok(true)
    }

    /// Tells everybody what the library said to the group's first all-to-all.
    fn vote(
        &mut self,
        part_bytes: usize,
        issued: Result<(), LibraryError>,
    ) -> Result<(), LibraryError> {
        let vote = match issued {
            Ok(()) => Vote::Accepted,
            Err(error) => match Refusal::of(&error) {
                Some(refusal) => Vote::Refused(refusal),
                None => return Err(self.ballot().explain(error)),
            },
        };
        if let Vote::Refused(refusal) = &vote {
            refusal.warn(&self.ranks);
        }
        self.ballot().cast(self.ranks[self.rank], &vote);
        self.stage = Stage::Tried { part_bytes };
        Ok(())
    }

    fn count_votes(&mut self, part_bytes: usize) -> Result<bool, LibraryError> {
        let Some(trust) = self.ballot().verdict()? else { return Ok(false) };
        self.trust = trust;
        self.stage = match trust {
            Trust::Withheld => Stage::Refused { part_bytes },
            _ => Stage::Running,
        };
        Ok(true)
    }

    fn settle(&mut self, part_bytes: usize) -> Result<bool, LibraryError> {
        let is_past = self.channel.poll()?;
        if is_past {
            self.relay(part_bytes);
        }
        Ok(is_past)
    }

    /// Begins an all-to-all by broadcasts.
    fn relay(&mut self, part_bytes: usize) {
        self.relayed.reserve(self.ranks.len() * part_bytes);
        self.relay_from(Relay { part_bytes, root: 0 });
    }

    fn relay_from(&mut self, relay: Relay) {
        let num_bytes = self.ranks.len() * relay.part_bytes;
        self.relay = Some(relay);
        self.queue(Transfer::Broadcast { root: relay.root, num_bytes });
    }

    fn run(&mut self) -> Result<bool, LibraryError> {
        if !self.channel.poll()? {
            return Ok(false);
        }
        self.stage = Stage::Rest;
        if let Some(relay) = self.relay.take() {
            self.take_part(relay)?;
        }
        Ok(true)
    }

    /// Keeps this rank's part of what a root has sent, and goes on to the next root.
    fn take_part(&mut self, relay: Relay) -> Result<(), LibraryError> {
        let Relay { part_bytes, root } = relay;
        let (start, offset) = (self.relayed.len(), self.rank * part_bytes);
        self.relayed.resize(start + part_bytes, 0);
        let part = &mut self.relayed[start..];
        if root == self.rank {
            self.channel.download_own(offset, part)?;
        } else {
            self.channel.download(offset, part)?;
        }
        if root + 1 < self.ranks.len() {
            self.relay_from(Relay { part_bytes, root: root + 1 });
        }
        Ok(())
    }

    fn ballot(&self) -> Ballot<'_> {
        Ballot { board: &self.board, group: self.id, ranks: &self.ranks }
    }
}
