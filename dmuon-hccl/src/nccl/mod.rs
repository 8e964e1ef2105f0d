//! The NCCL engine: one rank a process, with a GPU of its own; driver and library are found at run
//! time.
//!
//! Rooms, from unsafe to safe: `sys` (NCCL's interface), `result` (statuses of NCCL and of the
//! driver), `safe` (no raw pointers beyond this room), then `lane` (what collectives run on, in
//! turns), and `join`. The driver is called through `cudarc`. Communicators do not block: every
//! wait polls, so that it ends when the world fails; `tally` knows how many there are.
//!
//! Collectives run on scratch memory, or on memory that is lent, behind a fence: an event that stands
//! for everything that was on the device when the collective was started. The host waits for their
//! end in either case, so nothing needs a fence behind them.

mod error;
mod join;
mod lane;
#[expect(unsafe_code, reason = "the library is C")]
mod result;
#[expect(unsafe_code, reason = "wraps driver and library, which are C")]
mod safe;
#[expect(unsafe_code, reason = "the library is C")]
mod sys;
mod tally;

pub use error::NcclJoinError;
pub use join::join;
