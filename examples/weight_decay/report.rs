//! What a run tells: progress on stderr, one JSON line a record, a summary at the end; no times, so
//! that the same options write the same bytes.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::common::error::Error;
use crate::common::records::JsonLines;
use crate::probe::Sizes;

/// One line of `steps.jsonl`: the model after a step.
#[derive(Serialize, Debug, Clone)]
pub(crate) struct Record {
    pub(crate) decay: f64,
    /// From 1.
    pub(crate) step: usize,
    /// How often the slice has been read.
    pub(crate) epochs: f64,
    /// Mean of all ranks and of the steps since the last record, nats a byte.
    pub(crate) train_loss: f64,
    /// Mean over matrices of the RMS of Muon's update, before the learning rate.
    pub(crate) update_rms: f64,
    /// Share of the weights of all blocks that would not have moved if they were kept in bf16.
    pub(crate) lost_updates: f64,
    #[serde(flatten)]
    pub(crate) sizes: Sizes,
}

/// Follows all runs; rank 0 of each reports to it.
#[derive(Debug)]
pub(crate) struct Reporter {
    lines: Mutex<JsonLines>,
    bar: Option<ProgressBar>,
    steps: usize,
}

impl Reporter {
    /// Records go to `folder/steps.jsonl`.
    pub(crate) fn start(folder: &Path, steps: usize) -> Result<Self, Error> {
        let lines = Mutex::new(JsonLines::create(&folder.join("steps.jsonl"))?);
        let bar = io::stderr().is_terminal().then(|| progress_bar(steps));
        Ok(Self { lines, bar, steps })
    }

    /// The next run begins.
    pub(crate) fn begin(&self, decay: f64) {
        if let Some(bar) = &self.bar {
            bar.reset();
            bar.set_prefix(format!("decay {decay}"));
        }
    }

    /// Writes a record and shows it.
    pub(crate) fn record(&self, record: &Record) -> Result<(), Error> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).append(record)?;
        let Record { decay, step, train_loss, sizes, .. } = record;
        let (weights, outputs) = (mean_rms(&sizes.weight_rms), mean_rms(&sizes.output_rms));
        let message = format!("loss {train_loss:.3}  rms {weights:.3}, outputs {outputs:.2}");
        match &self.bar {
            Some(bar) => {
                bar.set_message(message);
                bar.set_position(*step as u64);
            }
            None => eprintln!("decay {decay:<5} step {step:>4}/{}  {message}", self.steps),
        }
        Ok(())
    }

    /// The run has ended.
    pub(crate) fn end(&self) {
        self.bar.iter().for_each(ProgressBar::finish_and_clear);
    }
}

/// The RMS over parts of equal size, from the RMS of each.
pub(crate) fn mean_rms(parts: &[f64]) -> f64 {
    (parts.iter().map(|rms| rms * rms).sum::<f64>() / parts.len() as f64).sqrt()
}

fn progress_bar(steps: usize) -> ProgressBar {
    let template = "{prefix:10} {bar:12.cyan/dim} {pos}/{len}  {msg}  {eta} left";
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(steps as u64).with_style(style)
}
