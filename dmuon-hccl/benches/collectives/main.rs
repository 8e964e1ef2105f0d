//! Times collectives of four ranks in turn: as threads, as processes over MPI with sums in the
//! canonical order and with the library's own, and as PyTorch's gloo has them where torch is found.
//!
//! `cargo bench -p dmuon-hccl --features mpi --bench collectives` starts itself under `mpiexec`, and
//! `python3` for gloo. Verification is off, as in a release build. `DMUON_BENCH_RANKS` changes the
//! number of ranks, `DMUON_MPIEXEC` and `DMUON_PYTHON` the programs, `DMUON_BENCH_JSON=FILE` leaves
//! the figures there.
#![expect(clippy::print_stdout, reason = "it prints a table")]

mod contender;
mod measure;
mod table;

use contender::Contender;
use dmuon_hccl::{Environment, Launch, read_launch};
use measure::Times;
use std::{env, process::ExitCode};

/// Every contender's turns; of their medians the median is told.
const NUM_ROUNDS: usize = 3;

fn main() -> ExitCode {
    let outcome = match read_launch(None, &Environment::of_process()) {
        Ok(Launch::Process(spec)) => contender::as_rank(&spec),
        _ => compare(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            println!("{reason}");
            ExitCode::FAILURE
        }
    }
}

/// Lets contenders take turns, and prints what they took.
fn compare() -> Result<(), String> {
    let num_ranks = match env::var("DMUON_BENCH_RANKS") {
        Ok(value) => {
            value.parse().map_err(|_| format!("DMUON_BENCH_RANKS={value} is no number"))?
        }
        Err(_) => 4,
    };
    let contenders: Vec<_> = Contender::ALL.into_iter().filter(Contender::is_here).collect();
    let mut rounds: Vec<Vec<Times>> = contenders.iter().map(|_| Vec::new()).collect();
    for _ in 0..NUM_ROUNDS {
        for (contender, rounds) in contenders.iter().zip(&mut rounds) {
            rounds.push(contender.measure(num_ranks)?);
        }
    }
    let columns: Vec<_> =
        contenders.into_iter().zip(rounds.iter().map(|r| Times::median(r))).collect();
    table::print(num_ranks, &columns);
    match env::var_os("DMUON_BENCH_JSON") {
        Some(path) => table::save(num_ranks, &columns, path.as_ref()),
        None => Ok(()),
    }
}
