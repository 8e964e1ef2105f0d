//! Errors as they travel between processes: those that ranks act on keep their fields, others speak.

use crate::{CallSite, Error, Rank};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{sync::Arc, time::Duration};

impl Serialize for Error {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Report::from(self.clone()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Error {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Report::deserialize(deserializer).map(Self::from)
    }
}

/// The serialized form of an [`enum@Error`].
#[derive(Serialize, Deserialize)]
enum Report {
    TimedOut {
        rank: Rank,
        at: CallSite,
        waited: Duration,
        missing: Vec<Rank>,
    },
    Mismatch {
        group: Arc<str>,
        sequence: u64,
        rank: Rank,
        call: Arc<str>,
        other: Rank,
        other_call: Arc<str>,
    },
    Input {
        rank: Rank,
        at: CallSite,
        expected: Option<usize>,
        actual: Option<usize>,
    },
    Root {
        rank: Rank,
        at: CallSite,
        root: usize,
        size: usize,
    },
    RankFailed {
        rank: Rank,
        cause: Arc<Error>,
    },
    RankPanicked {
        rank: Rank,
        message: Arc<str>,
    },
    RankReturned {
        rank: Rank,
        at: CallSite,
    },
    RankLost {
        rank: Rank,
    },
    Library {
        rank: Rank,
        at: CallSite,
        call: Arc<str>,
        code: i64,
        text: Arc<str>,
    },
    EmptyWorld,
    /// Names its rank by itself already, where it should.
    Message(String),
}

impl From<Error> for Report {
    fn from(error: Error) -> Self {
        match error {
            Error::TimedOut { rank, at, waited, missing } => {
                Self::TimedOut { rank, at, waited, missing }
            }
            Error::Mismatch { group, sequence, rank, call, other, other_call } => {
                Self::Mismatch { group, sequence, rank, call, other, other_call }
            }
            Error::Input { rank, at, expected, actual } => {
                Self::Input { rank, at, expected, actual }
            }
            Error::Root { rank, at, root, size } => Self::Root { rank, at, root, size },
            Error::RankFailed { rank, cause } => Self::RankFailed { rank, cause },
            Error::RankPanicked { rank, message } => Self::RankPanicked { rank, message },
            Error::RankReturned { rank, at } => Self::RankReturned { rank, at },
            Error::RankLost { rank } => Self::RankLost { rank },
            Error::Library { rank, at, call, code, text } => {
                Self::Library { rank, at, call, code, text }
            }
            Error::EmptyWorld => Self::EmptyWorld,
            other => Self::Message(other.to_string()),
        }
    }
}

impl From<Report> for Error {
    fn from(report: Report) -> Self {
        match report {
            Report::TimedOut { rank, at, waited, missing } => {
                Self::TimedOut { rank, at, waited, missing }
            }
            Report::Mismatch { group, sequence, rank, call, other, other_call } => {
                Self::Mismatch { group, sequence, rank, call, other, other_call }
            }
            Report::Input { rank, at, expected, actual } => {
                Self::Input { rank, at, expected, actual }
            }
            Report::Root { rank, at, root, size } => Self::Root { rank, at, root, size },
            Report::RankFailed { rank, cause } => Self::RankFailed { rank, cause },
            Report::RankPanicked { rank, message } => Self::RankPanicked { rank, message },
            Report::RankReturned { rank, at } => Self::RankReturned { rank, at },
            Report::RankLost { rank } => Self::RankLost { rank },
            Report::Library { rank, at, call, code, text } => {
                Self::Library { rank, at, call, code, text }
            }
            Report::EmptyWorld => Self::EmptyWorld,
            Report::Message(message) => Self::message(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpKind;

    fn travelled(error: &Error) -> Error {
        let json = serde_json::to_string(error).expect("errors are plain data");
        serde_json::from_str(&json).expect("just written")
    }

    #[test]
    fn types_survive_inside_failed_ranks() {
        let error = Error::EmptyWorld.seen_from_afar(Rank(1));
        let there = travelled(&error);
        assert!(matches!(there.root_cause(), Error::EmptyWorld), "{there:?}");
        assert_eq!(there.to_string(), error.to_string());
    }

    #[test]
    fn messages_read_the_same_on_the_other_side() {
        let at = CallSite {
            op: OpKind::Reduce,
            label: "layers.0".into(),
            group: "shard/gradients".into(),
            sequence: 3,
        };
        let waited = Duration::from_millis(1500);
        for error in [
            Error::message("no more data"),
            Error::RankReturned { rank: Rank(2), at: at.clone() },
            Error::NotSummable { rank: Rank(1), at: at.clone(), element: "u8" },
            Error::TimedOut { rank: Rank(0), at, waited, missing: vec![Rank(3)] },
        ] {
            assert_eq!(travelled(&error).to_string(), error.to_string());
        }
    }
}
