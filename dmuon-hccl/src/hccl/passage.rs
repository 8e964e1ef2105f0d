//! A group's way through HCCL: in turn, and around an all-to-all that devices lack the resources for.

use super::{
    ballot::{Ballot, Refusal, Trust, Vote},
    order::Order,
    safe::{Channel, Transfer},
};
use crate::{
    LibraryError,
    device::{Turn, Turns},
};
use std::mem;

/// A channel that is entered by the whole group at once, and by all groups in one order on all ranks:
/// HCCL wants that, and may wait inside a call for ranks that have not come.
#[derive(Debug)]
pub(super) struct Passage {
    channel: Channel,
    turns: Turns,
    /// World ranks, by rank in the communicator.
    ranks: Vec<usize>,
    /// This rank in the communicator.
    rank: usize,
    stage: Stage,
    trust: Trust,
    relay: Option<Relay>,
    /// What an all-to-all by broadcasts has brought, by rank in the communicator.
    relayed: Vec<u8>,
}

/// How far the transfer is.
#[derive(Debug)]
enum Stage {
    /// Done, or never begun.
    Rest,
    /// Waits for its turn.
    Queued(Transfer, Turn),
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
    /// The passage of a group's channel.
    pub(super) fn new(channel: Channel, turns: Turns, order: &Order) -> Self {
        let ranks = order.members().into_iter().map(|rank| rank as usize).collect();
        Self {
            channel,
            turns,
            ranks,
            rank: order.comm_rank(),
            stage: Stage::Rest,
            trust: Trust::Unknown,
            relay: None,
            relayed: Vec::new(),
        }
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
                Stage::Queued(_, ref turn) => turn.is_here() && self.enter_in_turn()?,
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
        self.stage = Stage::Queued(transfer, self.turns.ask());
    }

    /// Issues the queued transfer, whose turn has come.
    fn enter_in_turn(&mut self) -> Result<bool, LibraryError> {
        let Stage::Queued(transfer, turn) = mem::replace(&mut self.stage, Stage::Rest) else {
            return Ok(false);
        };
        let issued = self.channel.issue(transfer);
        turn.pass();
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
        let (board, group) = (self.turns.board(), self.turns.group());
        Ballot { board, group, ranks: &self.ranks }
    }
}
