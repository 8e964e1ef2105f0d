//! Units as the runtime sees them: packs of parameters that move together. Holds no data.

use crate::{Coordinate, PackedLayout};
use std::sync::Arc;

/// How the model runs a unit; later variants finish later in backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Placement {
    /// Inside a boundary, with hooks at its input and output.
    Hooked,
    /// Without hooks: its gradients come when the tape ends.
    Loose,
    /// What lies outside all boundaries, such as embeddings and heads.
    Root,
}

/// Who holds the authoritative values of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// One rank of the mesh. The ranks of its shard column keep copies; weights are broadcast from
    /// the column along the shard axis, gradients reduced to it and then, along the replicate axis,
    /// to the owner.
    Owner(Coordinate),
    /// Every rank of a replica holds one part of the pack, alike in all replicas. Weights are
    /// all-gathered along the shard axis; gradients reduce-scattered along it and then averaged
    /// between replicas.
    Shards,
    /// Every rank: weights never move, gradients are averaged over all ranks.
    Everyone,
}

impl Holder {
    /// The owner, if there is one.
    pub fn owner(self) -> Option<Coordinate> {
        match self {
            Self::Owner(owner) => Some(owner),
            Self::Shards | Self::Everyone => None,
        }
    }
}

/// Parameters of one unit with one holder, packed into one buffer.
#[derive(Clone, Debug)]
pub struct Pack {
    /// Who holds them.
    pub holder: Holder,
    /// Where each lies in the buffer.
    pub layout: PackedLayout,
}

/// The parameters of one boundary (or of what lies outside all boundaries).
#[derive(Clone, Debug)]
pub struct Unit {
    /// The boundary's name, e.g. `layers.0`.
    pub name: Arc<str>,
    /// How the model runs it.
    pub placement: Placement,
    /// One pack for each owner, in owner order; then what is sharded, trainable parameters apart
    /// from frozen ones; then at most one that everyone holds.
    pub packs: Vec<Pack>,
}

/// One parameter: its unit, its pack in the unit, its slot in the pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// Index of the unit in plan order.
    pub unit: usize,
    /// Index of the pack in the unit.
    pub pack: usize,
    /// Index of the slot in the pack.
    pub slot: usize,
}
