//! Newton–Schulz by shape, precision and threads, beside what the cores can multiply at most.
//!
//! `newton_schulz/<batch>x<rows>x<cols>/<precision>-<form>/<threads>` counts the flops of the form,
//! a product of two symmetric matrices as one triangle; `peak/<precision>/<threads>` multiplies and
//! adds in registers alone. Criterion prints `Gelem/s`, to be read as GFLOP/s; a table of medians
//! and of their share of the `f32` peak follows at the end.
//!
//! `DMUON_BENCH_LARGE=1` adds the shapes of Llama 3 8B, which take minutes.

#![expect(clippy::print_stdout, reason = "the table of shares is what the bench is for")]

mod peak;
mod table;

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use dmuon_core::newton_schulz::{
    Form, NewtonSchulz, NewtonSchulzConfig, Parallelism, Precision, Workspace,
};

/// `[batch, rows, cols]`: squares, wide ones, batches, and the matrices of Qwen 2.5 0.5B.
const SHAPES: [[usize; 3]; 10] = [
    [1, 512, 512],
    [1, 1024, 1024],
    [1, 2048, 2048],
    [1, 1024, 4096],
    [1, 768, 3072],
    [8, 512, 2048],
    [74, 24, 10240],
    [1, 896, 896],
    [1, 128, 896],
    [1, 896, 4864],
];

/// Llama 3 8B.
const LARGE_SHAPES: [[usize; 3]; 2] = [[1, 4096, 4096], [1, 4096, 14336]];

const THREADS: [usize; 2] = [1, 2];

/// What is asked for; where `Auto` and the precision in force make two of them alike, one runs.
const WAYS: [(Precision, Form); 4] = [
    (Precision::F32, Form::Direct),
    (Precision::F32, Form::Gram),
    (Precision::Bf16Products, Form::Direct),
    (Precision::F32, Form::Auto),
];

/// Numbers of both signs without a pattern that a kernel could profit from.
fn noise(len: usize) -> Vec<f32> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..len).map(|_| next()).collect()
}

fn newton_schulz(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("newton_schulz");
    group.sample_size(10).measurement_time(Duration::from_secs(1));
    group.warm_up_time(Duration::from_millis(200));
    let large = std::env::var_os("DMUON_BENCH_LARGE").is_some();
    for shape in SHAPES.into_iter().chain(LARGE_SHAPES.into_iter().filter(|_| large)) {
        let [batch, rows, cols] = shape;
        let input = noise(batch * rows * cols);
        let mut out = vec![0.0; input.len()];
        for (way, run) in ways(rows, cols) {
            let flops = batch as u64 * run.flops(rows, cols);
            group.throughput(Throughput::Elements(flops));
            for threads in THREADS {
                let name = format!("{batch}x{rows}x{cols}/{way}");
                let mut workspace = Workspace::new(parallelism(threads));
                group.bench_function(BenchmarkId::new(&name, threads), |bencher| {
                    table::timed(bencher, (&name, threads, flops), || {
                        run.orthogonalize_batch(&mut workspace, black_box(&input), shape, &mut out)
                    });
                });
            }
        }
    }
    group.finish();
    table::print();
}

/// The runs of a shape that differ, by precision and form in force.
fn ways(rows: usize, cols: usize) -> Vec<(String, NewtonSchulz)> {
    let mut ways: Vec<(String, NewtonSchulz)> = Vec::new();
    for (precision, form) in WAYS {
        let config = NewtonSchulzConfig::new().with_form(form).with_precision(precision);
        let run = NewtonSchulz::new(config).expect("the default schedule is valid");
        let name = format!("{:?}-{:?}", run.precision(rows, cols), run.form(rows, cols));
        if ways.iter().all(|(known, _)| *known != name) {
            ways.push((name, run));
        }
    }
    ways
}

fn parallelism(threads: usize) -> Parallelism {
    Parallelism::Threads(NonZeroUsize::new(threads).expect("thread counts are not zero"))
}

criterion_group!(benches, peak::peak, newton_schulz);
criterion_main!(benches);
