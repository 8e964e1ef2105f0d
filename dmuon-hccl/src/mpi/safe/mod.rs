//! MPI without raw pointers: whoever only uses this room cannot break memory, only protocol.

mod comm;
mod library;
mod transfer;

pub(super) use comm::{Comm, Summand};
pub(super) use library::Library;
pub(super) use transfer::{Landing, Sending, Tag};
