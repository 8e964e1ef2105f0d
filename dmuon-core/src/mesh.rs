//! The mesh with its groups: separate ones for weights and gradients on each axis.

use crate::{Coordinate, Group, MeshShape, Result, World};
use std::{fmt, sync::Arc};

/// An axis of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Across replicas of the model.
    Replicate,
    /// Across the ranks that divide one replica.
    Shard,
}

/// What travels in a group. Each has a group of its own, so that neither queues behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Weights, on their way from owners.
    Weights,
    /// Gradients, on their way to owners.
    Gradients,
}

/// A rank's place in a (replicate, shard) mesh and its groups along both axes. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Mesh {
    world: World,
    shape: MeshShape,
    /// Indexed by axis, then by stream.
    groups: [[Arc<dyn Group>; 2]; 2],
}

impl Mesh {
    /// A mesh with all ranks on the shard axis.
    ///
    /// # Collective
    /// Every rank of the world.
    ///
    /// # Errors
    /// As [`Work::wait`](crate::Work::wait).
    pub fn new(world: &World) -> Result<Self> {
        Self::with_shape(world, MeshShape::new(1, world.size())?)
    }

    /// `replicate` replicas of `shard` ranks each, for hybrid sharding; see
    /// [`with_shape`](Self::with_shape).
    ///
    /// # Collective
    /// Every rank of the world, with the same numbers.
    ///
    /// # Errors
    /// An axis of length zero, or as [`with_shape`](Self::with_shape).
    pub fn hsdp(world: &World, replicate: usize, shard: usize) -> Result<Self> {
        Self::with_shape(world, MeshShape::new(replicate, shard)?)
    }

    /// A mesh of the given shape: `rank = replicate · R + shard`.
    ///
    /// # Collective
    /// Every rank of the world, with the same shape.
    ///
    /// # Errors
    /// The shape does not cover the world, found before anything is sent; or as
    /// [`Work::wait`](crate::Work::wait).
    pub fn with_shape(world: &World, shape: MeshShape) -> Result<Self> {
        shape.check_world_size(world.size())?;
        let at = shape.coordinate(world.rank());
        let split = |axis, stream| {
            let (color, key) = match axis {
                Axis::Replicate => (at.shard, at.replicate),
                Axis::Shard => (at.replicate, at.shard),
            };
            world.group().split(color, key, &format!("{axis}/{stream}"))
        };
        let mut groups = Vec::new();
        for axis in [Axis::Replicate, Axis::Shard] {
            groups.push([split(axis, Stream::Weights)?, split(axis, Stream::Gradients)?]);
        }
        let [replicate, shard] = [groups.remove(0), groups.remove(0)];
        Ok(Self { world: world.clone(), shape, groups: [replicate, shard] })
    }

    /// The world behind the mesh; its group is for control and set-up.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Lengths of the axes.
    pub fn shape(&self) -> MeshShape {
        self.shape
    }

    /// Where this rank sits.
    pub fn coordinate(&self) -> Coordinate {
        self.shape.coordinate(self.world.rank())
    }

    /// This rank's group along `axis` for `stream`; a rank's place in it is its coordinate.
    pub fn group(&self, axis: Axis, stream: Stream) -> &Arc<dyn Group> {
        &self.groups[axis as usize][stream as usize]
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Replicate => "replicate",
            Self::Shard => "shard",
        })
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Weights => "weights",
            Self::Gradients => "gradients",
        })
    }
}
