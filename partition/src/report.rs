//! How evenly a plan loads the ranks, in numbers and as a table.

use crate::{CostModel, PartitionError, Plan, Rank, partitioner::lower_bound};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Bytes of a master weight element.
const MASTER_BYTES: usize = size_of::<f32>();

/// What one rank owns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankLoad {
    /// The rank.
    pub rank: Rank,
    /// Number of matrices.
    pub num_matrices: usize,
    /// Elements of these matrices.
    pub elems: usize,
    /// Bytes of their fp32 master weights; momentum takes as much again.
    pub bytes: usize,
    /// Cost, in the unit of the cost model.
    pub cost: f64,
}

/// Balance of a plan under a cost model. Its `Display` is a table of ranks.
///
/// ```
/// use dmuon_partition::{BoundaryRule, CostModel, Matrix, MeshShape, Partitioner};
///
/// let matrices = ["h.0.q", "h.0.k", "h.1.q", "h.1.k"].map(|name| Matrix::new(name, 8, 8));
/// let boundaries = BoundaryRule::default().assign(&matrices)?;
/// let plan = Partitioner::new(MeshShape::new(1, 2)?).plan(&matrices, &boundaries)?;
/// let report = plan.balance(&CostModel::NewtonSchulz)?;
/// assert_eq!(report.max_over_mean(), 1.0);
/// assert!(report.idle().is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BalanceReport {
    /// Every rank, in order.
    pub ranks: Vec<RankLoad>,
    /// No plan has a smaller largest cost: `max(total / ranks, largest matrix)`.
    pub lower_bound: f64,
    /// Boundaries in which some rank, or some shard column, owns more matrices than its even share
    /// rounded up: because they share a buffer, or because spreading them would have cost more than
    /// the slack.
    pub crowded_boundaries: usize,
}

impl BalanceReport {
    /// Weighs a plan with a cost model, which need not be the one that it was made with.
    ///
    /// # Errors
    /// As [`CostModel::costs`].
    pub fn new(plan: &Plan, cost: &CostModel) -> Result<Self, PartitionError> {
        let costs = cost.costs(plan.matrices().iter().map(|planned| &planned.matrix))?;
        let load = |rank: Rank| {
            let owned = plan.owned_by(rank);
            let elems = owned.iter().map(|&index| plan.matrices()[index].matrix.elems()).sum();
            RankLoad {
                rank,
                num_matrices: owned.len(),
                elems,
                bytes: elems * MASTER_BYTES,
                cost: owned.iter().map(|&index| costs[index]).sum(),
            }
        };
        let world_size = plan.mesh().world_size();
        Ok(Self {
            ranks: (0..world_size).map(Rank).map(load).collect(),
            lower_bound: lower_bound(costs.iter().copied(), world_size),
            crowded_boundaries: crowded(plan),
        })
    }

    /// The largest cost of a rank.
    pub fn max(&self) -> f64 {
        self.ranks.iter().map(|load| load.cost).fold(0.0, f64::max)
    }

    /// The mean cost of a rank, idle ones included.
    pub fn mean(&self) -> f64 {
        self.ranks.iter().map(|load| load.cost).sum::<f64>() / self.ranks.len() as f64
    }

    /// How much longer the busiest rank works than the average one; 1 is perfect.
    pub fn max_over_mean(&self) -> f64 {
        ratio(self.max(), self.mean())
    }

    /// How far the plan is from what no plan can beat; 1 is optimal.
    pub fn max_over_bound(&self) -> f64 {
        ratio(self.max(), self.lower_bound)
    }

    /// The same as [`max_over_mean`](Self::max_over_mean), of elements: memory of the owned state.
    pub fn elems_max_over_mean(&self) -> f64 {
        let max = self.ranks.iter().map(|load| load.elems).max().unwrap_or(0);
        let total: usize = self.ranks.iter().map(|load| load.elems).sum();
        ratio(max as f64, total as f64 / self.ranks.len() as f64)
    }

    /// Ranks that own nothing.
    pub fn idle(&self) -> Vec<Rank> {
        self.ranks.iter().filter(|load| load.num_matrices == 0).map(|load| load.rank).collect()
    }
}

/// Nothing to do is balanced.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 1.0 }
}

fn crowded(plan: &Plan) -> usize {
    let mesh = plan.mesh();
    let is_crowded = |boundary: &&crate::Boundary| {
        let size = boundary.matrices().count();
        let mut columns = vec![0; mesh.shard()];
        for pack in &boundary.packs {
            columns[mesh.coordinate(pack.owner).shard] += pack.matrices.len();
        }
        let slot_share = size.div_ceil(mesh.world_size());
        boundary.packs.iter().any(|pack| pack.matrices.len() > slot_share)
            || columns.iter().any(|&count| count > size.div_ceil(mesh.shard()))
    };
    plan.boundaries().iter().filter(is_crowded).count()
}

impl fmt::Display for BalanceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:>5} {:>8} {:>14} {:>11} {:>7}",
            "rank", "matrices", "elements", "MiB", "cost"
        )?;
        for RankLoad { rank, num_matrices, elems, bytes, cost } in &self.ranks {
            let mib = *bytes as f64 / f64::from(1 << 20);
            let relative = ratio(*cost, self.mean());
            writeln!(f, "{rank:>5} {num_matrices:>8} {elems:>14} {mib:>11.1} {relative:>7.4}")?;
        }
        write!(
            f,
            "cost max/mean {:.4}, max/bound {:.4}, elements max/mean {:.4}, {} idle, {} of the \
             boundaries crowded",
            self.max_over_mean(),
            self.max_over_bound(),
            self.elems_max_over_mean(),
            self.idle().len(),
            self.crowded_boundaries
        )
    }
}
