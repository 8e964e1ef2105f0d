//! The MPI engine: one rank a process, over any library of the MPI-5 standard ABI, found at run time.
//!
//! Rooms, from unsafe to safe: `sys` (the ABI), `result` (statuses), `safe` (no raw pointers beyond
//! this room), then collectives and groups. Every group has a communicator and a progress thread of
//! its own, which runs the group's calls first in, first out. It polls rather than blocks: a wait
//! ends when a peer is gone, and gives the processor away meanwhile.

mod course;
mod error;
mod group;
mod native;
mod ordered;
mod process;
mod progress;
#[expect(unsafe_code, reason = "the library is C")]
mod result;
mod runtime;
#[expect(unsafe_code, reason = "wraps the library, which is C")]
mod safe;
#[expect(unsafe_code, reason = "the library is C")]
mod sys;

pub use error::MpiJoinError;
pub use process::Process;
pub use result::MpiError;
