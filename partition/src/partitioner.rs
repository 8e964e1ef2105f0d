//! From matrices and a mesh to a plan.

use crate::{
    Boundaries, CostModel, Matrix, MeshShape, PartitionError, Plan, PlannedMatrix, Rank,
    improve::improve,
    lpt::place_all,
    matrix::total_elems,
    pack::{Item, Items},
    slots::{Slots, Spread},
};

/// Chooses an owner for every matrix.
///
/// Ranks are loaded evenly by cost: longest processing time first over all slots of the mesh, then
/// moves and swaps. The matrices of one boundary go to different owners, so that several ranks
/// broadcast and reduce at once, where this makes the largest load at most `slack` larger than it
/// would be otherwise; on a mesh with replicas they also go to different shard columns. Small
/// matrices of one boundary may share an owner and a buffer.
///
/// ```
/// use dmuon_partition::{BoundaryRule, Matrix, MeshShape, Partitioner};
///
/// let matrices = [
///     Matrix::new("layers.0.up.weight", 64, 16),
///     Matrix::new("layers.0.down.weight", 16, 64),
/// ];
/// let boundaries = BoundaryRule::default().assign(&matrices)?;
/// let plan = Partitioner::new(MeshShape::new(1, 2)?).plan(&matrices, &boundaries)?;
/// assert_ne!(plan.owner(0), plan.owner(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Partitioner {
    mesh: MeshShape,
    cost: CostModel,
    slack: f64,
    pack_below: usize,
}

/// A largest load within this factor of the lower bound is not worth further search.
const GOOD_ENOUGH: f64 = 1.0005;

impl Partitioner {
    /// One percent: less than the step time varies by itself.
    pub const DEFAULT_SLACK: f64 = 0.01;

    /// 65 536 elements, 128 KiB in bf16: a message below that is dominated by its latency.
    pub const DEFAULT_PACK_BELOW: usize = 1 << 16;

    /// Plans for this mesh with Newton–Schulz costs, 1 % slack and packing below 65 536 elements.
    pub fn new(mesh: MeshShape) -> Self {
        Self {
            mesh,
            cost: CostModel::default(),
            slack: Self::DEFAULT_SLACK,
            pack_below: Self::DEFAULT_PACK_BELOW,
        }
    }

    /// Balances by another cost.
    pub fn with_cost(self, cost: CostModel) -> Self {
        Self { cost, ..self }
    }

    /// Lets the largest load grow by this fraction for the sake of spreading boundaries over
    /// owners: 0.01 is one percent, 0 spreads only where it is free.
    pub fn with_slack(self, slack: f64) -> Self {
        Self { slack, ..self }
    }

    /// Lets matrices of fewer elements share an owner and a buffer with others of their boundary,
    /// up to this many elements together; 0 packs nothing. No shared buffer exceeds an eighth of a
    /// rank's fair share, so a small model is never gathered on one rank.
    pub fn with_pack_below(self, elems: usize) -> Self {
        Self { pack_below: elems, ..self }
    }

    /// Chooses the owners. `boundaries` are those of `matrices`, in the same order.
    ///
    /// The result depends on the arguments alone, so ranks need not talk to agree. It takes
    /// `O(n log n)` time for `n` matrices; fewer matrices than ranks leave ranks idle, and no
    /// matrices make an empty plan.
    ///
    /// # Errors
    /// Shapes without elements, repeated names, boundaries of another list, costs or a slack that
    /// are negative or not finite, or matrices without a measured cost.
    pub fn plan(
        &self,
        matrices: &[Matrix],
        boundaries: &Boundaries,
    ) -> Result<Plan, PartitionError> {
        if !(self.slack.is_finite() && self.slack >= 0.0) {
            return Err(PartitionError::BadSlack { slack: self.slack });
        }
        let of_matrices = boundaries.of_matrices();
        if of_matrices.len() != matrices.len() {
            let (matrices, indices) = (matrices.len(), of_matrices.len());
            return Err(PartitionError::BoundaryCount { matrices, indices });
        }
        total_elems(matrices)?;
        let costs = self.cost.costs(matrices)?;
        let slots = self.mesh.world_size();
        let items = Items::pack(matrices, &costs, of_matrices, self.pack_below, slots);
        let owners = self.owners(&items.list);
        let planned = matrices.iter().zip(of_matrices).zip(&items.of_matrix);
        let planned = planned.map(|((matrix, &boundary), &item)| PlannedMatrix {
            matrix: matrix.clone(),
            boundary,
            owner: owners[item],
        });
        Plan::new(self.mesh, boundaries.names().to_vec(), planned.collect())
    }

    /// Spread if that is affordable, else as much of it as is.
    fn owners(&self, items: &[Item]) -> Vec<Rank> {
        let bound = lower_bound(items.iter().map(|item| item.cost), self.mesh.world_size());
        let mut spread = self.balanced(items, Spread::Keep, bound);
        if spread.max_cost() <= (1.0 + self.slack) * bound {
            return spread.owners();
        }
        let free = self.balanced(items, Spread::Ignore, bound);
        let limit = (1.0 + self.slack) * free.max_cost();
        // Stops as soon as the load is affordable, so boundaries stay spread where they can.
        improve(&mut spread, Spread::Ignore, limit);
        if spread.max_cost() <= limit { spread.owners() } else { free.owners() }
    }

    fn balanced<'a>(&self, items: &'a [Item], spread: Spread, bound: f64) -> Slots<'a> {
        let mut slots = Slots::new(items, self.mesh);
        place_all(&mut slots, spread);
        improve(&mut slots, spread, GOOD_ENOUGH * bound);
        slots
    }
}

/// No placement has a smaller largest load: `max(total / slots, largest)`.
pub(crate) fn lower_bound(costs: impl Iterator<Item = f64>, slots: usize) -> f64 {
    let (total, largest) =
        costs.fold((0.0, 0.0_f64), |(total, largest), cost| (total + cost, largest.max(cost)));
    (total / slots as f64).max(largest)
}
