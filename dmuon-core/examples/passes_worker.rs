//! Runs the passes of an update when it is told to, so that another program can time them beside its
//! own.
//!
//! Its arguments are the number of elements and of threads. Every line of standard input names a pass
//! (`copy`, `momentum` or `adamw`) and is answered by the seconds that one run took. Only the copy uses more
//! than one thread: ranks update what they own, each on its own. `benches/peers/passes.py` drives it.
#![forbid(unsafe_code)]

use std::error::Error;
use std::hint::black_box;
use std::io::{self, BufRead, Write};
use std::time::Instant;
use std::{env, thread};

use dmuon_core::update::{AdamW, AdamWState, Momentum};

type Failure = Box<dyn Error>;

/// What the passes read and write.
struct Slices {
    weight: Vec<f32>,
    grad: Vec<f32>,
    first: Vec<f32>,
    second: Vec<f32>,
    out: Vec<f32>,
    threads: usize,
    step: u64,
}

impl Slices {
    fn new(len: usize, threads: usize) -> Self {
        let values = |scale: f32| (0..len).map(|i| scale * (i as f32).sin()).collect::<Vec<f32>>();
        let [weight, grad, out] = [0.1, 1e-3, 1.0].map(values);
        Self { weight, grad, out, first: vec![0.0; len], second: vec![0.0; len], threads, step: 0 }
    }

    fn run(&mut self, pass: &str) -> Result<f64, Failure> {
        let Self { weight, grad, first, second, out, .. } = self;
        let started = Instant::now();
        match pass {
            "copy" => copy(grad, out, self.threads),
            "momentum" => Momentum::default().step(first, black_box(grad), out)?,
            "adamw" => {
                self.step += 1;
                let adamw = AdamW { weight_decay: 0.1, ..AdamW::default() };
                let state = AdamWState { first, second, step: self.step };
                adamw.step(weight, black_box(grad), state)?;
            }
            other => return Err(format!("no pass is called {other}").into()),
        }
        Ok(started.elapsed().as_secs_f64())
    }
}

/// The scale for everything else: the memory's own speed.
fn copy(from: &[f32], to: &mut [f32], threads: usize) {
    let part = from.len().div_ceil(threads).max(1);
    thread::scope(|scope| {
        for (from, to) in from.chunks(part).zip(to.chunks_mut(part)) {
            scope.spawn(|| to.copy_from_slice(black_box(from)));
        }
    });
}

fn main() -> Result<(), Failure> {
    let usage = "usage: passes_worker ELEMENTS THREADS";
    let mut args = env::args().skip(1).map(|arg| arg.parse().map_err(|_| usage));
    let mut next = || args.next().unwrap_or(Err(usage));
    let mut slices = Slices::new(next()?, next()?);
    for line in io::stdin().lock().lines() {
        let seconds = slices.run(line?.trim().trim_matches('"'))?;
        let mut out = io::stdout().lock();
        writeln!(out, "{seconds}")?;
        out.flush()?;
    }
    Ok(())
}
