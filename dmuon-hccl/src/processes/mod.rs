//! Ranks that are processes, whatever moves their data: groups, their threads, and the rank's seat.
//!
//! Every group has a thread of its own, which runs the group's calls first in, first out, over the
//! group's [`Conduit`]: the engine. Who is here, who failed and who is late is the business of
//! [`control`](crate::control), the same for every engine.

mod conduit;
mod course;
mod group;
mod process;
mod progress;

#[cfg(any(feature = "cuda", feature = "hccl"))]
pub(crate) use conduit::Fencing;
pub(crate) use conduit::{Conduit, Division};
pub(crate) use course::{Course, Stop};
pub(crate) use process::Opening;
pub use process::Process;
#[cfg(any(feature = "mpi", feature = "cuda"))]
pub(crate) use process::Release;
#[cfg(any(feature = "cuda", feature = "hccl"))]
pub(crate) use process::part;
