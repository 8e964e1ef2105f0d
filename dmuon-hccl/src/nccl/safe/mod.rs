//! NCCL and the driver without raw pointers: whoever only uses this room cannot break memory, only
//! protocol.

mod collectives;
mod comm;
mod device;
mod fence;
mod library;
mod scratch;
mod splitting;
mod unique_id;

pub(super) use collectives::Summand;
pub(super) use comm::Comm;
pub(super) use device::Device;
pub(super) use fence::Fence;
pub(super) use library::Library;
pub(super) use scratch::Scratch;
pub(super) use splitting::Splitting;
pub(super) use unique_id::UniqueId;
