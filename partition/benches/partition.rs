//! Planning time, from a model on one machine to 100 000 matrices on 10 000 ranks.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use dmuon_partition::{Boundaries, BoundaryRule, Matrix, MeshShape, Partitioner};
use std::time::Duration;

/// Layers of seven matrices, of a few sizes so that not all layers are alike.
fn model(num_matrices: usize) -> Vec<Matrix> {
    let parts = ["q", "k", "v", "o", "gate", "up", "down"];
    (0..num_matrices)
        .map(|index| {
            let (layer, part) = (index / parts.len(), index % parts.len());
            let hidden = 512 + 64 * (layer % 13);
            let (rows, cols) = match part {
                0 | 3 => (hidden, hidden),
                1 | 2 => (hidden / 4, hidden),
                4 | 5 => (hidden * 7 / 2, hidden),
                _ => (hidden, hidden * 7 / 2),
            };
            Matrix::new(format!("model.layers.{layer}.{}.weight", parts[part]), rows, cols)
        })
        .collect()
}

fn plan(matrices: &[Matrix], boundaries: &Boundaries, mesh: MeshShape) -> u64 {
    let plan = Partitioner::new(mesh).plan(matrices, boundaries).expect("a valid model");
    plan.fingerprint()
}

fn partition(c: &mut Criterion) {
    let mut group = c.benchmark_group("partition");
    group.sample_size(10).warm_up_time(Duration::from_millis(500));
    for (num_matrices, replicate, shard) in
        [(224, 1, 8), (10_000, 8, 128), (100_000, 1, 2), (100_000, 1, 10_000), (100_000, 100, 100)]
    {
        let matrices = model(num_matrices);
        let boundaries = BoundaryRule::default().assign(&matrices).expect("layers are boundaries");
        let mesh = MeshShape::new(replicate, shard).expect("axes are not empty");
        let id = BenchmarkId::from_parameter(format!("{num_matrices}@{mesh}"));
        group.bench_function(id, |b| b.iter(|| plan(&matrices, &boundaries, mesh)));
    }
    group.finish();
}

fn boundaries(c: &mut Criterion) {
    let matrices = model(100_000);
    let mut group = c.benchmark_group("boundaries");
    group.sample_size(10).warm_up_time(Duration::from_millis(500));
    group.bench_function("100000", |b| b.iter(|| BoundaryRule::default().assign(&matrices)));
    group.finish();
}

criterion_group!(benches, partition, boundaries);
criterion_main!(benches);
