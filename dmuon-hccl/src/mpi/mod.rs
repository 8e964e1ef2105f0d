//! The MPI engine: one rank a process, over any library of the MPI-5 standard ABI, found at run time.
//!
//! Rooms, from unsafe to safe: `sys` (the ABI), `result` (statuses), `safe` (no raw pointers beyond
//! this room), then collectives and the conduit. Every group has a communicator of its own. Messages
//! are polled rather than blocked on: a wait ends when a peer is gone, and gives the processor away
//! meanwhile.

mod conduit;
mod course;
mod error;
mod join;
mod native;
mod ordered;
#[expect(unsafe_code, reason = "the library is C")]
mod result;
mod runtime;
#[expect(unsafe_code, reason = "wraps the library, which is C")]
mod safe;
#[expect(unsafe_code, reason = "the library is C")]
mod sys;

pub use error::MpiJoinError;
pub use join::join;
