//! Pure planning for dedicated ownership: which rank owns which matrix, what that costs, what moves.
//!
//! Everything here is a function of names and shapes alone, so every rank that computes a plan
//! computes the same one. Nothing here talks to a device, a network or Burn.

mod mesh;

pub use mesh::{Coordinate, MeshError, MeshShape, Rank};
