//! Who is timed, and how each is started.

use crate::measure::{self, Times};
use dmuon_core::{Collectives, EngineOptions, Error, Verify, World, launch_with, run_rank};
use dmuon_hccl::{LaunchSpec, mpi};
use std::{
    env,
    ffi::OsString,
    fmt,
    process::{Command, Stdio},
};

/// Tells a process under `mpiexec` whose collectives to time.
const COLLECTIVES: &str = "DMUON_BENCH_COLLECTIVES";

/// PyTorch's side.
const GLOO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/peers/gloo.py");

/// One way to run collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    /// Ranks are threads, which share memory.
    Threads,
    /// Processes over MPI, sums in the order of threads.
    Ordered,
    /// Processes over MPI, the library's own collectives.
    Library,
    /// Processes of PyTorch's.
    Gloo,
}

impl Contender {
    pub(crate) const ALL: [Self; 4] = [Self::Threads, Self::Ordered, Self::Library, Self::Gloo];

    /// Whether it can be timed on this machine.
    pub(crate) fn is_here(&self) -> bool {
        let quiet =
            |mut command: Command| command.stderr(Stdio::null()).stdout(Stdio::null()).status();
        let mut torch = Command::new(python());
        torch.args(["-c", "import torch.distributed as d; assert d.is_gloo_available()"]);
        *self != Self::Gloo || quiet(torch).is_ok_and(|status| status.success())
    }

    /// One turn with `num_ranks` ranks.
    pub(crate) fn measure(self, num_ranks: usize) -> Result<Times, String> {
        let ranks = num_ranks.to_string();
        match self {
            Self::Threads => threads(num_ranks).map_err(|error| error.to_string()),
            Self::Ordered | Self::Library => {
                let program = env::current_exe().map_err(|error| error.to_string())?;
                let mut command = Command::new(program_of("DMUON_MPIEXEC", "mpiexec"));
                command.args(["-n", &ranks]).arg(program).env(COLLECTIVES, self.to_string());
                times_from(command)
            }
            Self::Gloo => {
                let mut command = Command::new(python());
                command.args([GLOO, "--ranks", &ranks]).arg("--requests").arg(measure::requests());
                times_from(command)
            }
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Threads => "threads",
            Self::Ordered => "ordered",
            Self::Library => "library",
            Self::Gloo => "gloo",
        })
    }
}

/// Under `mpiexec`: times what the parent asked for; rank 0 tells it.
pub(crate) fn as_rank(spec: &LaunchSpec) -> Result<(), String> {
    let collectives = match env::var(COLLECTIVES).as_deref() {
        Ok("library") => Collectives::Library,
        _ => Collectives::Ordered,
    };
    let options = EngineOptions::default().with_collectives(collectives).with_verify(Verify::Never);
    let run = || -> Result<Times, Error> {
        let process = mpi::join(spec, &options)?;
        let times = run_rank(&process, |world| measure::times(&world));
        process.leave()?;
        times
    };
    let times = run().map_err(|error| format!("rank {}: {error}", spec.rank))?;
    if spec.rank.0 == 0 {
        println!("{}", times.to_json());
    }
    Ok(())
}

fn threads(num_ranks: usize) -> Result<Times, Error> {
    let ranks =
        launch_with(num_ranks, &EngineOptions::default(), |world: World| measure::times(&world))?;
    Ok(ranks.into_iter().next().unwrap_or_default())
}

/// Runs a program whose output is its times.
fn times_from(mut command: Command) -> Result<Times, String> {
    let output = Command::output(command.stderr(Stdio::inherit()));
    let output = match output {
        Ok(output) => output,
        Err(error) => return Err(format!("{:?}: {error}", command.get_program())),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    match Times::from_json(&text) {
        Some(times) if output.status.success() => Ok(times),
        _ => Err(format!("{:?} ended with {}: {text}", command.get_program(), output.status)),
    }
}

fn python() -> OsString {
    program_of("DMUON_PYTHON", "python3")
}

fn program_of(variable: &str, default: &str) -> OsString {
    env::var_os(variable).unwrap_or_else(|| default.into())
}
