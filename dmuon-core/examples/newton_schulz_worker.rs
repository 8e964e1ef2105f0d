//! Runs Newton–Schulz when it is told to, so that another program can time it beside its own.
//!
//! Its argument is the number of threads. Requests and answers are lines of JSON, on standard input and output:
//!
//! ```text
//! {"case": {"input": "x.f32", "shape": [1, 512, 512], "precision": "f32"}}
//!     → {"form": "Direct", "precision": "F32", "kernel": "…"}    what is in force on this CPU
//! "run"
//!     → {"seconds": 0.0123}
//! {"write": "out.f32"}
//!     → {}
//! ```
//!
//! Matrices are files of row-major little-endian `f32`. `benches/peers/newton_schulz.py` drives it.
#![forbid(unsafe_code)]

use std::error::Error;
use std::hint::black_box;
use std::io::{self, BufRead, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Instant;
use std::{env, fs};

use dmuon_core::newton_schulz::{
    NewtonSchulz, NewtonSchulzConfig, Parallelism, Precision, Workspace,
};
use rayon::ThreadPoolBuilder;
use serde::Deserialize;
use serde_json::{Value, json};

type Failure = Box<dyn Error + Send + Sync>;

#[derive(Deserialize, Debug)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    /// What to run from now on.
    Case(CaseRequest),
    /// Orthogonalize once.
    Run,
    /// Write the result of the last run.
    Write(PathBuf),
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct CaseRequest {
    input: PathBuf,
    /// `[batch, rows, cols]`.
    shape: [usize; 3],
    precision: PrecisionName,
}

#[derive(Deserialize, Debug, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum PrecisionName {
    F32,
    Bf16Products,
}

impl From<PrecisionName> for Precision {
    fn from(name: PrecisionName) -> Self {
        match name {
            PrecisionName::F32 => Self::F32,
            PrecisionName::Bf16Products => Self::Bf16Products,
        }
    }
}

/// A matrix with everything that is ready before the clock starts.
struct Case {
    newton_schulz: NewtonSchulz,
    workspace: Workspace,
    shape: [usize; 3],
    input: Vec<f32>,
    out: Vec<f32>,
}

impl Case {
    fn new(request: &CaseRequest, threads: NonZeroUsize) -> Result<Self, Failure> {
        let config = NewtonSchulzConfig::new().with_precision(request.precision.into());
        let input = read(&request.input)?;
        Ok(Self {
            newton_schulz: NewtonSchulz::new(config)?,
            workspace: Workspace::new(Parallelism::Threads(threads)),
            shape: request.shape,
            out: vec![0.0; input.len()],
            input,
        })
    }

    fn in_force(&self) -> Value {
        let [_, rows, cols] = self.shape;
        json!({
            "form": format!("{:?}", self.newton_schulz.form(rows, cols)),
            "precision": format!("{:?}", self.newton_schulz.precision(rows, cols)),
            "kernel": format!("{:?}", self.newton_schulz.kernel(rows, cols)),
        })
    }

    /// Seconds that one run took.
    fn run(&mut self) -> Result<f64, Failure> {
        let Self { newton_schulz, workspace, shape, input, out } = self;
        let started = Instant::now();
        newton_schulz.orthogonalize_batch(workspace, black_box(input), *shape, out)?;
        Ok(started.elapsed().as_secs_f64())
    }
}

fn read(path: &Path) -> io::Result<Vec<f32>> {
    let bytes = fs::read(path)?;
    let (values, _) = bytes.as_chunks();
    Ok(values.iter().map(|&value| f32::from_le_bytes(value)).collect())
}

fn write(path: &Path, values: &[f32]) -> io::Result<()> {
    fs::write(path, values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
}

/// Answers until the input ends. It runs on a thread of the pool, which so has one thread less to
/// wake for a run.
fn serve(threads: NonZeroUsize) -> Result<(), Failure> {
    let mut case = None;
    for line in io::stdin().lock().lines() {
        let answer = match (serde_json::from_str(&line?)?, &mut case) {
            (Request::Case(request), case) => case.insert(Case::new(&request, threads)?).in_force(),
            (Request::Run, Some(case)) => json!({ "seconds": case.run()? }),
            (Request::Write(path), Some(case)) => {
                write(&path, &case.out)?;
                json!({})
            }
            (_, None) => return Err("the first request must be a case".into()),
        };
        let mut out = io::stdout().lock();
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let threads = env::args().nth(1).ok_or("usage: newton_schulz_worker THREADS")?.parse()?;
    let pool = ThreadPoolBuilder::new().num_threads(NonZeroUsize::get(threads)).build()?;
    pool.install(|| serve(threads))
}
