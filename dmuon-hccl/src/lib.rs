//! Launching across processes, what they tell each other beside the data, and engines on real
//! collective libraries.

#![deny(unsafe_code)]

pub mod control;
mod environment;
mod error;
mod launch;
#[cfg(feature = "mpi")]
pub mod mpi;
mod rank_table;
mod rendezvous;
mod source;

pub use environment::Environment;
pub use error::{EngineLoadError, LaunchError};
pub use launch::{Launch, LaunchSpec, read_launch};
pub use rendezvous::Rendezvous;
pub use source::{Claim, Source};
