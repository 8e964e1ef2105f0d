//! Launching across processes, what they tell each other beside the data, and engines on real
//! collective libraries.

#![deny(unsafe_code)]

pub mod control;
#[cfg(any(feature = "cuda", feature = "hccl"))]
mod device;
#[cfg(any(feature = "mpi", feature = "cuda", feature = "hccl"))]
#[expect(unsafe_code, reason = "loading a library runs it")]
mod dylib;
#[cfg(any(feature = "mpi", feature = "cuda", feature = "hccl"))]
mod engine;
mod environment;
mod error;
#[cfg(feature = "hccl")]
pub mod hccl;
mod launch;
#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(feature = "cuda")]
pub mod nccl;
#[cfg(any(feature = "mpi", feature = "cuda", feature = "hccl"))]
mod processes;
mod rank_table;
mod rendezvous;
mod source;

#[cfg(any(feature = "mpi", feature = "cuda", feature = "hccl"))]
pub use engine::Engine;
pub use environment::Environment;
pub use error::{EngineLoadError, LaunchError, LibraryError};
pub use launch::{Launch, LaunchSpec, read_launch};
#[cfg(any(feature = "mpi", feature = "cuda", feature = "hccl"))]
pub use processes::Process;
pub use rendezvous::Rendezvous;
pub use source::{Claim, Source};
