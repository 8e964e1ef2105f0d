//! Meshes, groups, buffers and what happens on them, without Burn and without FFI.
#![deny(unsafe_code)]

mod buffer;
mod engine;
mod error;
mod exchange;
mod float;
mod gradients;
mod group;
mod kernels;
mod launch;
mod layout;
mod ledger;
mod mesh;
pub mod newton_schulz;
mod pool;
mod recorder;
pub mod reduce;
mod report;
mod schedule;
mod shard;
mod unit;
pub mod update;
mod weights;
mod work;
mod world;

pub use buffer::{ALIGNMENT, Buffer, SharedBuffer};
pub use dmuon_partition::{Coordinate, MeshError, MeshShape, Rank};
pub use engine::{Collectives, Dump, EngineOptions, Link, Sharing, Verify};
pub use error::{CallSite, Error, Result};
pub use exchange::{Exchange, ExchangeOptions, HeldPack};
pub use float::FloatType;
pub use gradients::{Reach, ReducedPack};
pub use group::{Call, Capabilities, Element, Group, Memory, Op, OpKind};
pub use launch::{Seat, catch, launch, launch_each, launch_with, raise, run_rank};
pub use layout::{LINE_ELEMS, PackedLayout, Slot};
pub use ledger::{Holding, Lease, Ledger};
pub use mesh::{Axis, Mesh, Stream};
pub use pool::BufferPool;
pub use recorder::{Counters, Event, EventKind, OpCount, Recorder, Trace};
pub use schedule::{Action, Pass, Schedule};
pub use shard::ShardLayout;
pub use unit::{Address, Holder, Pack, Placement, Unit};
pub use weights::PackView;
pub use work::{Pending, Work};
pub use world::World;
