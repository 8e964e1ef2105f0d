//! Runs ranks as threads of a process in which driver and NCCL are test doubles.
//!
//! The dynamic loader looks for the driver where the environment said when the process started, so
//! every world has a process of its own.

use crate::again;
use dmuon_core::{EngineOptions, Rank, Result, World, run_rank};
use dmuon_hccl::{LaunchSpec, Rendezvous, nccl};
use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

/// What the process's environment says beside where the doubles are.
pub(crate) type Settings<'a> = &'a [(&'a str, &'a str)];

/// The setting that puts another library in the driver's place.
pub(crate) const DRIVER: &str = "DMUON_TEST_DRIVER";

/// The setting that takes a function away from the doubles.
pub(crate) const LACKS: &str = "DMUON_TEST_LACKS";

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

/// Ranks meet at a file, and each has the device of its number.
fn spec(rank: usize, num_ranks: usize, folder: &Path) -> LaunchSpec {
    let mut spec = LaunchSpec::new(Rank(rank), num_ranks);
    spec.local_rank = Some(rank);
    spec.rendezvous = Some(Rendezvous::File { path: folder.join("meeting") });
    spec
}

/// The binary, in an environment where the doubles are found by the names of the real ones.
fn command(folder: &Path, program: &Path, settings: Settings<'_>) -> Command {
    let setting = |wanted| settings.iter().find(|(name, _)| *name == wanted).map(|(_, it)| *it);
    let double = match setting(LACKS) {
        Some(function) => without(function, &double(program), folder),
        None => double(program),
    };
    let other = setting(DRIVER).map(Path::new);
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

/// A copy of the double that lacks a function: the symbol has another name there.
fn without(function: &str, double: &Path, folder: &Path) -> PathBuf {
    let mut library = fs::read(double).expect("just built");
    let symbol = format!("\0{function}\0").into_bytes();
    let found: Vec<usize> = (0..library.len() - symbol.len())
        .filter(|at| library[*at..].starts_with(&symbol))
        .collect();
    assert!(!found.is_empty(), "the double has no {function}");
    found.iter().for_each(|at| library[at + 1] = b'_');
    let copy = folder.join("libdouble.so");
    fs::write(&copy, library).expect("the temporary folder is writable");
    copy
}

/// Cargo builds examples beside tests.
fn double(program: &Path) -> PathBuf {
    let debug = program.parent().and_then(Path::parent).expect("tests are in deps");
    let double = debug.join("examples/libgpu_double.so");
    let hint = "build it: cargo build -p dmuon-hccl --features cuda --example gpu_double";
    assert!(double.exists(), "{} is missing; {hint}", double.display());
    double
}
