//! Newton–Schulz per form and thread count, beside the plain GEMM of the same machine and run.
//!
//! `newton_schulz/<batch>x<rows>x<cols>/<form>/<threads>` counts the flops of the form, a product
//! of two symmetric matrices as one triangle; `gemm/<size>/<threads>` counts `2·size³`. Criterion
//! prints `Gelem/s`, to be read as GFLOP/s.

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use dmuon_core::newton_schulz::{Form, NewtonSchulz, NewtonSchulzConfig, Parallelism, Workspace};
use faer::{Accum, Mat, Par};

const SHAPES: [[usize; 3]; 5] =
    [[1, 512, 512], [1, 1024, 1024], [1, 768, 3072], [1, 1024, 4096], [8, 512, 2048]];

const THREADS: [usize; 2] = [1, 2];

const GEMM_SIZES: [usize; 2] = [512, 1024];

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
    group.sample_size(10).measurement_time(Duration::from_secs(2));
    group.warm_up_time(Duration::from_millis(500));
    for shape in SHAPES {
        let [batch, rows, cols] = shape;
        let input = noise(batch * rows * cols);
        let mut out = vec![0.0; input.len()];
        for form in [Form::Direct, Form::Gram] {
            let run = NewtonSchulz::new(NewtonSchulzConfig::new().with_form(form))
                .expect("the default schedule is valid");
            group.throughput(Throughput::Elements(batch as u64 * run.flops(rows, cols)));
            for threads in THREADS {
                let name = format!("{batch}x{rows}x{cols}/{form:?}");
                let mut workspace = Workspace::new(parallelism(threads));
                group.bench_function(BenchmarkId::new(name, threads), |bencher| {
                    bencher.iter(|| {
                        run.orthogonalize_batch(&mut workspace, black_box(&input), shape, &mut out)
                    });
                });
            }
        }
    }
    group.finish();
}

fn gemm(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("gemm");
    group.sample_size(10).measurement_time(Duration::from_secs(2));
    group.warm_up_time(Duration::from_millis(500));
    for size in GEMM_SIZES {
        let data = noise(size * size);
        let lhs = Mat::from_fn(size, size, |i, j| data[i * size + j]);
        let mut out = Mat::zeros(size, size);
        group.throughput(Throughput::Elements(2 * (size as u64).pow(3)));
        for threads in THREADS {
            let par = if threads == 1 { Par::Seq } else { Par::rayon(threads) };
            group.bench_function(BenchmarkId::new(size.to_string(), threads), |bencher| {
                bencher.iter(|| {
                    let lhs = black_box(lhs.as_ref());
                    faer::linalg::matmul::matmul(&mut out, Accum::Replace, lhs, lhs, 1.0, par);
                });
            });
        }
    }
    group.finish();
}

fn parallelism(threads: usize) -> Parallelism {
    Parallelism::Threads(NonZeroUsize::new(threads).expect("thread counts are not zero"))
}

criterion_group!(benches, gemm, newton_schulz);
criterion_main!(benches);
