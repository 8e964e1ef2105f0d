//! Engines: implementations of [`Group`](crate::Group), one directory each, and their options.

pub(crate) mod in_process;
mod options;

pub use options::{Collectives, Dump, EngineOptions, Link, Sharing, Verify};
