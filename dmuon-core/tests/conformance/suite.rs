//! What an engine must bring to run the suite, and what every case may lean on.

use dmuon_core::{Buffer, Call, Element, Group, Op, Result, SharedBuffer, World};
use std::{sync::mpsc, thread, time::Duration};

/// World sizes every case runs at.
pub(crate) const WORLD_SIZES: [usize; 5] = [1, 2, 3, 4, 8];

/// How long a rank may wait in a case where nothing goes wrong.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// How long a whole case may take.
const CASE_LIMIT: Duration = Duration::from_secs(120);

/// An engine under test: runs one body on every rank and reports each rank's outcome.
pub(crate) trait Engine: Send + Sync + 'static {
    fn run(num_ranks: usize, body: fn(World) -> Result<()>) -> Vec<Result<()>>;
}

/// Instantiates every case for one engine.
macro_rules! conformance {
    ($engine:ty: $($module:ident::{$($case:ident),* $(,)?})*) => {
        $(mod $module {
            $(#[test]
            fn $case() {
                crate::cases::$module::$case::<$engine>();
            })*
        })*
    };
}
pub(crate) use conformance;

/// Runs `body` on every rank of worlds of all sizes and expects success everywhere.
pub(crate) fn at_all_sizes<E: Engine>(body: fn(World) -> Result<()>) {
    for num_ranks in WORLD_SIZES {
        all_succeed::<E>(num_ranks, body);
    }
}

/// Runs `body` on `num_ranks` ranks and expects success everywhere.
pub(crate) fn all_succeed<E: Engine>(num_ranks: usize, body: fn(World) -> Result<()>) {
    for (rank, outcome) in outcomes::<E>(num_ranks, body).into_iter().enumerate() {
        outcome.unwrap_or_else(|error| panic!("rank {rank} of {num_ranks}: {error}"));
    }
}

/// Every rank's outcome as text, `"ok"` for success.
pub(crate) fn texts<E: Engine>(num_ranks: usize, body: fn(World) -> Result<()>) -> Vec<String> {
    let text =
        |outcome: Result<()>| outcome.map_or_else(|error| error.to_string(), |()| "ok".into());
    outcomes::<E>(num_ranks, body).into_iter().map(text).collect()
}

/// Every rank's outcome, or a panic when the case hangs.
pub(crate) fn outcomes<E: Engine>(
    num_ranks: usize,
    body: fn(World) -> Result<()>,
) -> Vec<Result<()>> {
    let (sender, receiver) = mpsc::channel();
    // Named like the test, for engines that start it again in other processes.
    let test = thread::current().name().unwrap_or_default().to_owned();
    let run = move || sender.send(E::run(num_ranks, body));
    thread::Builder::new().name(test).spawn(run).expect("a thread for the case");
    receiver.recv_timeout(CASE_LIMIT).expect("the case hangs or its launch panicked")
}

/// Element `at` of the input that `rank` brings: no two alike, and sums that round.
pub(crate) fn value(rank: usize, at: usize) -> f32 {
    ((at * 31 + rank * 17 + 1) as f32).sin() * 10f32.powi((rank % 5) as i32)
}

/// The input that `rank` brings, starting at element `from`.
pub(crate) fn input(rank: usize, from: usize, num_elems: usize) -> SharedBuffer {
    let values: Vec<f32> = (from..from + num_elems).map(|at| value(rank, at)).collect();
    Buffer::from_elements(&values).freeze()
}

/// Starts a collective over `f32` and waits for it.
pub(crate) fn run(
    group: &dyn Group,
    op: Op,
    num_elems: usize,
    input: Option<SharedBuffer>,
) -> Result<Option<SharedBuffer>> {
    group.start(Call::new(op, "layers.0", Element::F32, num_elems), input)?.wait(PATIENCE)
}

/// Asserts equality bit for bit.
pub(crate) fn assert_bits(actual: &[f32], expected: impl ExactSizeIterator<Item = f32>) {
    assert_eq!(actual.len(), expected.len());
    for (at, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        assert_eq!(actual.to_bits(), expected.to_bits(), "element {at}: {actual} for {expected}");
    }
}

/// Asserts that `sum` is the sum of `values`, added in whatever order: each addition rounds a partial
/// sum, which is no larger than the sum of magnitudes, by half an ulp at most, and twice that lies
/// between any two orders.
pub(crate) fn assert_sum(sum: f32, values: impl Iterator<Item = f32> + Clone) {
    let exact: f64 = values.clone().map(f64::from).sum();
    let magnitude: f64 = values.clone().map(|value| f64::from(value).abs()).sum();
    let num_sums = values.count().saturating_sub(1);
    let tolerance = num_sums as f64 * f64::from(f32::EPSILON) * magnitude;
    let error = (f64::from(sum) - exact).abs();
    assert!(error <= tolerance, "{sum} for {exact}, tolerance {tolerance:e}");
}
