//! The command line: parsed once into values that are known to fit together.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use crate::common::model::GptConfig;

const EXAMPLES: &str = "\
What to look for:
  Muon's updates have the same size whatever the gradient: 0.2 times the learning rate, as RMS. So a
  model that has learned its text by heart goes on moving, and without decay its weights and what
  its layers put out grow for as long as it is trained. Decay multiplies a weight by
  1 - lr * decay at each step, which no weight above 0.2 / decay survives.
  bf16 keeps eight significant bits: the larger a number, the coarser its last bit. Small updates
  of large weights round away, and the error of what layers put out grows with it.

Examples:
  cargo run --release --example weight_decay
      No decay, 0.1, 0.3 and 1, one after the other, from the same weights and batches.
  cargo run --release --example weight_decay -- --decays 0,0.1 --steps 3000
      For longer: the run without decay does not level off.
  cargo run --release --example weight_decay -- --muon-lr 0.02 --decays 0,0.1
      The ceiling follows the decay alone; the way there takes 1 / (lr * decay) steps.
  cargo run --release --example weight_decay -- --data notes.txt --slice 8192
      A text of your own, the first 8 KiB of it.

Written to --out, the same to the byte for the same options:
  rms.png       weights and layer outputs over the steps
  bf16.png      the error of bf16, and updates that it loses
  loss.png      loss on the slice and on text held out
  steps.jsonl   one JSON object for each decay and recorded step
  summary.json  settings, predictions, and where each run ended";

/// Train a small byte-level GPT until it knows its text by heart and beyond, with several weight
/// decays, and watch the size of its weights and activations.
///
/// Two ranks, threads of this process, share the work: Muon with one owner for each matrix of a
/// block, AdamW on sharded parameters for the rest, the same decay for both, none for norms.
#[derive(Parser, Debug, Clone)]
#[command(name = "weight_decay", after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Weight decays to train with, in turn
    #[arg(
        long,
        default_value = "0,0.1,0.3,1",
        value_delimiter = ',',
        value_name = "DECAY,..",
        allow_negative_numbers = true
    )]
    pub(crate) decays: Vec<f64>,
    /// Training steps for each
    #[arg(long, default_value_t = 800, value_parser = positive)]
    pub(crate) steps: usize,
    /// Steps from one record to the next
    #[arg(long, default_value_t = 20, value_parser = positive)]
    pub(crate) every: usize,
    /// Ranks that share the work
    #[arg(long, default_value_t = 2, value_parser = positive)]
    pub(crate) ranks: usize,
    /// Sequences a step, on each rank
    #[arg(long, default_value_t = 4, value_parser = positive)]
    pub(crate) batch: usize,
    /// Learning rate of Muon, constant after a short warm-up
    #[arg(long, default_value_t = 0.01, value_name = "RATE", allow_negative_numbers = true)]
    pub(crate) muon_lr: f64,
    /// Learning rate of AdamW, likewise
    #[arg(long, default_value_t = 0.003, value_name = "RATE", allow_negative_numbers = true)]
    pub(crate) adamw_lr: f64,
    /// Seed of weights and batches
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// Transformer blocks
    #[arg(long, default_value_t = 3, value_parser = positive, help_heading = "Model")]
    pub(crate) layers: usize,
    /// Width of the residual stream
    #[arg(long, default_value_t = 96, value_parser = positive, help_heading = "Model")]
    pub(crate) width: usize,
    /// Attention heads; the width of each is --width / --heads
    #[arg(long, default_value_t = 4, value_parser = positive, help_heading = "Model")]
    pub(crate) heads: usize,
    /// Bytes of context
    #[arg(long, default_value_t = 64, value_parser = positive, help_heading = "Model")]
    pub(crate) seq_len: usize,

    /// Text to learn: a file, or a folder with all its files
    /// [default: sources of some of the crates that cargo downloaded for this example]
    #[arg(long, value_name = "PATH", help_heading = "Input and output")]
    pub(crate) data: Option<PathBuf>,
    /// Bytes of it to learn, over and over; as many after them are held out
    #[arg(long, default_value_t = 16_384, value_name = "BYTES", help_heading = "Input and output")]
    pub(crate) slice: usize,
    /// Folder for figures and records
    #[arg(
        long,
        value_name = "DIR",
        default_value = "out/weight_decay",
        help_heading = "Input and output"
    )]
    pub(crate) out: PathBuf,
}

impl Args {
    /// Parses the command line; prints help or what is wrong with it, and exits, where it must.
    pub(crate) fn from_command_line() -> Self {
        let args = Self::parse();
        if let Err(message) = args.check() {
            Self::command().error(ErrorKind::ValueValidation, message).exit();
        }
        args
    }

    /// What the parser cannot see: values that must fit each other.
    fn check(&self) -> Result<(), String> {
        let Self { width, heads, seq_len, slice, .. } = *self;
        if width % heads != 0 || !(width / heads).is_multiple_of(2) {
            return Err(format!(
                "--width {width} does not divide into --heads {heads} of an even width, \
                 which rotary embeddings need"
            ));
        }
        for (name, rate) in [("--muon-lr", self.muon_lr), ("--adamw-lr", self.adamw_lr)] {
            if !(rate > 0.0 && rate.is_finite()) {
                return Err(format!("{name} {rate} is not a positive number"));
            }
        }
        if slice < seq_len + 2 {
            return Err(format!(
                "--slice {slice} is too short for a sequence of --seq-len {seq_len} \
                 and the byte after it"
            ));
        }
        self.decays
            .iter()
            .enumerate()
            .try_for_each(|(index, &decay)| self.check_decay(index, decay))
    }

    fn check_decay(&self, index: usize, decay: f64) -> Result<(), String> {
        if !(decay >= 0.0 && decay.is_finite()) {
            return Err(format!("--decays: {decay} is not a number of 0 or more"));
        }
        if self.decays[..index].contains(&decay) {
            return Err(format!("--decays: {decay} is given twice"));
        }
        let lr = self.muon_lr.max(self.adamw_lr);
        if lr * decay >= 1.0 {
            return Err(format!(
                "--decays: {decay} times the learning rate {lr} is 1 or more, \
                 which leaves nothing of a weight"
            ));
        }
        Ok(())
    }

    pub(crate) fn model(&self) -> GptConfig {
        GptConfig::new(self.layers, self.width, self.heads, self.seq_len)
    }

    /// How often the slice has been read after so many steps.
    pub(crate) fn epochs(&self, steps: usize) -> f64 {
        (steps * self.ranks * self.batch * self.seq_len) as f64 / self.slice as f64
    }

    /// Whether the state after this step, counted from 1, is recorded.
    pub(crate) fn is_recorded(&self, step: usize) -> bool {
        step == 1 || step.is_multiple_of(self.every) || step == self.steps
    }
}

fn positive(text: &str) -> Result<usize, &'static str> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("not a whole number from 1 up"),
    }
}
