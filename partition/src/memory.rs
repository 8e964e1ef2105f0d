//! How many bytes of weights a plan puts on each rank at the peak of a step.

use crate::{Mode, Plan, Rank};
use serde::{Deserialize, Serialize};

/// Weight bytes of one rank, in the dtype of the packed buffers. Master weights of another dtype,
/// momentum and gradients are not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankMemory {
    /// The rank.
    pub rank: Rank,
    /// Kept at all times: what the rank owns, and what it holds for owners in other replicas, since
    /// every rank broadcasts its whole shard column within its own replica.
    pub held_bytes: usize,
    /// Received from shard peers and alive at once, at most.
    pub gathered_bytes: usize,
}

impl RankMemory {
    /// Both together.
    pub fn peak_bytes(&self) -> usize {
        self.held_bytes + self.gathered_bytes
    }
}

/// Peak weight bytes of every rank, in order.
///
/// In Z2 all weights of the other shard columns are alive between forward and backward. In Z3 it
/// is those of `1 + prefetch` boundaries: the current one and those on their way. Which ones meet
/// depends on the order in which the model runs, so the largest are taken.
///
/// * `prefetch`: boundaries that are broadcast ahead of their use.
/// * `weight_bytes`: bytes of an element in the packed buffers.
///
/// ```
/// use dmuon_partition::*;
///
/// let matrices = ["h.0.q", "h.1.q", "h.2.q", "h.3.q"].map(|name| Matrix::new(name, 8, 8));
/// let boundaries = BoundaryRule::default().assign(&matrices)?;
/// let plan = Partitioner::new(MeshShape::new(1, 2)?).plan(&matrices, &boundaries)?;
/// let matrix_bytes = 8 * 8 * 4;
/// assert_eq!(weight_memory(&plan, Mode::Z2, 1, 4)[0].peak_bytes(), 4 * matrix_bytes);
/// // Two are owned; of the two others, one is in use at a time without prefetch.
/// assert_eq!(weight_memory(&plan, Mode::Z3, 0, 4)[0].peak_bytes(), 3 * matrix_bytes);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn weight_memory(
    plan: &Plan,
    mode: Mode,
    prefetch: usize,
    weight_bytes: usize,
) -> Vec<RankMemory> {
    let mesh = plan.mesh();
    let alive = match mode {
        Mode::Z2 => plan.boundaries().len(),
        Mode::Z3 => prefetch.saturating_add(1),
    };
    let columns: Vec<(usize, usize)> = held_by_column(plan)
        .into_iter()
        .map(|held| (held.iter().map(|&(_, elems)| elems).sum(), gathered(plan, &held, alive)))
        .collect();
    (0..mesh.world_size())
        .map(Rank)
        .map(|rank| {
            let (held, gathered) = columns[mesh.coordinate(rank).shard];
            RankMemory {
                rank,
                held_bytes: held * weight_bytes,
                gathered_bytes: gathered * weight_bytes,
            }
        })
        .collect()
}

/// For each shard column, the elements that it holds, by boundary, boundaries ascending.
fn held_by_column(plan: &Plan) -> Vec<Vec<(usize, usize)>> {
    let mesh = plan.mesh();
    let mut columns = vec![Vec::new(); mesh.shard()];
    for (index, boundary) in plan.boundaries().iter().enumerate() {
        for pack in &boundary.packs {
            columns[mesh.coordinate(pack.owner).shard].push((index, pack.elems));
        }
    }
    columns
}

/// Elements that a column receives for the `alive` boundaries for which it receives most.
fn gathered(plan: &Plan, held: &[(usize, usize)], alive: usize) -> usize {
    let mut received: Vec<usize> =
        plan.boundaries().iter().map(|boundary| boundary.elems).collect();
    for &(index, elems) in held {
        received[index] -= elems;
    }
    received.sort_unstable_by(|a, b| b.cmp(a));
    received.iter().take(alive).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BoundaryRule, Matrix, MeshShape, Partitioner};

    fn plan(replicate: usize, shard: usize) -> Plan {
        let names = (0..6).flat_map(|layer| ["q", "k"].map(|part| format!("h.{layer}.{part}")));
        let matrices: Vec<_> = names.map(|name| Matrix::new(name, 4, 4)).collect();
        let boundaries = BoundaryRule::default().assign(&matrices).unwrap();
        let mesh = MeshShape::new(replicate, shard).unwrap();
        Partitioner::new(mesh).plan(&matrices, &boundaries).unwrap()
    }

    #[test]
    fn z2_holds_everything_on_every_rank() {
        for (replicate, shard) in [(1, 1), (1, 3), (1, 8), (2, 2)] {
            let plan = plan(replicate, shard);
            let memory = weight_memory(&plan, Mode::Z2, 1, 2);
            assert_eq!(memory.len(), replicate * shard);
            assert!(memory.iter().all(|rank| rank.peak_bytes() == 2 * plan.total_elems()));
        }
    }

    #[test]
    fn z3_holds_the_column_and_a_few_boundaries() {
        let boundary = 2 * 4 * 4;
        for rank in weight_memory(&plan(1, 8), Mode::Z3, 1, 1) {
            assert!(rank.gathered_bytes <= 2 * boundary);
            assert!(rank.held_bytes <= 2 * 16);
        }
    }

    #[test]
    fn replicas_hold_the_same_column() {
        let memory = weight_memory(&plan(2, 2), Mode::Z3, 0, 1);
        assert_eq!(memory[0].held_bytes, memory[2].held_bytes);
        assert_eq!(memory[0].held_bytes + memory[1].held_bytes, plan(2, 2).total_elems());
    }

    #[test]
    fn endless_prefetch_is_z2() {
        let plan = plan(1, 3);
        let z2 = weight_memory(&plan, Mode::Z2, 0, 4);
        assert_eq!(weight_memory(&plan, Mode::Z3, usize::MAX, 4), z2);
    }
}
