//! What engines share whose collectives run on a device's stream. Buffers travel through the host:
//! up to the device, around, and down again.

mod lane;
mod staged;

pub(crate) use lane::Lane;
pub(crate) use staged::Staged;
