//! What a plan moves between ranks: logical payload in bytes, before alignment padding.
//!
//! With `P` elements in all matrices, a `G × R` mesh, and `s_w`, `s_g` bytes an element of weights
//! and gradients:
//!
//! | axis | what | how often | bytes | summed over |
//! |---|---|---|---|---|
//! | shard | weights, Z2 | a micro-batch | `(R − 1)·P·s_w` | one shard group |
//! | shard | weights, Z3 | a micro-batch | `2(R − 1)·P·s_w` | one shard group |
//! | shard | gradients | a synchronization | `(R − 1)·P·s_g` | one shard group |
//! | replicate | gradients | a step | `(G − 1)·P·s_g` | all `R` replicate groups |
//! | replicate | publish | a step | `(G − 1)·P·s_w` | all `R` replicate groups |
//!
//! The mean rank's part is a shard-axis figure over `R`, a replicate-axis figure over `G·R`.

use crate::{MeshShape, Mode, Plan};
use serde::{Deserialize, Serialize};

/// Bytes an element on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ElemBytes {
    /// Of a broadcast weight: its compute dtype.
    pub weight: usize,
    /// Of a reduced gradient.
    pub gradient: usize,
}

impl ElemBytes {
    /// Weights and gradients in fp32.
    pub const FP32: Self = Self { weight: 4, gradient: 4 };

    /// Weights in bf16, gradients reduced in fp32.
    pub const BF16_WEIGHTS: Self = Self { weight: 2, gradient: 4 };
}

/// Bytes that one boundary moves. Shard-axis figures are summed over one shard group,
/// replicate-axis figures over all replicate groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundaryTraffic {
    /// Module path of the boundary.
    pub name: String,
    /// Shard axis, a micro-batch: the broadcasts before forward.
    pub forward_bytes: usize,
    /// Shard axis, a micro-batch: the broadcasts before backward, none in Z2.
    pub backward_bytes: usize,
    /// Shard axis, a synchronization: the reductions to the owners' columns.
    pub gradient_bytes: usize,
    /// Replicate axis, a step: the reductions to the owners.
    pub replicate_gradient_bytes: usize,
    /// Replicate axis, a step: owners hand the new weights to their replicate peers.
    pub publish_bytes: usize,
}

/// What a plan moves, boundary by boundary.
///
/// ```
/// use dmuon_partition::*;
///
/// let matrices = ["h.0.q", "h.1.q"].map(|name| Matrix::new(name, 8, 8));
/// let boundaries = BoundaryRule::default().assign(&matrices)?;
/// let plan = Partitioner::new(MeshShape::new(1, 4)?).plan(&matrices, &boundaries)?;
/// let traffic = Traffic::predict(&plan, Mode::Z3, ElemBytes::FP32);
/// assert_eq!(traffic.weights_per_micro_batch(), 2 * 3 * (2 * 8 * 8) * 4);
/// // The first block's input needs no gradient, so its weights are not read in backward.
/// let traffic = traffic.without_backward(0);
/// assert_eq!(traffic.weights_per_micro_batch(), (2 + 1) * 3 * (8 * 8) * 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    mesh: MeshShape,
    boundaries: Vec<BoundaryTraffic>,
}

impl Traffic {
    /// The payload of a plan whose every boundary runs once a micro-batch and is read in backward.
    pub fn predict(plan: &Plan, mode: Mode, bytes: ElemBytes) -> Self {
        let mesh = plan.mesh();
        let (shard_peers, replicate_peers) = (mesh.shard() - 1, mesh.replicate() - 1);
        let of = |boundary: &crate::Boundary| {
            let forward_bytes = shard_peers * boundary.elems * bytes.weight;
            BoundaryTraffic {
                name: boundary.name.clone(),
                forward_bytes,
                backward_bytes: match mode {
                    Mode::Z2 => 0,
                    Mode::Z3 => forward_bytes,
                },
                gradient_bytes: shard_peers * boundary.elems * bytes.gradient,
                replicate_gradient_bytes: replicate_peers * boundary.elems * bytes.gradient,
                publish_bytes: replicate_peers * boundary.elems * bytes.weight,
            }
        };
        Self { mesh, boundaries: plan.boundaries().iter().map(of).collect() }
    }

    /// The same traffic where nothing in backward reads the weights of a boundary, so that they
    /// are not broadcast again: a block whose input needs no gradient, for one.
    ///
    /// # Panics
    /// No boundary has this index.
    pub fn without_backward(mut self, boundary: usize) -> Self {
        self.boundaries[boundary].backward_bytes = 0;
        self
    }

    /// Every boundary, in plan order.
    pub fn boundaries(&self) -> &[BoundaryTraffic] {
        &self.boundaries
    }

    /// Bytes of all weight broadcasts of one micro-batch, summed over one shard group.
    pub fn weights_per_micro_batch(&self) -> usize {
        self.sum(|boundary| boundary.forward_bytes + boundary.backward_bytes)
    }

