//! What the examples that train share: a model, its text, and how they record and draw.

pub(crate) mod data;
pub(crate) mod error;
pub(crate) mod model;
pub(crate) mod random;
pub(crate) mod records;
pub(crate) mod style;
