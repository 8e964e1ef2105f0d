//! Dotted patterns that module paths match by their last parts.

use crate::{PartitionError, tree::is_number};

/// A parsed pattern such as `layers.N`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// Invariant: not empty.
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Name(String),
    Number,
    Anything,
}

impl Pattern {
    /// Reads dotted parts: `N` stands for a number, `*` for any one part, all else for itself.
    ///
    /// # Errors
    /// An empty part, or a `*` inside a longer part.
    pub(crate) fn parse(pattern: &str) -> Result<Self, PartitionError> {
        let part = |text: &str| match text {
            "N" => Some(Part::Number),
            "*" => Some(Part::Anything),
            name if name.is_empty() || name.contains('*') => None,
            name => Some(Part::Name(name.to_owned())),
        };
        let parts = pattern.split('.').map(part).collect::<Option<_>>();
        parts
            .map(|parts| Self { parts })
            .ok_or_else(|| PartitionError::BadPattern { pattern: pattern.to_owned() })
    }

    /// Whether the last parts of `path` are the pattern's.
    pub(crate) fn matches(&self, path: &str) -> bool {
        let mut given = path.rsplit('.');
        self.parts.iter().rev().all(|part| given.next().is_some_and(|text| part.matches(text)))
    }
}

impl Part {
    fn matches(&self, text: &str) -> bool {
        match self {
            Self::Name(name) => name == text,
            Self::Number => is_number(text),
            Self::Anything => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        Pattern::parse(pattern).unwrap().matches(path)
    }

    #[test]
    fn the_last_parts_decide() {
        assert!(matches("layers.N", "layers.0"));
        assert!(matches("layers.N", "model.decoder.layers.31"));
        assert!(!matches("layers.N", "layers"));
        assert!(!matches("layers.N", "layers.0.attn"));
        assert!(!matches("layers.N", "my_layers.0"));
    }

    #[test]
    fn numbers_names_and_wildcards() {
        assert!(!matches("layers.N", "layers.norm"));
        assert!(matches("stages.*.N", "stages.high.7"));
        assert!(matches("layers.0", "layers.0") && !matches("layers.0", "layers.1"));
    }

    #[test]
    fn unreadable_patterns_are_refused() {
        for pattern in ["", "layers.", ".N", "lay*.N"] {
            let error = Pattern::parse(pattern).unwrap_err();
            assert!(matches!(error, PartitionError::BadPattern { .. }), "{pattern:?}");
        }
    }
}
