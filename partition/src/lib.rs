//! Pure planning for dedicated ownership: which rank owns which matrix, what that costs, what moves.
//!
//! Muon needs whole matrices, so every matrix gets one **owner**: the rank that holds its master
//! weight and momentum and runs Newton–Schulz on it. Everything here is a function of names and
//! shapes alone, so every rank that computes a plan computes the same one, and nothing here talks
//! to a device, a network or Burn.
//!
//! # From names to owners
//!
//! 1. A [`Matrix`] is a name and a shape. The list of them is in visit order: all indices below are
//!    positions in it.
//! 2. A [`BoundaryRule`] finds the module of each matrix that is gathered before use and reduced
//!    after backward as one, usually a transformer block. It reads the [`ModuleTree`] off the names.
//! 3. A [`Partitioner`] gives each matrix to a rank of the [`MeshShape`]: by largest
//!    [cost](CostModel) first, then by moves and swaps, with the matrices of one boundary on
//!    different ranks where the balance allows it.
//! 4. The [`Plan`] answers who owns what ([`Plan::owner`], [`Plan::owned_by`]) and what each owner
//!    packs for each boundary ([`Boundary::packs`]), in the order in which collectives are issued.
//! 5. From a plan follow its balance ([`Plan::balance`]), its [`Traffic`] and its
//!    [weight memory](weight_memory) in either [`Mode`].
//!
//! ```
//! use dmuon_partition::{
//!     BoundaryRule, CostModel, ElemBytes, Matrix, MeshShape, Mode, Partitioner, Rank, Traffic,
//! };
//!
//! // Four blocks of four matrices, two replicas of two ranks.
//! let matrices: Vec<Matrix> = (0..4)
//!     .flat_map(|layer| {
//!         [("q", 64, 64), ("o", 64, 64), ("up", 256, 64), ("down", 64, 256)].map(
//!             move |(part, rows, cols)| {
//!                 Matrix::new(format!("layers.{layer}.{part}.weight"), rows, cols)
//!             },
//!         )
//!     })
//!     .collect();
//! let boundaries = BoundaryRule::default().assign(&matrices)?;
//! let plan = Partitioner::new(MeshShape::new(2, 2)?).plan(&matrices, &boundaries)?;
//!
//! // Each rank owns one matrix of each kind.
//! assert_eq!(plan.owned_by(Rank(3)).len(), 4);
//! assert_eq!(plan.balance(&CostModel::NewtonSchulz)?.max_over_mean(), 1.0);
//!
//! // What happens when the second block is entered: one broadcast an owner, in this order.
//! for pack in &plan.boundaries()[1].packs {
//!     let root = plan.mesh().coordinate(pack.owner).shard;
//!     assert!(root < 2 && !pack.matrices.is_empty());
//! }
//!
//! // Ranks compare these before the first step.
//! let again = Partitioner::new(plan.mesh()).plan(&matrices, &boundaries)?;
//! assert_eq!(plan.fingerprint(), again.fingerprint());
//!
//! let step = Traffic::predict(&plan, Mode::Z3, ElemBytes::BF16_WEIGHTS).step(1, 1);
//! assert_eq!(step.shard_bytes, plan.total_elems() * (2 * 2 + 4));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
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
