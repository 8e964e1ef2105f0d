//! What can go wrong between ranks, each error naming who, where and why; nothing here prints.

use crate::{Call, OpKind};
use dmuon_partition::{MeshError, Rank};
use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc, time::Duration};

/// A result whose error is an [`enum@Error`] unless said otherwise.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a collective, a launch or a mesh failed. Cheap to clone: one failure reaches many ranks.
///
/// Serialized, an error keeps its type and its fields where other ranks may act on them; where they
/// can't, it becomes its message.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The mesh does not fit the world.
    #[error(transparent)]
    Mesh(#[from] MeshError),
    /// A wait reached its deadline.
    #[error("rank {rank}: {at} timed out after {}; {}", Seconds(*waited), Missing(missing))]
    TimedOut {
        /// The rank whose deadline passed first.
        rank: Rank,
        /// The collective it waited for.
        at: CallSite,
        /// How long it waited.
        waited: Duration,
        /// The ranks it needed that never started the collective.
        missing: Vec<Rank>,
    },
    /// Two ranks issued different collectives as the same call of a group.
    #[error(
        "rank {rank} called {call} where rank {other} called {other_call} (#{sequence} on {group})"
    )]
    Mismatch {
        /// The group both ranks called.
        group: Arc<str>,
        /// Which call of the group differs, from 0.
        sequence: u64,
        /// The higher of the two ranks.
        rank: Rank,
        /// What `rank` called.
        call: Arc<str>,
        /// The lower of the two ranks.
        other: Rank,
        /// What `other` called.
        other_call: Arc<str>,
    },
    /// The buffer handed to a collective does not have the size its call promises.
    #[error("rank {rank}: {at} takes {}, got {}", Input(*expected), Input(*actual))]
    Input {
        /// The rank that passed the buffer.
        rank: Rank,
        /// The collective it was passed to.
        at: CallSite,
        /// Bytes the call takes on this rank, `None` for no buffer at all.
        expected: Option<usize>,
        /// Bytes that were passed.
        actual: Option<usize>,
    },
    /// Room on a device for the result of a collective is missing, ill-sized, or not wanted.
    #[error("rank {rank}: {at} takes {} for its result, but got {}", Input(*expected), Input(*actual))]
    Output {
        /// The rank that made the call.
        rank: Rank,
        /// The collective.
        at: CallSite,
        /// Bytes the call takes here.
        expected: Option<usize>,
        /// Bytes that were passed.
        actual: Option<usize>,
    },
    /// A collective names a root that its group does not have.
    #[error("rank {rank}: {at} has root {root}, but the group has {size} ranks")]
    Root {
        /// The rank that made the call.
        rank: Rank,
        /// The collective.
        at: CallSite,
        /// The root it named, as a rank in the group.
        root: usize,
        /// How many ranks the group has.
        size: usize,
    },
    /// A sum over elements that have none, such as raw bytes.
    #[error(
        "rank {rank}: {at} cannot sum {element} elements; sum f32 or f64, or use a collective that only moves bytes"
    )]
    NotSummable {
        /// The rank that made the call.
        rank: Rank,
        /// The collective.
        at: CallSite,
        /// The element type as text.
        element: &'static str,
    },
    /// A rank failed, and everybody who works with it learns why.
    #[error("rank {rank} failed: {cause}")]
    RankFailed {
        /// The rank that failed.
        rank: Rank,
        /// Its own error.
        cause: Arc<Error>,
    },
    /// A rank panicked.
    #[error("rank {rank} panicked: {message}")]
    RankPanicked {
        /// The rank that panicked.
        rank: Rank,
        /// The panic message.
        message: Arc<str>,
    },
    /// A rank finished without starting a collective that others need it for.
    #[error("rank {rank} returned before {at}")]
    RankReturned {
        /// The rank that is gone.
        rank: Rank,
        /// The collective it is missing from.
        at: CallSite,
    },
    /// A rank's process ended or fell silent without saying why.
    #[error(
        "rank {rank} is gone: its process ended or fell silent without a word (killed, crashed, \
         stopped or out of memory?); look at what it printed last"
    )]
    RankLost {
        /// The rank that is gone.
        rank: Rank,
    },
    /// The library behind an engine reported a failure.
    #[error("rank {rank}: {at} failed: {call} returned {code}, \"{text}\"")]
    Library {
        /// The rank that made the call.
        rank: Rank,
        /// The collective it was part of.
        at: CallSite,
        /// The library's function.
        call: Arc<str>,
        /// Its status.
        code: i64,
        /// What the library says about that status.
        text: Arc<str>,
    },
    /// A world needs at least one rank.
    #[error("a world needs at least one rank, 0 were asked for")]
    EmptyWorld,
    /// The operating system refused a thread for a rank.
    #[error("no thread for rank {rank}: {source}")]
    Thread {
        /// The rank without a thread.
        rank: Rank,
        /// What the operating system said.
        source: Arc<std::io::Error>,
    },
    /// An environment variable holds something else than it should.
    #[error("{variable}={value:?} is not {expected}; correct it or unset it")]
    Environment {
        /// Name of the variable.
        variable: &'static str,
        /// What it holds.
        value: Arc<str>,
        /// What it should hold.
        expected: &'static str,
    },
    /// A failure of the code that runs on a rank rather than of this crate.
    #[error(transparent)]
    External(Arc<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// Wraps a failure of the code that runs on a rank, so that other ranks can be told about it.
    pub fn external(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::External(Arc::new(error))
    }

    /// Wraps a bare message.
    pub fn message(message: impl Into<String>) -> Self {
        Self::external(Message(message.into()))
    }

    /// What first went wrong: strips every [`Error::RankFailed`].
    pub fn root_cause(&self) -> &Error {
        match self {
            Self::RankFailed { cause, .. } => cause.root_cause(),
            other => other,
        }
    }

    /// The report of two ranks that issued different calls at `at`, or `None` if they are alike.
    /// Reads the same whichever of them is `one`.
    pub fn mismatch(at: &CallSite, one: (Rank, &Call), two: (Rank, &Call)) -> Option<Self> {
        if one.1 == two.1 {
            return None;
        }
        let (low, high) = if one.0 < two.0 { (one, two) } else { (two, one) };
        let alike = low.1.brief() == high.1.brief();
        let text = |call: &Call| if alike { call.detailed() } else { call.brief() }.into();
        Some(Self::Mismatch {
            group: at.group.clone(),
            sequence: at.sequence,
            rank: high.0,
            call: text(high.1),
            other: low.0,
            other_call: text(low.1),
        })
    }

    /// What the other ranks are told when `rank` fails with this error.
    pub fn seen_from_afar(self, rank: Rank) -> Self {
        if self.names_rank() {
            return self;
        }
        Self::RankFailed { rank, cause: Arc::new(self) }
    }

    /// Whether the message says by itself which rank is to blame.
    fn names_rank(&self) -> bool {
        match self {
            Self::TimedOut { .. }
            | Self::Mismatch { .. }
            | Self::Input { .. }
            | Self::Output { .. }
            | Self::Root { .. }
            | Self::NotSummable { .. }
            | Self::RankFailed { .. }
            | Self::RankPanicked { .. }
            | Self::RankReturned { .. }
            | Self::RankLost { .. }
            | Self::Library { .. }
            | Self::Thread { .. } => true,
            Self::Mesh(_) | Self::EmptyWorld | Self::Environment { .. } | Self::External(_) => {
                false
            }
        }
    }
}