    /// Bytes of all gradient reductions of one synchronization, summed over one shard group.
    pub fn gradients_per_sync(&self) -> usize {
        self.sum(|boundary| boundary.gradient_bytes)
    }

    /// Bytes of all gradient reductions between replicas, a step, summed over the world.
    pub fn replicate_gradients_per_step(&self) -> usize {
        self.sum(|boundary| boundary.replicate_gradient_bytes)
    }

    /// Bytes of all weights published to replicate peers, a step, summed over the world.
    pub fn publish_per_step(&self) -> usize {
        self.sum(|boundary| boundary.publish_bytes)
    }

    /// One optimizer step of `micro_batches`, whose gradients are reduced `syncs` times within the
    /// shard groups (once, or once a micro-batch) and once between replicas.
    pub fn step(&self, micro_batches: usize, syncs: usize) -> StepTraffic {
        StepTraffic {
            mesh: self.mesh,
            shard_bytes: micro_batches * self.weights_per_micro_batch()
                + syncs * self.gradients_per_sync(),
            replicate_bytes: self.replicate_gradients_per_step() + self.publish_per_step(),
        }
    }

    fn sum(&self, bytes: impl Fn(&BoundaryTraffic) -> usize) -> usize {
        self.boundaries.iter().map(bytes).sum()
    }
}

/// Bytes of one optimizer step, by mesh axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepTraffic {
    mesh: MeshShape,
    /// Shard axis, summed over one shard group.
    pub shard_bytes: usize,
    /// Replicate axis, summed over all replicate groups.
    pub replicate_bytes: usize,
}

impl StepTraffic {
    /// Bytes of the mean rank on the shard axis.
    pub fn shard_bytes_mean_rank(&self) -> f64 {
        self.shard_bytes as f64 / self.mesh.shard() as f64
    }

    /// Bytes of the mean rank on the replicate axis.
    pub fn replicate_bytes_mean_rank(&self) -> f64 {
        self.replicate_bytes as f64 / self.mesh.world_size() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BoundaryRule, Matrix, Partitioner};

    const ELEMS: usize = 2 * (6 * 4 + 10 * 3);
    /// One byte an element: figures are elements.
    const ONE: ElemBytes = ElemBytes { weight: 1, gradient: 1 };

    fn plan(replicate: usize, shard: usize) -> Plan {
        let matrices = [("h.0.a", 6, 4), ("h.0.b", 10, 3), ("h.1.a", 6, 4), ("h.1.b", 10, 3)]
            .map(|(name, rows, cols)| Matrix::new(name, rows, cols));
        let boundaries = BoundaryRule::default().assign(&matrices).unwrap();
        let mesh = MeshShape::new(replicate, shard).unwrap();
        Partitioner::new(mesh).plan(&matrices, &boundaries).unwrap()
    }

    #[test]
    fn one_replica_moves_what_the_group_formulas_say() {
        for ranks in [1, 2, 3, 4, 8] {
            let bytes = ElemBytes { weight: 2, gradient: 4 };
            let z2 = Traffic::predict(&plan(1, ranks), Mode::Z2, bytes);
            let z3 = Traffic::predict(&plan(1, ranks), Mode::Z3, bytes);
            assert_eq!(z2.weights_per_micro_batch(), (ranks - 1) * ELEMS * 2);
            assert_eq!(z3.weights_per_micro_batch(), 2 * (ranks - 1) * ELEMS * 2);
            assert_eq!(z2.gradients_per_sync(), (ranks - 1) * ELEMS * 4);
            assert_eq!(z2.step(1, 1).replicate_bytes, 0);
        }
    }

    #[test]
    fn the_mean_rank_of_a_mesh_moves_what_the_axis_formulas_say() {
        let (g, r, p) = (3.0, 4.0, ELEMS as f64);
        for (mode, passes) in [(Mode::Z2, 2.0), (Mode::Z3, 3.0)] {
            let step = Traffic::predict(&plan(3, 4), mode, ONE).step(1, 1);
            assert_eq!(step.shard_bytes_mean_rank(), passes * (r - 1.0) / r * p);
            assert_eq!(step.replicate_bytes_mean_rank(), 2.0 * (g - 1.0) / g * p / r);
        }
    }

    #[test]
    fn accumulation_repeats_weights_but_not_gradients() {
        let traffic = Traffic::predict(&plan(2, 2), Mode::Z2, ONE);
        let step = traffic.step(4, 1);
        assert_eq!(step.shard_bytes, 4 * ELEMS + ELEMS);
        assert_eq!(step.replicate_bytes, 2 * ELEMS);
    }

    #[test]
    fn an_unread_boundary_is_not_broadcast_again() {
        let all = Traffic::predict(&plan(1, 4), Mode::Z3, ONE);
        let again = all.boundaries()[0].backward_bytes;
        let fewer = all.clone().without_backward(0);
        assert_eq!(fewer.weights_per_micro_batch(), all.weights_per_micro_batch() - again);
        assert_eq!(fewer.gradients_per_sync(), all.gradients_per_sync());
    }
}
