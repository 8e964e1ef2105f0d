//! Runs one body on every rank of a world of processes that `mpiexec` starts, so that they may die.

use crate::again::{self, leave};
use dmuon_core::{EngineOptions, Result, World, run_rank};
use dmuon_hccl::{Environment, Launch, mpi, read_launch};
use std::{env, path::Path, process::Command};

/// Every rank's outcome. The calling thread must have the test's name.
pub(crate) fn run(
    num_ranks: usize,
    options: &EngineOptions,
    body: fn(World) -> Result<()>,
) -> Vec<Result<()>> {
    let start = |_: &Path, program: &Path| mpiexec(num_ranks, program);
    again::run(num_ranks, start, |folder| as_rank(folder, options, body))
}

fn as_rank(folder: &Path, options: &EngineOptions, body: fn(World) -> Result<()>) {
    let spec = match read_launch(None, &Environment::of_process()) {
        Ok(Launch::Process(spec)) => spec,
        other => panic!("not started by mpiexec: {other:?}"),
    };
    let outcome = mpi::join(&spec, options).and_then(|process| {
        let outcome = run_rank(&process, body);
        leave(folder, spec.rank, &outcome);
        process.leave()
    });
    // Only counts where joining failed.
    leave(folder, spec.rank, &outcome);
}

/// `mpiexec`, told to leave survivors alone.
fn mpiexec(num_ranks: usize, program: &Path) -> Command {
    let mut command = Command::new(env::var_os("DMUON_MPIEXEC").unwrap_or("mpiexec".into()));
    command.args(["-disable-auto-cleanup", "-n", &num_ranks.to_string()]).arg(program);
    command
}
