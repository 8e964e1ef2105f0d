//! Sharing and reducing 64 MiB between four ranks, beside the memory bandwidth of the machine.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use dmuon_core::{
    Buffer, Call, Element, EngineOptions, Error, Group, Op, Result, SharedBuffer, World,
    launch_with,
};
use std::{
    hint::black_box,
    sync::Mutex,
    time::{Duration, Instant},
};

const NUM_RANKS: usize = 4;
const NUM_BYTES: usize = 64 << 20;
const NUM_ELEMS: usize = NUM_BYTES / size_of::<f32>();
const PATIENCE: Duration = Duration::from_secs(60);

/// A copy between two buffers that are both in memory: the scale for everything below.
fn memory(criterion: &mut Criterion) {
    let source = vec![1u8; NUM_BYTES];
    let mut target = vec![0u8; NUM_BYTES];
    let mut group = criterion.benchmark_group("memory");
    group.throughput(Throughput::Bytes(2 * NUM_BYTES as u64));
    group.bench_function("copy/64MiB", |bencher| {
        bencher.iter(|| target.copy_from_slice(black_box(&source)));
    });
    group.bench_function("sum-of-four/64MiB", |bencher| {
        let inputs: Vec<Vec<f32>> = (0..NUM_RANKS).map(|_| vec![1.0; NUM_ELEMS]).collect();
        let inputs: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
        let mut output = vec![0.0; NUM_ELEMS];
        bencher.iter(|| dmuon_core::reduce::tree_sum(black_box(&inputs), &mut output));
    });
    group.finish();
}

fn collectives(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("collectives");
    group.sample_size(20);
    for (name, op) in [("share", Op::Broadcast { root: 0 }), ("reduce", Op::Reduce { root: 0 })] {
        group.bench_function(format!("{name}/64MiB/4-ranks"), |bencher| {
            bencher.iter_custom(|num_iters| {
                timed(op, num_iters).unwrap_or_else(|error| panic!("{error}"))
            });
        });
    }
    group.finish();
}

/// Runs the collective `num_iters` times and returns rank 0's total.
fn timed(op: Op, num_iters: u64) -> Result<Duration> {
    let total = Mutex::new(Duration::ZERO);
    launch_with(NUM_RANKS, &EngineOptions::default(), |world: World| {
        let (group, input) =
            (world.group(), Buffer::from_elements(&vec![1f32; NUM_ELEMS]).freeze());
        // The first output faults its pages in; later ones come from the pool.
        once(&*group, op, &input)?;
        let mut spent = Duration::ZERO;
        for _ in 0..num_iters {
            group.start(Call::barrier("align"), None)?.wait(PATIENCE)?;
            let start = Instant::now();
            once(&*group, op, &input)?;
            spent += start.elapsed();
        }
        if group.rank() == 0 {
            *total.lock().map_err(|_| Error::message("a rank panicked"))? = spent;
        }
        Ok::<_, Error>(())
    })?;
    total.into_inner().map_err(|_| Error::message("a rank panicked"))
}

fn once(group: &dyn Group, op: Op, input: &SharedBuffer) -> Result<()> {
    let call = Call::new(op, "bench", Element::F32, NUM_ELEMS);
    let own = call.input_bytes(group.rank(), group.size()).map(|_| input.clone());
    black_box(group.start(call, own)?.wait(PATIENCE)?);
    Ok(())
}

criterion_group!(benches, memory, collectives);
criterion_main!(benches);
