//! How long gathered weights live: the one choice that trades memory against traffic.

use crate::PartitionError;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// How long a boundary's gathered weights stay on ranks that do not own them.
///
/// Named after the ZeRO stages whose memory behaviour they resemble.
///
/// ```
/// use dmuon_partition::Mode;
///
/// assert_eq!("z3".parse::<Mode>()?, Mode::Z3);
/// assert_eq!(Mode::Z2.to_string(), "z2");
/// # Ok::<(), dmuon_partition::PartitionError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Packed buffers stay from forward until the boundary's backward is done: one broadcast a
    /// micro-batch, every weight in memory between forward and backward.
    #[default]
    Z2,
    /// Packed buffers are dropped after forward and broadcast again for backward: two broadcasts
    /// a micro-batch, a few boundaries in memory at a time.
    Z3,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Z2 => "z2",
            Self::Z3 => "z3",
        })
    }
}

impl FromStr for Mode {
    type Err = PartitionError;

    /// Reads `z2` or `z3`, in either case.
    fn from_str(given: &str) -> Result<Self, PartitionError> {
        match given {
            "z2" | "Z2" => Ok(Self::Z2),
            "z3" | "Z3" => Ok(Self::Z3),
            _ => Err(PartitionError::UnknownMode { given: given.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_serde_forms_agree() {
        for mode in [Mode::Z2, Mode::Z3] {
            assert_eq!(mode.to_string().parse::<Mode>().unwrap(), mode);
            assert_eq!(serde_json::to_string(&mode).unwrap(), format!("\"{mode}\""));
        }
    }

    #[test]
    fn an_unknown_mode_teaches_the_two_there_are() {
        let message = "zero3".parse::<Mode>().unwrap_err().to_string();
        assert!(message.contains("\"zero3\" is not a mode"), "{message}");
        assert!(message.contains("\"z2\"") && message.contains("\"z3\""), "{message}");
    }
}
