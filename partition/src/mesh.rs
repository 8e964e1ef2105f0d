//! The (replicate, shard) mesh as numbers: shapes, ranks and coordinates, no communication.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A process or thread of the world, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rank(pub usize);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A rank's place in the mesh: `rank = replicate · R + shard`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Coordinate {
    /// Index along the replicate axis, below `MeshShape::replicate`.
    pub replicate: usize,
    /// Index along the shard axis, below `MeshShape::shard`.
    pub shard: usize,
}

impl fmt::Display for Coordinate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "(replicate {}, shard {})", self.replicate, self.shard)
    }
}

/// What makes a mesh shape or a rank in it invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MeshError {
    /// An axis of length zero holds no rank.
    #[error("a {replicate}x{shard} mesh has no ranks: both axes must be at least 1")]
    EmptyAxis {
        /// Length of the replicate axis.
        replicate: usize,
        /// Length of the shard axis.
        shard: usize,
    },
    /// More ranks than can be counted.
    #[error("a {replicate}x{shard} mesh has more ranks than can be counted: choose shorter axes")]
    TooLarge {
        /// Length of the replicate axis.
        replicate: usize,
        /// Length of the shard axis.
        shard: usize,
    },
    /// The mesh does not cover the world exactly.
    #[error(
        "a {mesh} mesh holds {} ranks but the world has {world_size}: choose axes whose product \
         is {world_size}, or start {} ranks",
        mesh.world_size(), mesh.world_size()
    )]
    WorldSize {
        /// The mesh that was asked for.
        mesh: MeshShape,
        /// The number of ranks there are.
        world_size: usize,
    },
}

/// Lengths of the two mesh axes, G replicas of R shards.
///
/// ```
/// use dmuon_partition::{MeshShape, Rank};
///
/// let mesh = MeshShape::new(2, 4)?;
/// assert_eq!(mesh.world_size(), 8);
/// assert_eq!(mesh.rank(mesh.coordinate(Rank(6))), Rank(6));
/// # Ok::<(), dmuon_partition::MeshError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "RawShape")]
pub struct MeshShape {
    /// Invariant: at least 1.
    replicate: usize,
    /// Invariant: at least 1.
    shard: usize,
}

#[derive(Deserialize)]
struct RawShape {
    replicate: usize,
    shard: usize,
}

impl TryFrom<RawShape> for MeshShape {
    type Error = MeshError;

    fn try_from(raw: RawShape) -> Result<Self, MeshError> {
        Self::new(raw.replicate, raw.shard)
    }
}

impl MeshShape {
    /// A mesh of `replicate` replicas with `shard` ranks each.
    ///
    /// # Errors
    /// An axis of length zero, or a product of the axes that overflows.
    pub fn new(replicate: usize, shard: usize) -> Result<Self, MeshError> {
        if replicate == 0 || shard == 0 {
            return Err(MeshError::EmptyAxis { replicate, shard });
        }
        if replicate.checked_mul(shard).is_none() {
            return Err(MeshError::TooLarge { replicate, shard });
        }
        Ok(Self { replicate, shard })
    }

    /// Length of the replicate axis (G).
    pub fn replicate(self) -> usize {
        self.replicate
    }

    /// Length of the shard axis (R).
    pub fn shard(self) -> usize {
        self.shard
    }

    /// Number of ranks in the mesh.
    pub fn world_size(self) -> usize {
        self.replicate * self.shard
    }

    /// The rank at `coordinate`.
    pub fn rank(self, coordinate: Coordinate) -> Rank {
        Rank(coordinate.replicate * self.shard + coordinate.shard)
    }

    /// Where `rank` sits in the mesh.
    pub fn coordinate(self, rank: Rank) -> Coordinate {
        Coordinate { replicate: rank.0 / self.shard, shard: rank.0 % self.shard }
    }

    /// Checks that the mesh covers a world of `world_size` ranks.
    ///
    /// # Errors
    /// The product of the axes is not `world_size`.
    pub fn check_world_size(self, world_size: usize) -> Result<(), MeshError> {
        if self.world_size() == world_size {
            return Ok(());
        }
        Err(MeshError::WorldSize { mesh: self, world_size })
    }
}

impl fmt::Display for MeshShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.replicate, self.shard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_and_ranks_are_inverse() {
        let mesh = MeshShape::new(3, 4).unwrap();
        for rank in (0..12).map(Rank) {
            assert_eq!(mesh.rank(mesh.coordinate(rank)), rank);
        }
        assert_eq!(mesh.coordinate(Rank(7)), Coordinate { replicate: 1, shard: 3 });
    }

    #[test]
    fn impossible_axes_and_wrong_world_are_refused() {
        assert!(MeshShape::new(0, 4).is_err());
        assert!(matches!(MeshShape::new(usize::MAX, 2), Err(MeshError::TooLarge { .. })));
        let error = MeshShape::new(2, 3).unwrap().check_world_size(4).unwrap_err();
        assert!(error.to_string().contains("2x3 mesh holds 6 ranks but the world has 4"));
    }
}
