//! The passes of an update over 64 MiB slices, beside a copy of the same run: all are memory-bound.
//!
//! Bytes count every slice read and every slice written once.

use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use dmuon_core::update::{AdamW, AdamWState, ApplyUpdate, Momentum, rms};

const LEN: usize = 16 << 20;

/// A pass that touches `slices` slices, reads and writes counted apart.
fn pass(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, slices: u64, mut work: impl FnMut()) {
    group.throughput(Throughput::Bytes(slices * (LEN * size_of::<f32>()) as u64));
    group.bench_function(name, |bencher| bencher.iter(&mut work));
}

fn passes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("passes");
    group.sample_size(20).measurement_time(Duration::from_secs(2));
    group.warm_up_time(Duration::from_millis(500));
    let values = |scale: f32| (0..LEN).map(|i| scale * (i as f32).sin()).collect::<Vec<f32>>();
    let [mut weight, mut buf, mut out] = [0.1, 1.0, 2.0].map(values);
    let (grad, mut second) = (values(1e-3), vec![1e-3; LEN]);
    pass(&mut group, "copy", 2, || out.copy_from_slice(black_box(&grad)));
    pass(&mut group, "rms", 1, || {
        black_box(rms(black_box(&grad)));
    });
    let momentum = Momentum::default();
    pass(&mut group, "momentum", 4, || {
        momentum.step(&mut buf, black_box(&grad), &mut out).expect("lengths agree");
    });
    let update = ApplyUpdate { lr: 1e-3, weight_decay: 0.1, scale: 6.4 };
    pass(&mut group, "apply", 3, || {
        black_box(update.apply(&mut weight, black_box(&out)).expect("lengths agree"));
    });
    let adamw = AdamW { weight_decay: 0.1, ..AdamW::default() };
    pass(&mut group, "adamw", 7, || {
        let state = AdamWState { first: &mut buf, second: &mut second, step: 10 };
        adamw.step(&mut weight, black_box(&grad), state).expect("lengths agree");
    });
    group.finish();
}

criterion_group!(benches, passes);
criterion_main!(benches);
