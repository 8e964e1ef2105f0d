//! What a run should move between ranks by its plan, and what it did move: payload in bytes.

use std::collections::BTreeMap;

use dmuon::partition::{ElemBytes, Traffic};
use dmuon::{Dedicated, FloatType, MeshShape, Mode, OpKind, Route};

/// The boundary that nobody reads in backward: where an embedding's gradient goes depends on the
/// tokens alone. dmuon learns that from the first step.
const UNREAD: &str = "embed";

/// Payload of all ranks together, in bytes, by what is done how often.
#[derive(Debug)]
pub(crate) struct Predicted {
    mode: Mode,
    /// Whole weights handed out within replicas: to forward, and in z3 again to backward.
    weights: u64,
    /// The part of them that only the first step's backward gets.
    unread: u64,
    /// Gradients to owners, to whoever holds the part, or to everyone; within replicas.
    gradients: u64,
    /// The same between replicas.
    replicate_gradients: u64,
    /// New weights on their way to the other replicas.
    publish: u64,
}

impl Predicted {
    /// What the plan and the routes say, with weights in `compute` and gradients in `f32`.
    pub(crate) fn new(dedicated: &Dedicated, compute: FloatType) -> Self {
        let (mode, mesh) = (dedicated.mode(), dedicated.mesh().shape());
        let bytes = ElemBytes { weight: compute.num_bytes(), gradient: FloatType::F32.num_bytes() };
        let owned = Traffic::predict(dedicated.plan(), Mode::Z2, bytes);
        let replicas = mesh.replicate();
        let mut this = Self {
            mode,
            weights: (replicas * owned.weights_per_micro_batch()) as u64,
            unread: 0,
            gradients: (replicas * owned.gradients_per_sync()) as u64,
            replicate_gradients: owned.replicate_gradients_per_step() as u64,
            publish: owned.publish_per_step() as u64,
        };
        for ((boundary, route), elems) in not_owned(dedicated) {
            match route {
                Route::AdamWSharded => this.add_sharded(mesh, bytes, boundary, elems),
                _ => this.add_replicated(mesh, bytes, elems),
            }
        }
        this
    }

    /// Every rank of a replica keeps one part of a sharded boundary, sends it to all others, and is
    /// sent its gradients by all others.
    fn add_sharded(&mut self, mesh: MeshShape, bytes: ElemBytes, boundary: &str, elems: usize) {
        let (replicate, shard) = (mesh.replicate(), mesh.shard());
        let part = elems.div_ceil(shard);
        let handed_out = replicate * shard * (shard - 1) * part;
        self.weights += (handed_out * bytes.weight) as u64;
        if boundary == UNREAD {
            self.unread += (handed_out * bytes.weight) as u64;
        }
        self.gradients += (handed_out * bytes.gradient) as u64;
        // Each part is averaged between the ranks that hold it.
        self.replicate_gradients += (shard * all_reduced(replicate, part) * bytes.gradient) as u64;
    }

    fn add_replicated(&mut self, mesh: MeshShape, bytes: ElemBytes, elems: usize) {
        let (replicate, shard) = (mesh.replicate(), mesh.shard());
        self.gradients += (replicate * all_reduced(shard, elems) * bytes.gradient) as u64;
        self.replicate_gradients += (shard * all_reduced(replicate, elems) * bytes.gradient) as u64;
    }

    /// Of `steps` with so many micro-batches each, `skipped` of which published nothing.
    pub(crate) fn of_run(&self, steps: u64, micro_batches: u64, skipped: u64) -> u64 {
        let weights = match self.mode {
            // Kept from the first micro-batch's forward to the last one's backward.
            Mode::Z2 => steps * self.weights,
            Mode::Z3 => {
                let in_backward = steps * (self.weights - self.unread) + self.unread;
                micro_batches * (steps * self.weights + in_backward)
            }
        };
        let gradients = steps * (self.gradients + self.replicate_gradients);
        weights + gradients + (steps - skipped) * self.publish
    }

    /// Weights, gradients, and all that goes between replicas, in a later step of one micro-batch.
    pub(crate) fn of_step(&self) -> [u64; 3] {
        let weights = match self.mode {
            Mode::Z2 => self.weights,
            Mode::Z3 => 2 * self.weights - self.unread,
        };
        [weights, self.gradients, self.replicate_gradients + self.publish]
    }
}

/// Elements of trainable parameters that no rank owns, by boundary and route.
fn not_owned(dedicated: &Dedicated) -> BTreeMap<(&str, Route), usize> {
    let mut elems = BTreeMap::new();
    for entry in &dedicated.routes().entries {
        if matches!(entry.route, Route::AdamWSharded | Route::Replicated) {
            let sum: &mut usize = elems.entry((&*entry.boundary, entry.route)).or_default();
            *sum += entry.shape.iter().product::<usize>();
        }
    }
    elems
}

/// What the ranks of a group send to sum `elems` and hand the result to all of them.
fn all_reduced(group: usize, elems: usize) -> usize {
    2 * (group - 1) * elems
}

/// Payload this rank has moved: weights received, gradients sent.
pub(crate) fn moved(dedicated: &Dedicated) -> u64 {
    use OpKind::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
    let counters = dedicated.mesh().world().recorder().counters();
    let of = |group: &str, ops: &[OpKind]| -> u64 {
        ops.iter().map(|&op| counters.of_group(group, op).payload_bytes).sum()
    };
    of("shard/weights", &[Broadcast, AllGather])
        + of("shard/gradients", &[Reduce, ReduceScatter, AllReduce])
        + of("replicate/weights", &[Broadcast])
        + of("replicate/gradients", &[Reduce, AllReduce])
}

/// Bytes as megabytes, for people.
pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}
