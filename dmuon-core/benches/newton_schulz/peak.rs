//! What the cores multiply and add at most: independent sums in registers, no memory.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};

use crate::{THREADS, table};

/// Rounds of sixteen vector instructions.
const ROUNDS: u64 = 200_000;

pub(crate) fn peak(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("peak");
    group.sample_size(20).measurement_time(Duration::from_secs(1));
    group.warm_up_time(Duration::from_millis(500));
    for (name, work, flops) in instructions() {
        for threads in THREADS {
            let flops = flops * threads as u64;
            group.throughput(Throughput::Elements(flops));
            group.bench_function(BenchmarkId::new(name, threads), |bencher| {
                table::timed(bencher, (&format!("peak/{name}"), threads, flops), || {
                    let spread = |_: rayon::BroadcastContext<'_>| work(black_box(ROUNDS));
                    if threads == 1 {
                        vec![work(black_box(ROUNDS))]
                    } else {
                        rayon::broadcast(spread)
                    }
                });
            });
        }
    }
    group.finish();
}

/// Name, work, and its flops on one thread.
type Instruction = (&'static str, fn(u64) -> f32, u64);

#[cfg(target_arch = "x86_64")]
fn instructions() -> Vec<Instruction> {
    let mut found: Vec<Instruction> = Vec::new();
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: AVX-512 F was detected.
        found.push(("F32", |rounds| unsafe { avx512::multiply_f32(rounds) }, 16 * 32 * ROUNDS));
    }
    if is_x86_feature_detected!("avx512bf16") {
        // SAFETY: AVX512-BF16 was detected.
        found.push(("Bf16", |rounds| unsafe { avx512::multiply_bf16(rounds) }, 16 * 64 * ROUNDS));
    }
    found
}

#[cfg(not(target_arch = "x86_64"))]
fn instructions() -> Vec<Instruction> {
    Vec::new()
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    #[target_feature(enable = "avx512f")]
    pub(super) fn multiply_f32(rounds: u64) -> f32 {
        let mut sums = [_mm512_setzero_ps(); 16];
        let factor = _mm512_set1_ps(black_box(0.5));
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(factor, factor, *sum);
            }
        }
        total(sums)
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) fn multiply_bf16(rounds: u64) -> f32 {
        let mut sums = [_mm512_setzero_ps(); 16];
        let half = _mm512_set1_ps(black_box(0.5));
        let factor = _mm512_cvtne2ps_pbh(half, half);
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, factor, factor);
            }
        }
        total(sums)
    }

    #[target_feature(enable = "avx512f")]
    fn total(sums: [__m512; 16]) -> f32 {
        sums.into_iter().fold(0.0, |total, sum| total + _mm512_reduce_add_ps(sum))
    }
}
