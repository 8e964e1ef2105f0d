//! What a run tells: progress on stderr, one JSON line a step, a summary at the end.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::{Duration, Instant};

use dmuon::{MeshShape, Route};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::cli::{Compute, Mode, Optimizer, Rest};
use crate::common::error::Error;
use crate::common::records::{self, JsonLines};

/// Where there is no terminal, so many plain lines stand for the bar.
const PLAIN_LINES: usize = 15;

/// One line of `steps.jsonl`.
#[derive(Serialize, Debug, Clone)]
pub(crate) struct StepRecord {
    /// From 1.
    pub(crate) step: usize,
    /// Mean over all ranks, nats a byte.
    pub(crate) loss: f64,
    /// Share of the peak learning rates in force.
    pub(crate) lr_share: f64,
    /// All ranks together.
    pub(crate) tokens_per_s: f64,
    /// Newton-Schulz iterations run, all ranks together.
    pub(crate) ns_calls: u64,
    /// Payload of weights and gradients, all ranks together.
    pub(crate) bytes_moved: u64,
    /// Whether gradients overflowed, so that no rank stepped.
    pub(crate) skipped: bool,
    /// Since the first step began.
    pub(crate) elapsed_s: f64,
}

/// `summary.json`.
#[derive(Serialize, Debug)]
pub(crate) struct Summary {
    pub(crate) optimizer: Optimizer,
    pub(crate) mode: Mode,
    pub(crate) rest: Rest,
    pub(crate) compute: Compute,
    pub(crate) mesh: MeshShape,
    pub(crate) routes: BTreeMap<Route, OnRoute>,
    pub(crate) seed: u64,
    pub(crate) steps: usize,
    pub(crate) skipped_steps: usize,
    /// Micro-batches a step.
    pub(crate) accumulate: usize,
    pub(crate) parameters: usize,
    /// Mean of the last steps' training losses, nats a byte.
    pub(crate) final_loss: f64,
    /// On the held-out text, as `unigram_baseline`.
    pub(crate) val_loss: f64,
    pub(crate) unigram_baseline: f64,
    pub(crate) data: String,
    pub(crate) data_sha256: String,
    pub(crate) weights_sha256: String,
    pub(crate) ns_calls: u64,
    /// Payload of weights and gradients, all ranks together, as counted.
    pub(crate) bytes_moved: u64,
    /// The same, as the plan and the routes say.
    pub(crate) bytes_predicted: u64,
    /// Most bytes of weights each rank held at once.
    pub(crate) peak_weight_bytes: Vec<u64>,
    pub(crate) elapsed_s: f64,
    pub(crate) tokens_per_s: f64,
}

/// What one route takes.
#[derive(Serialize, Debug, Clone, Copy)]
pub(crate) struct OnRoute {
    pub(crate) parameters: usize,
    pub(crate) values: usize,
}

/// Follows a run on rank 0.
#[derive(Debug)]
pub(crate) struct Reporter {
    bar: Option<ProgressBar>,
    lines: JsonLines,
    steps: usize,
    records: Vec<StepRecord>,
    start: Instant,
    last: Duration,
}

impl Reporter {
    /// Starts the clock; steps go to `folder/steps.jsonl`.
    pub(crate) fn start(folder: &Path, optimizer: Optimizer, steps: usize) -> Result<Self, Error> {
        Ok(Self {
            bar: io::stderr().is_terminal().then(|| progress_bar(optimizer, steps)),
            lines: JsonLines::create(&folder.join("steps.jsonl"))?,
            steps,
            records: Vec::with_capacity(steps),
            start: Instant::now(),
            last: Duration::ZERO,
        })
    }

    /// Records a step and shows it; `tokens` are those of all ranks.
    pub(crate) fn step(&mut self, tokens: usize, work: Work) -> Result<(), Error> {
        let elapsed = self.start.elapsed();
        let record = StepRecord {
            step: self.records.len() + 1,
            loss: work.loss,
            lr_share: work.lr_share,
            tokens_per_s: tokens as f64 / (elapsed - self.last).as_secs_f64(),
            ns_calls: work.ns_calls,
            bytes_moved: work.bytes_moved,
            skipped: work.skipped,
            elapsed_s: elapsed.as_secs_f64(),
        };
        self.last = elapsed;
        self.lines.append(&record)?;
        self.show(&record);
        self.records.push(record);
        Ok(())
    }

    fn show(&self, record: &StepRecord) {
        let StepRecord { step, loss, tokens_per_s, .. } = record;
        if let Some(bar) = &self.bar {
            bar.set_message(format!("loss {loss:.3}  {tokens_per_s:.0} tokens/s"));
            bar.inc(1);
        } else if step % self.steps.div_ceil(PLAIN_LINES) == 0 || *step == 1 || *step == self.steps
        {
            eprintln!("step {step}/{}  loss {loss:.3}  {tokens_per_s:.0} tokens/s", self.steps);
        }
    }

    /// Ends the bar; the steps, in order.
    pub(crate) fn finish(self) -> Vec<StepRecord> {
        if let Some(bar) = self.bar {
            bar.finish();
        }
        self.records
    }
}

/// What a step was, all ranks together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    /// Mean over ranks and micro-batches.
    pub(crate) loss: f64,
    pub(crate) lr_share: f64,
    pub(crate) ns_calls: u64,
    pub(crate) bytes_moved: u64,
    pub(crate) skipped: bool,
}

fn progress_bar(optimizer: Optimizer, steps: usize) -> ProgressBar {
    let template = "{prefix:6} {bar:32.cyan/dim} {pos}/{len}  {msg}  {eta} left";
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(steps as u64).with_style(style).with_prefix(optimizer.title())
}

impl Summary {
    /// Writes `folder/summary.json`, whole or not at all.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), Error> {
        records::write_json(&folder.join("summary.json"), self)
    }
}
