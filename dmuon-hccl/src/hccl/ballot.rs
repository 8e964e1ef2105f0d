//! What a communicator's ranks make of their first all-to-all, which needs a connection between every
//! two of them and is what devices run out of first.

use super::sys;
use crate::{
    LibraryError,
    control::{Board, GroupId},
};
use serde::{Deserialize, Serialize};

/// What to do about devices that run out.
const CURE: &str = "free memory of the devices, lower HCCL_BUFFSIZE or HCCL_RDMA_QPS_PER_CONNECTION, \
                    or use fewer groups";

/// Whether the library's all-to-all may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// Not tried yet.
    Unknown,
    /// All ranks were let in.
    Given,
    /// No rank was: a broadcast from each rank does it too.
    Withheld,
}

/// How a rank's attempt went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Vote {
    /// The call was accepted.
    Accepted,
    /// It was refused for lack of resources.
    Refused(Refusal),
}

/// A refusal for lack of resources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Refusal {
    /// CANN's number for it.
    reason: String,
    code: i64,
    text: String,
}

/// Where a communicator's ranks leave their votes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ballot<'a> {
    pub(super) board: &'a Board,
    pub(super) group: GroupId,
    /// The communicator's ranks in the world.
    pub(super) ranks: &'a [usize],
}

impl Refusal {
    /// The refusal in an error, if that is what it is.
    pub(super) fn of(error: &LibraryError) -> Option<Self> {
        let named = ["EI0007", "EI0011"].into_iter().find(|reason| error.text.contains(reason));
        let by_code = (error.code == i64::from(sys::OUT_OF_MEMORY)).then_some("EI0011");
        let reason = named.or(by_code)?.to_owned();
        Some(Self { reason, code: error.code, text: error.text.clone() })
    }

    /// Says what to do about a lack of resources, if that is what the error is.
    pub(super) fn with_cure(mut error: LibraryError) -> LibraryError {
        if Self::of(&error).is_some() {
            error.text = format!("{}; {CURE}", error.text);
        }
        error
    }

    /// Tells whoever looks into the log, once for each group.
    pub(super) fn warn(&self, ranks: &[usize]) {
        let Self { reason, text, .. } = self;
        tracing::warn!(
            reason,
            text,
            "HCCL refuses an all-to-all of ranks {ranks:?} for lack of resources; if it refuses \
             all of them, one broadcast from each rank takes its place. To avoid that, {CURE}"
        );
    }
}

impl Ballot<'_> {
    /// Tells everybody how this rank's attempt went.
    pub(super) fn cast(&self, rank: usize, vote: &Vote) {
        // A vote is two short texts and a number: there is nothing that JSON could not say.
        let text = serde_json::to_string(vote).unwrap_or_default();
        self.board.post(&self.key(rank), &text);
    }

    /// The verdict, once everybody has voted.
    ///
    /// # Errors
    /// Some were refused and some were not: those wait inside the library for ever.
    pub(super) fn verdict(&self) -> Result<Option<Trust>, LibraryError> {
        let votes: Vec<(usize, Vote)> = self.votes().collect();
        if votes.len() < self.ranks.len() {
            return Ok(None);
        }
        weigh(&votes).map(Some)
    }

    /// What a failure of this rank's own is to be reported as: as the others' lack of resources, if
    /// they have any, since nobody gets through to them.
    pub(super) fn explain(&self, error: LibraryError) -> LibraryError {
        let refused: Vec<_> = self.votes().filter_map(refusal).collect();
        if refused.is_empty() { error } else { scarcity(&refused, self.ranks) }
    }

    fn votes(&self) -> impl Iterator<Item = (usize, Vote)> {
        self.ranks.iter().filter_map(|rank| {
            let text = self.board.posted(&self.key(*rank))?;
            Some((*rank, serde_json::from_str(&text).ok()?))
        })
    }

    fn key(&self, rank: usize) -> String {
        format!("all-to-all of {:016x} on rank {rank}", self.group.number())
    }
}

/// What all votes together mean.
fn weigh(votes: &[(usize, Vote)]) -> Result<Trust, LibraryError> {
    let refused: Vec<_> = votes.iter().cloned().filter_map(refusal).collect();
    match refused.len() {
        0 => Ok(Trust::Given),
        all if all == votes.len() => Ok(Trust::Withheld),
        _ => {
            let ranks: Vec<usize> = votes.iter().map(|(rank, _)| *rank).collect();
            Err(scarcity(&refused, &ranks))
        }
    }
}

fn refusal((rank, vote): (usize, Vote)) -> Option<(usize, Refusal)> {
    match vote {
        Vote::Accepted => None,
        Vote::Refused(refusal) => Some((rank, refusal)),
    }
}

/// The error of a communicator of `ranks` where some were refused.
fn scarcity(refused: &[(usize, Refusal)], ranks: &[usize]) -> LibraryError {
    let without: Vec<usize> = refused.iter().map(|(rank, _)| *rank).collect();
    let with: Vec<usize> = ranks.iter().copied().filter(|rank| !without.contains(rank)).collect();
    let Refusal { reason, code, text } = &refused[0].1;
    let text = format!(
        "ranks {without:?} lack resources ({reason}: {text}), while ranks {with:?} wait for them; \
         {CURE}"
    );
    LibraryError { call: "HcclAlltoAll", code: *code, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: i64, text: &str) -> LibraryError {
        LibraryError { call: "HcclAlltoAll", code, text: text.into() }
    }

    fn refused(text: &str) -> Vote {
        Vote::Refused(Refusal::of(&error(19, text)).expect("for lack of resources"))
    }

    #[test]
    fn only_a_lack_of_resources_is_a_refusal() {
        assert_eq!(Refusal::of(&error(1, "EI0003: a parameter is wrong")), None);
        let by_code = Refusal::of(&error(24, "out of memory")).expect("the code says so");
        assert_eq!(by_code.reason, "EI0011");
        let named = Refusal::of(&error(19, "network: EI0007: no queue pair")).expect("named");
        assert_eq!((named.reason.as_str(), named.code), ("EI0007", 19));
    }

    #[test]
    fn all_alike_is_a_verdict() {
        let votes = |vote: Vote| [(3, vote.clone()), (5, vote)];
        assert_eq!(weigh(&votes(Vote::Accepted)).ok(), Some(Trust::Given));
        assert_eq!(weigh(&votes(refused("EI0007"))).ok(), Some(Trust::Withheld));
    }

    #[test]
    fn some_refused_names_them_the_reason_and_the_cure() {
        let votes =
            [(3, Vote::Accepted), (5, refused("EI0007: no queue pair")), (8, Vote::Accepted)];
        let error = weigh(&votes).expect_err("rank 5 stays outside");
        assert_eq!((error.call, error.code), ("HcclAlltoAll", 19));
        let text = error.text;
        assert!(text.contains("ranks [5] lack resources (EI0007"), "{text}");
        assert!(text.contains("ranks [3, 8] wait") && text.contains(CURE), "{text}");
    }
}
