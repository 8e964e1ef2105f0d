//! What the ranks of a new world have in common, as a text that can be told to others.

use crate::nccl::sys;
use std::{fmt, str::FromStr};

/// Names a world that is being formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::nccl) struct UniqueId(pub(super) sys::UniqueId);

/// A text that is no id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::nccl) struct NoUniqueId;

impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for UniqueId {
    type Err = NoUniqueId;

    fn from_str(text: &str) -> Result<Self, NoUniqueId> {
        let mut id = [0; sys::UNIQUE_ID_BYTES];
        if text.len() != 2 * id.len() || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(NoUniqueId);
        }
        for (at, byte) in id.iter_mut().enumerate() {
            let digits = &text[2 * at..2 * at + 2];
            *byte = u8::from_str_radix(digits, 16).map_err(|_| NoUniqueId)?;
        }
        Ok(Self(sys::UniqueId(id)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_as_text() {
        let mut bytes = [0; sys::UNIQUE_ID_BYTES];
        bytes.iter_mut().zip(251..).for_each(|(byte, at): (&mut u8, u32)| *byte = at as u8);
        let id = UniqueId(sys::UniqueId(bytes));
        assert_eq!(id.to_string().parse(), Ok(id));
        let no_id = |text: &str| assert_eq!(text.parse::<UniqueId>(), Err(NoUniqueId));
        no_id("");
        no_id(&"0g".repeat(sys::UNIQUE_ID_BYTES));
        no_id(&"é".repeat(sys::UNIQUE_ID_BYTES));
    }
}
