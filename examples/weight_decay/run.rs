//! The whole story: a slice of text, one run for each decay, records, summary and figures.

use std::time::Instant;

use serde::Serialize;

use crate::cli::Args;
use crate::common::data::Corpus;
use crate::common::records;
use crate::error::Error;
use crate::figure;
use crate::probe::Probe;
use crate::report::{Record, Reporter, mean_rms};
use crate::theory;
use crate::train::{Job, Trained};

/// One decay in `summary.json`.
#[derive(Serialize, Debug)]
pub(crate) struct Run {
    pub(crate) decay: f64,
    /// What no weight of a block can exceed, as RMS; null without decay.
    pub(crate) ceiling: f64,
    /// Where weights would settle if gradients were noise; null without decay.
    pub(crate) equilibrium: f64,
    /// Lowest of all records, and where.
    best_held_out_loss: f64,
    best_held_out_step: usize,
    weights_sha256: String,
    /// The last record.
    last: Record,
    #[serde(skip)]
    pub(crate) records: Vec<Record>,
}

/// `summary.json`.
#[derive(Serialize, Debug)]
struct Summary<'a> {
    steps: usize,
    epochs: f64,
    ranks: usize,
    batch: usize,
    seq_len: usize,
    layers: usize,
    width: usize,
    muon_lr: f64,
    adamw_lr: f64,
    seed: u64,
    data: &'a str,
    data_sha256: &'a str,
    slice: usize,
    unigram_baseline: f64,
    runs: &'a [Run],
}

/// Runs the example as asked.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let corpus = slice(Corpus::load(args.data.as_deref(), args.seq_len)?, args.slice)?;
    let baseline = corpus.unigram_baseline();
    announce(args, &corpus, baseline);
    let probe = Probe::new(&corpus, args.seq_len);
    let reporter = Reporter::start(&args.out, args.steps)?;
    let mut runs = Vec::new();
    for &decay in &args.decays {
        let started = Instant::now();
        reporter.begin(decay);
        let trained = Job { args, corpus: &corpus, probe: &probe, decay }.train(&reporter)?;
        reporter.end();
        let run = Run::new(args, decay, trained);
        tell(&run, started);
        runs.push(run);
    }
    records::write_json(&args.out.join("summary.json"), &summary(args, &corpus, baseline, &runs))?;
    figure::draw_all(args, &runs, baseline)?;
    println!("\nfigures and records: {}", args.out.display());
    Ok(())
}

/// The first bytes to learn, and as many right after them to judge by.
fn slice(corpus: Corpus, slice: usize) -> Result<Corpus, Error> {
    let found = corpus.train.len();
    if found < 2 * slice {
        return Err(Error::SliceTooLong { found, slice });
    }
    let mut train = corpus.train;
    train.truncate(2 * slice);
    let valid = train.split_off(slice);
    Ok(Corpus { train, valid, ..corpus })
}

impl Run {
    fn new(args: &Args, decay: f64, trained: Trained) -> Self {
        let Trained { records, weights_sha256 } = trained;
        let held_out = |record: &&Record| record.sizes.held_out_loss;
        let best = records.iter().min_by(|a, b| held_out(a).total_cmp(&held_out(b)));
        let Some((best, last)) = best.zip(records.last()) else {
            unreachable!("the last step is recorded")
        };
        Self {
            decay,
            ceiling: theory::ceiling(decay),
            equilibrium: theory::equilibrium(args.muon_lr, decay),
            best_held_out_loss: best.sizes.held_out_loss,
            best_held_out_step: best.step,
            weights_sha256,
            last: last.clone(),
            records,
        }
    }
}

fn summary<'a>(args: &Args, corpus: &'a Corpus, baseline: f64, runs: &'a [Run]) -> Summary<'a> {
    Summary {
        steps: args.steps,
        epochs: args.epochs(args.steps),
        ranks: args.ranks,
        batch: args.batch,
        seq_len: args.seq_len,
        layers: args.layers,
        width: args.width,
        muon_lr: args.muon_lr,
        adamw_lr: args.adamw_lr,
        seed: args.seed,
        data: &corpus.source,
        data_sha256: &corpus.sha256,
        slice: args.slice,
        unigram_baseline: baseline,
        runs,
    }
}

fn announce(args: &Args, corpus: &Corpus, baseline: f64) {
    println!("text      {}", corpus.source);
    println!(
        "          {} bytes to learn, read {:.0} times; {} held out (unigram {baseline:.3})",
        corpus.train.len(),
        args.epochs(args.steps),
        corpus.valid.len()
    );
    println!("model     {} layers of width {}, {} ranks", args.layers, args.width, args.ranks);
    println!(
        "run       {} steps at {} (Muon) and {} (AdamW), with decay {:?} in turn\n",
        args.steps, args.muon_lr, args.adamw_lr, args.decays
    );
}

fn tell(run: &Run, started: Instant) {
    let Run { decay, ceiling, equilibrium, last, .. } = run;
    let Record { train_loss, lost_updates, sizes, .. } = last;
    let bounds = match *decay > 0.0 {
        true => format!(" (noise alone {equilibrium:.3}, never above {ceiling:.3})"),
        false => String::new(),
    };
    println!("decay {decay}: {:.0} s", started.elapsed().as_secs_f64());
    println!(
        "  loss    {train_loss:.3}; held out {:.3}, at best {:.3} after {} steps",
        sizes.held_out_loss, run.best_held_out_loss, run.best_held_out_step
    );
    println!("  rms     of weights {:.3}{bounds}", mean_rms(&sizes.weight_rms));
    println!("          of layer outputs {:.2}", mean_rms(&sizes.output_rms));
    println!(
        "  bf16    error {:.4} of logits of {:.2}, {:.3} of outputs; {:.1} % of updates lost",
        sizes.bf16.logit_error,
        sizes.logit_rms,
        mean_rms(&sizes.bf16.output_error),
        lost_updates * 100.0
    );
}
