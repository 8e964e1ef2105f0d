//! AscendCL and HCCL without raw pointers: whoever only uses this room cannot break memory, only
//! protocol.

mod channel;
mod comm;
mod device;
mod library;
mod memory;

pub(super) use channel::{Channel, Sum, Transfer};
pub(super) use comm::{Comm, RootInfo, Settings};
pub(super) use device::Device;
pub(super) use library::Library;
