//! What dmuon adds to a training step besides Newton–Schulz, in CPU time rather than by the clock.
//!
//! A GPT trains on rank threads, its matrices by Muon and the rest by sharded AdamW. Every span of
//! dmuon's own work (hooks, packing, sums, bookkeeping of the step) is timed by the CPU time of
//! the thread that runs it, and the whole training loop by that of the process, so waiting costs
//! nothing and the parts add up. Prints one line a case, and JSON with `--json`:
//!
//! ```text
//! cargo bench --bench step_overhead -- --tokens 32768 --ranks 2,4 --modes z2,z3
//! ```
//!
//! *Overhead* is everything dmuon adds but the arithmetic of Newton–Schulz and AdamW, over the CPU
//! time of the same step without either: forward, backward and AdamW.

#![expect(clippy::print_stdout, reason = "a benchmark prints")]

#[path = "../../examples/common/model.rs"]
mod model;
mod spans;

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{Device, Int, Tensor, TensorData};
use clap::Parser;
use cpu_time::ProcessTime;
use dmuon::prelude::*;
use model::{Gpt, GptConfig};
use std::time::{Duration, Instant};

/// Measures what dmuon adds to a training step.
#[derive(Parser)]
struct Options {
    /// Tokens in a step, all ranks together; at most 4096 of a rank at once, the rest in turn.
    #[arg(long, default_value_t = 4096)]
    tokens: usize,
    /// World sizes.
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4])]
    ranks: Vec<usize>,
    /// How long weights stay: z2, z3.
    #[arg(long, value_delimiter = ',', default_values_t = [Mode::Z2, Mode::Z3])]
    modes: Vec<Mode>,
    /// Steps timed in each case, after one that is not.
    #[arg(long, default_value_t = 2)]
    steps: usize,
    /// Width of the model.
    #[arg(long, default_value_t = 512)]
    width: usize,
    /// Blocks of the model.
    #[arg(long, default_value_t = 8)]
    layers: usize,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Length of a sequence.
const SEQ_LEN: usize = 256;
/// Most sequences of a rank in one forward: memory, not arithmetic, is the limit.
const SEQUENCES: usize = 16;

/// CPU time of one case, summed over ranks and divided by steps.
#[derive(serde::Serialize)]
struct Case {
    ranks: usize,
    mode: String,
    tokens: usize,
    /// Seconds by span.
    spans: Vec<(&'static str, f64)>,
    total_seconds: f64,
    clock_seconds: f64,
    /// What dmuon adds but Newton–Schulz, over forward, backward and AdamW.
    overhead: f64,
    /// Newton–Schulz over the same.
    newton_schulz: f64,
}

fn main() -> dmuon::Result<()> {
    let options = Options::parse();
    // Ranks fill the cores; threads that wait for each other would only add noise.
    let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1);
    one_thread.build_global().expect("nothing has used the pool yet");
    spans::install();
    for &ranks in &options.ranks {
        for &mode in &options.modes {
            let case = measure(&options, ranks, mode)?;
            if options.json {
                println!("{}", serde_json::to_string(&case).expect("numbers and names"));
            } else {
                case.print();
            }
        }
    }
    Ok(())
}

fn measure(options: &Options, ranks: usize, mode: Mode) -> dmuon::Result<Case> {
    let device = device(mode);
    device.seed(1);
    let Options { layers, width, .. } = *options;
    let model = GptConfig { layers, width, heads: width / 64, seq_len: SEQ_LEN }.init(&device);
    dmuon::initialize(&model);
    let of_ranks = dmuon::launch(ranks, |world| train(options, world, &model, mode))?;
    let steps = options.steps as f64;
    let seconds = |time: Duration| time.as_secs_f64() / steps;
    let Measured { cpu, clock, spans } = &of_ranks[0];
    let spans: Vec<(&'static str, f64)> =
        spans.iter().map(|(name, time)| (*name, seconds(*time))).collect();
    let total_seconds = seconds(*cpu);
    let of = |name: &str| spans.iter().find(|span| span.0 == name).map_or(0.0, |span| span.1);
    let all: f64 = spans.iter().map(|span| span.1).sum();
    let arithmetic = of("orthogonalize") + of("adamw");
    let base = total_seconds - all + of("adamw");
    Ok(Case {
        ranks,
        mode: mode.to_string(),
        tokens: options.tokens,
        total_seconds,
        clock_seconds: seconds(*clock),
        overhead: (all - arithmetic) / base,
        newton_schulz: of("orthogonalize") / base,
        spans,
    })
}

/// Z3 frees weights where the tape computes views again.
fn device(mode: Mode) -> Device {
    let device = Device::flex().autodiff();
    if mode == Mode::Z3 { device.gradient_checkpointing() } else { device }
}

/// What the timed steps of all ranks took.
struct Measured {
    cpu: Duration,
    clock: Duration,
    spans: spans::Totals,
}

/// Trains one rank; what it measures is of all ranks, which begin and end together.
fn train(options: &Options, world: World, model: &Gpt, mode: Mode) -> dmuon::Result<Measured> {
    let device = device(mode);
    let mesh = Mesh::new(&world)?;
    let (model, _) = Dedicate::new(&mesh).mode(mode).apply(model.clone().fork(&device))?;
    let (mut model, handle) = FullyShard::new(&mesh).apply(model)?;
    let mut muon = MuonConfig::new().init(&handle)?;
    let sequences = (options.tokens / SEQ_LEN / world.size()).max(1);
    let (mut cpu, mut clock) = (ProcessTime::now(), Instant::now());
    for step in 0..=options.steps {
        if step == 1 {
            handle.sum(&[])?;
            spans::take();
            (cpu, clock) = (ProcessTime::now(), Instant::now());
            handle.sum(&[])?;
        }
        let backward = |count: usize| {
            let (bytes, targets) = batch(world.rank().0 + step, count, &device);
            GradientsParams::from_grads(model.loss(bytes, targets).backward(), &model)
        };
        let rest = sequences.saturating_sub(SEQUENCES).div_ceil(SEQUENCES);
        handle.no_sync(|| (0..rest).for_each(|_| drop(backward(SEQUENCES))));
        let gradients = backward(sequences - rest * SEQUENCES);
        model = muon.step(0.01, model, gradients)?;
    }
    handle.sum(&[])?;
    let (cpu, clock) = (cpu.elapsed(), clock.elapsed());
    let spans = if world.rank() == Rank(0) { spans::take() } else { spans::Totals::new() };
    Ok(Measured { cpu, clock, spans })
}

/// Bytes of no meaning, and what follows each.
fn batch(seed: usize, count: usize, device: &Device) -> (Tensor<2, Int>, Tensor<2, Int>) {
    let byte = |at: usize| ((at * 7919 + seed * 104_729) % 251) as i32;
    let tensor = |shift: usize| {
        let bytes: Vec<i32> = (0..count * SEQ_LEN).map(|at| byte(at + shift)).collect();
        Tensor::from_data(TensorData::new(bytes, [count, SEQ_LEN]), device)
    };
    (tensor(0), tensor(1))
}

impl Case {
    fn print(&self) {
        let Self { ranks, mode, tokens, total_seconds, overhead, newton_schulz, .. } = self;
        println!(
            "{ranks} ranks, {mode}, {tokens} tokens: {total_seconds:.2} s of CPU a step, of which \
             dmuon {:.2} % and Newton-Schulz {:.2} % of the AdamW step",
            100.0 * overhead,
            100.0 * newton_schulz
        );
        for (name, seconds) in &self.spans {
            println!("    {name:16} {:9.3} ms", 1e3 * seconds);
        }
    }
}
