//! Launching across processes: who am I, how many are we, and which library could not be loaded.

#![deny(unsafe_code)]

mod environment;
mod error;
mod launch;
mod rank_table;
mod source;

pub use environment::Environment;
pub use error::{EngineLoadError, LaunchError};
pub use launch::{Launch, LaunchSpec, Rendezvous, read_launch};
pub use source::{Claim, Source};
