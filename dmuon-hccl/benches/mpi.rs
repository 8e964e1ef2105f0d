//! Times collectives over MPI, ours in the canonical order beside the library's own.
//!
//! `cargo bench -p dmuon-hccl --features mpi` starts itself under `mpiexec` with four processes, or
//! as many as `DMUON_BENCH_RANKS` says. Verification is off, as in a release build.
#![expect(clippy::print_stdout, reason = "it prints a table")]

use dmuon_core::{
    Buffer, Call, Collectives, Element, EngineOptions, Error, Group, Op, Result, Verify, run_rank,
};
use dmuon_hccl::{Environment, Launch, LaunchSpec, mpi, read_launch};
use std::{
    env,
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

const MEBIBYTES: [usize; 3] = [1, 8, 64];
const OPS: [Op; 3] = [Op::Broadcast { root: 0 }, Op::Reduce { root: 0 }, Op::AllReduce];
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs whose median is told, after two that warm up.
const NUM_RUNS: usize = 15;

fn main() -> ExitCode {
    match read_launch(None, &Environment::of_process()) {
        Ok(Launch::Process(spec)) => match bench(&spec) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                println!("rank {}: {error}", spec.rank);
                ExitCode::FAILURE
            }
        },
        _ => start_again(),
    }
}

/// As ranks, which find themselves under `mpiexec`.
fn start_again() -> ExitCode {
    let ranks = env::var("DMUON_BENCH_RANKS").unwrap_or_else(|_| "4".into());
    let mpiexec = env::var_os("DMUON_MPIEXEC").unwrap_or_else(|| "mpiexec".into());
    let program = env::current_exe().expect("a bench knows its binary");
    let status = Command::new(mpiexec).args(["-n", &ranks]).arg(program).status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        other => {
            println!("mpiexec: {other:?}");
            ExitCode::FAILURE
        }
    }
}

fn bench(spec: &LaunchSpec) -> Result<()> {
    let ours = times(spec, Collectives::Ordered)?;
    let theirs = times(spec, Collectives::Library)?;
    if spec.rank.0 == 0 {
        println!("{} processes; milliseconds, median of {NUM_RUNS}", spec.world_size);
        println!("{:12} {:>8} {:>10} {:>10} {:>8}", "", "MiB", "ordered", "library", "ratio");
        for ((op, mebibytes, ours), (_, _, theirs)) in ours.into_iter().zip(theirs) {
            let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
            let (ours, theirs) = (ours.as_secs_f64() * 1e3, theirs.as_secs_f64() * 1e3);
            let op = op.kind().to_string();
            println!("{op:12} {mebibytes:>8} {ours:>10.2} {theirs:>10.2} {ratio:>8.2}");
        }
    }
    Ok(())
}

/// The time of every collective at every size, in a world of its own.
fn times(spec: &LaunchSpec, collectives: Collectives) -> Result<Vec<(Op, usize, Duration)>> {
    let options = EngineOptions::default().with_collectives(collectives).with_verify(Verify::Never);
    let process = mpi::join(spec, &options)?;
    let times = run_rank(&process, |world| {
        let group = world.group();
        let mut times = Vec::new();
        for op in OPS {
            for mebibytes in MEBIBYTES {
                times.push((op, mebibytes, median(&*group, op, mebibytes << 18)?));
            }
        }
        Ok::<_, Error>(times)
    });
    process.leave()?;
    times
}

/// From a barrier until everybody has the result.
fn median(group: &dyn Group, op: Op, num_elems: usize) -> Result<Duration> {
    let input = Buffer::from_elements(&vec![1f32; num_elems]).freeze();
    let call = Call::new(op, "bench", Element::F32, num_elems);
    let mut times = Vec::new();
    for _ in 0..NUM_RUNS + 2 {
        barrier(group)?;
        let own = call.input_bytes(group.rank(), group.size()).map(|_| input.clone());
        let start = Instant::now();
        drop(group.start(call.clone(), own)?.wait(PATIENCE)?);
        barrier(group)?;
        times.push(start.elapsed());
    }
    let mut times = times.split_off(2);
    times.sort();
    Ok(times[NUM_RUNS / 2])
}

fn barrier(group: &dyn Group) -> Result<()> {
    group.start(Call::barrier("align"), None)?.wait(PATIENCE).map(drop)
}
