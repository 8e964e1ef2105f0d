//! The HCCL engine: one rank a process, an Ascend device each, over CANN's libraries, found at run time.
//!
//! Rooms, from unsafe to safe: `sys` (the C interfaces), `result` (statuses), `safe` (no raw pointers
//! beyond this room), then `passage` (entering the library in turn, and around an all-to-all that
//! devices lack the resources for) and the lane. HCCL makes groups of the world only and sorts their
//! ranks, has no average, wants one call at a time on a device, and does not sum `f64` on most
//! products; `order`, `passage` and `lane` make up for that.

mod ballot;
mod error;
mod join;
mod lane;
mod libraries;
mod order;
mod passage;
#[expect(unsafe_code, reason = "the libraries are C")]
mod result;
#[expect(unsafe_code, reason = "wraps the libraries, which are C")]
mod safe;
#[expect(unsafe_code, reason = "the libraries are C")]
mod sys;

pub use error::HcclJoinError;
pub use join::{join, join_with};
pub use libraries::Libraries;
