//! Medians of what was measured, as GFLOP/s and as a share of the peak of the same run.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use criterion::Bencher;

/// What was measured, by name and threads.
static SAMPLES: Mutex<BTreeMap<(String, usize), Samples>> = Mutex::new(BTreeMap::new());

struct Samples {
    /// Flops of an iteration.
    flops: u64,
    /// Seconds of an iteration, one for each sample.
    seconds: Vec<f64>,
}

/// Times `work` for criterion and for the table.
pub(crate) fn timed<R>(
    bencher: &mut Bencher<'_>,
    (name, threads, flops): (&str, usize, u64),
    mut work: impl FnMut() -> R,
) {
    bencher.iter_custom(|iterations| {
        let start = Instant::now();
        (0..iterations).for_each(|_| drop(black_box(work())));
        let elapsed = start.elapsed();
        let mut samples = SAMPLES.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = samples
            .entry((name.to_owned(), threads))
            .or_insert(Samples { flops, seconds: Vec::new() });
        entry.seconds.push(elapsed.as_secs_f64() / iterations as f64);
        elapsed
    });
}

/// Prints one line for everything measured, the peaks among them.
pub(crate) fn print() {
    let mut samples = SAMPLES.lock().unwrap_or_else(PoisonError::into_inner);
    let rates: BTreeMap<_, _> = samples
        .iter_mut()
        .map(|(key, Samples { flops, seconds })| {
            seconds.sort_by(f64::total_cmp);
            let median = seconds[seconds.len() / 2];
            (key.clone(), (median, *flops as f64 / median))
        })
        .collect();
    println!("| matrices, precision and form | threads | ms | GFLOP/s | share of the f32 peak |");
    println!("|---|---|---|---|---|");
    for ((name, threads), (median, rate)) in &rates {
        let peak = rates.get(&("peak/F32".to_owned(), *threads));
        let share = peak.map_or(f64::NAN, |(_, peak)| 100.0 * rate / peak);
        let (milliseconds, gigaflops) = (1e3 * median, rate / 1e9);
        println!("| {name} | {threads} | {milliseconds:.2} | {gigaflops:.0} | {share:.0} % |");
    }
}