/// One call of one group, as errors name it: `broadcast of "layers.0" on shard/weights #17`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallSite {
    /// The collective.
    pub op: OpKind,
    /// The boundary or parameter it serves.
    pub label: Arc<str>,
    /// Name of the group.
    pub group: Arc<str>,
    /// Which call of the group, from 0.
    pub sequence: u64,
}

impl fmt::Display for CallSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, label, group, sequence } = self;
        write!(f, "{op} of \"{label}\" on {group} #{sequence}")
    }
}

/// An error that is only a message.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Message(String);

/// Writes `30 s` or `0.25 s`.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s", self.0.as_secs_f64())
    }
}

/// Writes who is missing, or that nobody is.
struct Missing<'a>(&'a [Rank]);

impl fmt::Display for Missing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("every rank arrived, the operation itself did not finish");
        }
        write!(f, "not arrived: {:?}", self.0.iter().map(|rank| rank.0).collect::<Vec<_>>())
    }
}

/// Writes `16 bytes` or `no buffer`.
struct Input(Option<usize>);

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(bytes) => write!(f, "{bytes} bytes"),
            None => f.write_str("no buffer"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site() -> CallSite {
        CallSite {
            op: OpKind::Broadcast,
            label: "layers.0".into(),
            group: "shard/weights".into(),
            sequence: 17,
        }
    }

    #[test]
    fn timeout_names_rank_group_sequence_and_the_missing() {
        let error = Error::TimedOut {
            rank: Rank(3),
            at: site(),
            waited: Duration::from_secs(30),
            missing: vec![Rank(2)],
        };
        assert_eq!(
            error.to_string(),
            "rank 3: broadcast of \"layers.0\" on shard/weights #17 timed out after 30 s; \
             not arrived: [2]"
        );
    }

    #[test]
    fn root_cause_looks_through_failed_ranks() {
        let cause = Error::message("out of luck");
        let seen = cause.seen_from_afar(Rank(1));
        assert_eq!(seen.to_string(), "rank 1 failed: out of luck");
        assert_eq!(seen.root_cause().to_string(), "out of luck");
    }
}
