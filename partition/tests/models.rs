//! Balance on the matrices of real models.
#![expect(clippy::unwrap_used, reason = "helpers of tests may fail as tests do")]

use dmuon_partition::{BoundaryRule, CostModel, Matrix, MeshShape, Partitioner, Plan};

/// A decoder: hidden size, MLP size, key-value size, layers.
#[derive(Clone, Copy)]
struct Model {
    name: &'static str,
    hidden: usize,
    mlp: usize,
    kv: usize,
    layers: usize,
}

const LLAMA3_8B: Model =
    Model { name: "Llama-3 8B", hidden: 4096, mlp: 14336, kv: 1024, layers: 32 };
const QWEN25_7B: Model =
    Model { name: "Qwen2.5 7B", hidden: 3584, mlp: 18944, kv: 512, layers: 28 };
const QWEN25_1_5B: Model =
    Model { name: "Qwen2.5 1.5B", hidden: 1536, mlp: 8960, kv: 256, layers: 28 };
const QWEN25_0_5B: Model =
    Model { name: "Qwen2.5 0.5B", hidden: 896, mlp: 4864, kv: 128, layers: 24 };

fn decoder(model: Model) -> Vec<Matrix> {
    let Model { hidden, mlp, kv, layers, .. } = model;
    let shapes = [
        ("self_attn.q_proj", hidden, hidden),
        ("self_attn.k_proj", kv, hidden),
        ("self_attn.v_proj", kv, hidden),
        ("self_attn.o_proj", hidden, hidden),
        ("mlp.gate_proj", mlp, hidden),
        ("mlp.up_proj", mlp, hidden),
        ("mlp.down_proj", hidden, mlp),
    ];
    stack(layers, &shapes)
}

/// 12 layers, h = 512: four 512 × 512 and two 2048 × 512 a layer.
fn small() -> Vec<Matrix> {
    let shapes = [
        ("attn.q", 512, 512),
        ("attn.k", 512, 512),
        ("attn.v", 512, 512),
        ("attn.o", 512, 512),
        ("mlp.up", 2048, 512),
        ("mlp.down", 512, 2048),
    ];
    stack(12, &shapes)
}

fn stack(layers: usize, shapes: &[(&str, usize, usize)]) -> Vec<Matrix> {
    (0..layers)
        .flat_map(|layer| {
            shapes.iter().map(move |&(name, rows, cols)| {
                Matrix::new(format!("model.layers.{layer}.{name}.weight"), rows, cols)
            })
        })
        .collect()
}

fn plan(matrices: &[Matrix], replicate: usize, shard: usize) -> Plan {
    let boundaries = BoundaryRule::default().assign(matrices).unwrap();
    let mesh = MeshShape::new(replicate, shard).unwrap();
    Partitioner::new(mesh).plan(matrices, &boundaries).unwrap()
}

/// Balanced within `max_over_mean`, nobody idle, and every boundary spread evenly over its owners
/// and over the shard columns.
fn assert_balanced(matrices: &[Matrix], (replicate, shard): (usize, usize), max_over_mean: f64) {
    let report = plan(matrices, replicate, shard).balance(&CostModel::NewtonSchulz).unwrap();
    assert!(report.max_over_mean() <= max_over_mean, "{report}");
    assert!(report.idle().is_empty(), "{report}");
    assert_eq!(report.crowded_boundaries, 0, "{report}");
}

#[test]
#[ignore = "prints the table of docs/partition.md"]
fn print_balance() {
    let cases = [
        (LLAMA3_8B.name, decoder(LLAMA3_8B), 1, 8),
        (LLAMA3_8B.name, decoder(LLAMA3_8B), 2, 4),
        (LLAMA3_8B.name, decoder(LLAMA3_8B), 8, 8),
        (QWEN25_7B.name, decoder(QWEN25_7B), 1, 8),
        (QWEN25_7B.name, decoder(QWEN25_7B), 2, 4),
        (QWEN25_1_5B.name, decoder(QWEN25_1_5B), 1, 16),
        (QWEN25_1_5B.name, decoder(QWEN25_1_5B), 4, 4),
        (QWEN25_0_5B.name, decoder(QWEN25_0_5B), 1, 16),
        (QWEN25_0_5B.name, decoder(QWEN25_0_5B), 2, 8),
        ("12 layers, h = 512", small(), 1, 16),
        ("12 layers, h = 512", small(), 4, 4),
    ];
    println!("| model | mesh | max/mean | max/bound | elements max/mean | idle | crowded |");
    println!("|---|---|---|---|---|---|---|");
    for (name, matrices, replicate, shard) in cases {
        let report = plan(&matrices, replicate, shard).balance(&CostModel::NewtonSchulz).unwrap();
        println!(
            "| {name} | {replicate}×{shard} | {:.4} | {:.4} | {:.4} | {} | {} |",
            report.max_over_mean(),
            report.max_over_bound(),
            report.elems_max_over_mean(),
            report.idle().len(),
            report.crowded_boundaries,
        );
    }
}

#[test]
fn llama_8b_is_balanced_on_8() {
    for mesh in [(1, 8), (2, 4)] {
        assert_balanced(&decoder(LLAMA3_8B), mesh, 1.01);
    }
}

#[test]
fn qwen_7b_is_balanced_on_8() {
    for mesh in [(1, 8), (2, 4)] {
        assert_balanced(&decoder(QWEN25_7B), mesh, 1.02);
    }
}

#[test]
fn qwen_1_5b_is_balanced_on_16() {
    for mesh in [(1, 16), (4, 4)] {
        assert_balanced(&decoder(QWEN25_1_5B), mesh, 1.02);
    }
}

#[test]
fn qwen_0_5b_is_balanced_on_16() {
    for mesh in [(1, 16), (2, 8)] {
        assert_balanced(&decoder(QWEN25_0_5B), mesh, 1.03);
    }
}

#[test]
fn a_small_model_is_balanced_on_16() {
    for mesh in [(1, 16), (4, 4)] {
        assert_balanced(&small(), mesh, 1.06);
    }
}

#[test]
fn the_models_have_the_parameters_they_are_known_for() {
    let billions = |model| decoder(model).iter().map(Matrix::elems).sum::<usize>() as f64 / 1e9;
    // Published totals less embeddings and heads, which are no hidden matrices.
    assert!((billions(LLAMA3_8B) - 6.98).abs() < 0.01);
    assert!((billions(QWEN25_7B) - 6.53).abs() < 0.01);
    assert!((billions(QWEN25_1_5B) - 1.31).abs() < 0.01);
    assert!((billions(QWEN25_0_5B) - 0.36).abs() < 0.01);
}
