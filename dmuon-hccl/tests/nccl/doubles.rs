//! Runs ranks as threads of a process in which driver and NCCL are test doubles.
//!
//! The dynamic loader looks for the driver where the environment said when the process started, so
//! every world has a process of its own.

use crate::again;
use dmuon_core::{EngineOptions, Rank, Result, World, run_rank};
use dmuon_hccl::{LaunchSpec, Rendezvous, nccl};
use libloading::Library;
use std::{
    env,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

/// What the process's environment says beside where the doubles are.
pub(crate) type Settings<'a> = &'a [(&'a str, &'a str)];

/// The setting that puts another library in the driver's place.
pub(crate) const DRIVER: &str = "DMUON_TEST_DRIVER";

/// Every rank's outcome. The calling thread must have the test's name.
pub(crate) fn run(
    num_ranks: usize,
    options: &EngineOptions,
    settings: Settings<'_>,
    body: fn(World) -> Result<()>,
) -> Vec<Result<()>> {
    run_each(num_ranks, settings, |spec| as_rank(spec, options, body))
}

/// As [`run`], for ranks that do more than their body.
pub(crate) fn run_each(
    num_ranks: usize,
    settings: Settings<'_>,
    rank: impl Fn(&LaunchSpec) -> Result<()> + Sync,
) -> Vec<Result<()>> {
    let start = |folder: &Path, program: &Path| command(folder, program, settings);
    again::run(num_ranks, start, |folder| {
        thread::scope(|scope| {
            for number in 0..num_ranks {
                let (rank, spec) = (&rank, spec(number, num_ranks, folder));
                scope.spawn(move || again::leave(folder, spec.rank, &rank(&spec)));
            }
        });
    })
}

/// Joins, runs the body, leaves.
pub(crate) fn as_rank(
    spec: &LaunchSpec,
    options: &EngineOptions,
    body: fn(World) -> Result<()>,
) -> Result<()> {
    let process = nccl::join(spec, options)?;
    let outcome = run_rank(&process, body);
    let left = process.leave();
    outcome.and(left)
}

/// How many pieces of memory, streams and events the doubles' devices have; to be asked by ranks.
pub(crate) fn num_live() -> usize {
    let path = env::var_os("DMUON_NCCL_LIB").expect("ranks are told where the double is");
    // SAFETY: the double runs nothing when it is loaded, which it has been.
    let double = unsafe { Library::new(path) }.expect("it has been loaded");
    // SAFETY: the double has this signature for this name.
    let ask = unsafe { double.get::<unsafe extern "C" fn() -> usize>(b"testdouble_num_live") };
    let ask = ask.expect("the double has it");
    // SAFETY: takes nothing.
    unsafe { ask() }
}

/// Ranks meet at a file, and each has the device of its number.
fn spec(rank: usize, num_ranks: usize, folder: &Path) -> LaunchSpec {
    let mut spec = LaunchSpec::new(Rank(rank), num_ranks);
    spec.local_rank = Some(rank);
    spec.rendezvous = Some(Rendezvous::File { path: folder.join("meeting") });
    spec
}

/// The binary, in an environment where the doubles are found by the names of the real ones.
fn command(folder: &Path, program: &Path, settings: Settings<'_>) -> Command {
    let double = double(program);
    let other = settings.iter().find(|(name, _)| *name == DRIVER).map(|(_, path)| Path::new(path));
    for name in ["libcuda.so", "libcuda.so.1"] {
        let driver = other.unwrap_or(&double);
        symlink(driver, folder.join(name)).expect("the temporary folder is writable");
    }
    let others = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let search = env::join_paths([folder.to_owned()].into_iter().chain(env::split_paths(&others)));
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", search.expect("no colons in temporary folders"));
    command.env("DMUON_NCCL_LIB", &double).envs(settings.iter().copied());
    command
}

/// Cargo builds examples beside tests.
fn double(program: &Path) -> PathBuf {
    let debug = program.parent().and_then(Path::parent).expect("tests are in deps");
    let double = debug.join("examples/libgpu_double.so");
    let hint = "build it: cargo build -p dmuon-hccl --features cuda --example gpu_double";
    assert!(double.exists(), "{} is missing; {hint}", double.display());
    double
}
