//! Pure planning for dedicated ownership: which rank owns which matrix, what that costs, what moves.
//!
//! Everything here is a function of names and shapes alone, so every rank that computes a plan
//! computes the same one. Nothing here talks to a device, a network or Burn.
#![forbid(unsafe_code)]

mod boundary;
mod cost;
mod error;
mod fingerprint;
mod flops;
mod improve;
mod lpt;
mod matrix;
mod memory;
mod mesh;
mod mode;
mod pack;
mod partitioner;
mod pattern;
mod plan;
mod report;
mod slots;
mod traffic;
mod tree;

pub use boundary::{Boundaries, BoundaryRule, Strictness};
pub use cost::CostModel;
pub use error::PartitionError;
pub use flops::{DEFAULT_STEPS, Form, newton_schulz_flops, preferred_form};
pub use matrix::Matrix;
pub use memory::{RankMemory, weight_memory};
pub use mesh::{Coordinate, MeshError, MeshShape, Rank};
pub use mode::Mode;
pub use partitioner::Partitioner;
pub use plan::{Boundary, Pack, Plan, PlannedMatrix};
pub use report::{BalanceReport, RankLoad};
pub use traffic::{BoundaryTraffic, ElemBytes, StepTraffic, Traffic};
pub use tree::ModuleTree;
