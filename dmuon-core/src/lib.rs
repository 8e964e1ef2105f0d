//! Meshes, groups, buffers and what happens on them, without Burn and without FFI.
#![deny(unsafe_code)]

mod buffer;
mod ledger;
pub mod newton_schulz;
mod pool;
pub mod update;

pub use buffer::{ALIGNMENT, Buffer, SharedBuffer};
pub use dmuon_partition::{Coordinate, MeshError, MeshShape, Rank};
pub use ledger::{Holding, Lease, Ledger};
pub use pool::BufferPool;
