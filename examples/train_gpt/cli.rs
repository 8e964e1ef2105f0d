//! The command line: parsed once into values that are known to fit together.

use std::path::PathBuf;

use burn::tensor::Device;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, ValueEnum};
use dmuon::partition::MeshError;
use dmuon::{FloatType, MeshShape, ReplicatePublish};
use serde::Serialize;

use crate::common::model::GptConfig;
use crate::device::DeviceName;

const EXAMPLES: &str = "\
Examples:
  cargo run --release --example train_gpt
      Two replicas of two ranks each, Muon with one owner for each matrix, on Rust sources that
      cargo downloaded.
  cargo run --release --example train_gpt -- --compare
      Muon, then AdamW from the same seed; both curves in one figure.
  cargo run --release --example train_gpt -- --mode z3 --prefetch 2
      Drop the weights after each block's forward and fetch them again, two blocks ahead.
  cargo run --release --example train_gpt -- --mesh 1x4
      One replica over four ranks: other traffic, the same weights to the bit.
  cargo run --release --example train_gpt -- --rest replicated
      Embedding and head whole on every rank: more memory, the same weights to the bit.
  cargo run --release --example train_gpt -- --batch 1 --accumulate 4 --clip 1
      Four small batches for each step, and gradients of norm 1 at most.
  cargo run --release --example train_gpt -- --compute bf16
      Weights travel and multiply in bf16 and are stored and updated in f32.
  cargo run --release --example train_gpt -- --ranks 1 --batch 16
      One rank reads the same batches as four with --batch 4: compare the losses.
  cargo build --release --features mpi --example train_gpt
  mpiexec -n 4 target/release/examples/train_gpt
      The same ranks as processes: the same weights to the bit.
  cargo run --release --features wgpu --example train_gpt -- --device wgpu
      On a GPU, whose memory holds weights and activations; what ranks exchange, and masters, stay
      on the host.
  cargo run --release --example train_gpt -- --data ~/books --steps 2000 --out out/books
      All files of a folder, for longer.

Written to --out:
  loss.png      the loss of each step, smoothed, and the unigram baseline
  steps.jsonl   one JSON object a step
  routes.json   every parameter with its route, owner and reason
  summary.json  final losses, hashes of data and weights, bytes moved and bytes predicted";

/// Train a byte-level GPT with Muon over several ranks: threads of this process, or the processes
/// that mpiexec started.
///
/// Every weight matrix has one owner rank, which keeps the weight and its momentum and runs the
/// Newton-Schulz iteration; the other ranks borrow the weight for the time of a block. Embedding
/// and head, which AdamW trains, are sharded: every rank keeps a part.
#[derive(Parser, Debug, Clone)]
#[command(name = "train_gpt", after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Replicas x ranks of each, e.g. 2x2; each rank reads its own sequences
    #[arg(long, default_value = "2x2", value_name = "GxR", value_parser = mesh)]
    mesh: MeshShape,
    /// Ranks in one replica: short for --mesh 1xN
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with = "mesh")]
    ranks: Option<usize>,
    /// When a step waits for new weights to reach the other replicas
    #[arg(long, value_enum, default_value_t)]
    publish: Publish,
    /// How long a rank keeps the weights it borrows
    #[arg(long, value_enum, default_value_t)]
    pub(crate) mode: Mode,
    /// What becomes of parameters that no rank owns
    #[arg(long, value_enum, default_value_t)]
    pub(crate) rest: Rest,
    /// How many blocks ahead weights are fetched
    #[arg(long, default_value_t = 1)]
    pub(crate) prefetch: usize,
    /// What trains the matrices of the blocks; AdamW trains the rest
    #[arg(long, value_enum, default_value_t)]
    pub(crate) optimizer: Optimizer,
    /// Train with both optimizers from the same seed
    #[arg(long, conflicts_with = "optimizer")]
    pub(crate) compare: bool,
    /// Training steps
    #[arg(long, default_value_t = 100, value_parser = positive)]
    pub(crate) steps: usize,
    /// Sequences in a micro-batch, on each rank
    #[arg(long, default_value_t = 4, value_parser = positive)]
    pub(crate) batch: usize,
    /// Micro-batches a step; gradients wait on their rank for the last one
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = positive)]
    pub(crate) accumulate: usize,
    /// Where to compute; devices need a feature
    #[arg(long, value_enum, default_value_t)]
    pub(crate) device: DeviceName,
    /// What weights travel and are used in; they are stored, summed and updated in f32
    #[arg(long, value_enum, default_value_t)]
    pub(crate) compute: Compute,
    /// Peak learning rate of Muon, scaled so that AdamW's would do
    #[arg(long, default_value_t = 0.01, value_name = "RATE", allow_negative_numbers = true)]
    pub(crate) muon_lr: f64,
    /// Peak learning rate of AdamW
    #[arg(long, default_value_t = 0.003, value_name = "RATE", allow_negative_numbers = true)]
    pub(crate) adamw_lr: f64,
    /// Steps in which the rates rise, before they fall along a cosine [default: 5% of --steps]
    #[arg(long, value_name = "STEPS")]
    warmup: Option<usize>,
    /// Clip gradients to this norm, taken over all parameters (Muon only)
    #[arg(long, value_name = "NORM", conflicts_with = "compare", allow_negative_numbers = true)]
    pub(crate) clip: Option<f64>,
    /// Seed of weights, batches and sample
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// Transformer blocks
    #[arg(long, default_value_t = 4, value_parser = positive, help_heading = "Model")]
    pub(crate) layers: usize,
    /// Width of the residual stream
    #[arg(long, default_value_t = 256, value_parser = positive, help_heading = "Model")]
    pub(crate) width: usize,
    /// Attention heads; the width of each is --width / --heads
    #[arg(long, default_value_t = 8, value_parser = positive, help_heading = "Model")]
    pub(crate) heads: usize,
    /// Bytes of context
    #[arg(long, default_value_t = 128, value_parser = positive, help_heading = "Model")]
    pub(crate) seq_len: usize,

    /// Text to learn: a file, or a folder with all its files
    /// [default: sources of some of the crates that cargo downloaded for this example]
    #[arg(long, value_name = "PATH", help_heading = "Input and output")]
    pub(crate) data: Option<PathBuf>,
    /// Folder for the figure and the records
    #[arg(
        long,
        value_name = "DIR",
        default_value = "out/train_gpt",
        help_heading = "Input and output"
    )]
    pub(crate) out: PathBuf,
    /// Do not let the trained model write a few lines
    #[arg(long, help_heading = "Input and output")]
    pub(crate) no_sample: bool,
}

/// How long a rank keeps the weights it borrows.
#[derive(ValueEnum, Serialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// From a block's forward to its backward: less traffic
    #[default]
    Z2,
    /// For one block's forward, and again for its backward: less memory
    Z3,
}

/// What becomes of parameters that no rank owns.
#[derive(ValueEnum, Serialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Rest {
    /// Every rank of a replica keeps a part and borrows the others
    #[default]
    Sharded,
    /// Every rank keeps them whole
    Replicated,
}

/// What weights travel and are used in.
#[derive(ValueEnum, Serialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Compute {
    /// Single precision
    #[default]
    F32,
    /// Half the bytes, the range of f32
    Bf16,
    /// Half the bytes, finer than bf16; the loss is scaled, and steps that overflow are skipped
    /// (Muon only)
    F16,
}

/// When a step waits for new weights to reach the other replicas.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Publish {
    /// Not at all: each block's are awaited by its next forward
    #[default]
    Async,
    /// At the end of the step
    Sync,
}

/// What trains the matrices of the blocks.
#[derive(ValueEnum, Serialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Optimizer {
    /// Momentum, orthogonalized by its owner
    #[default]
    Muon,
    /// Adaptive moments, element by element
    Adamw,
}

impl Optimizer {
    /// As people write it.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Muon => "Muon",
            Self::Adamw => "AdamW",
        }
    }
}

impl From<Mode> for dmuon::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Z2 => Self::Z2,
            Mode::Z3 => Self::Z3,
        }
    }
}

impl From<Compute> for FloatType {
    fn from(compute: Compute) -> Self {
        match compute {
            Compute::F32 => Self::F32,
            Compute::Bf16 => Self::Bf16,
            Compute::F16 => Self::F16,
        }
    }
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
        let Self { width, heads, .. } = *self;
        if width % heads != 0 {
            return Err(format!("--width {width} is not divisible by --heads {heads}"));
        }
        if !(width / heads).is_multiple_of(2) {
            let head = width / heads;
            return Err(format!(
                "each head is {head} wide (--width {width} / --heads {heads}); \
                 rotary embeddings need an even width"
            ));
        }
        for (name, rate) in [("--muon-lr", self.muon_lr), ("--adamw-lr", self.adamw_lr)] {
            if !(rate > 0.0 && rate.is_finite()) {
                return Err(format!("{name} {rate} is not a positive number"));
            }
        }
        if let Some(norm) = self.clip.filter(|norm| !(*norm > 0.0 && norm.is_finite())) {
            return Err(format!("--clip {norm} is not a positive number"));
        }
        if let Some(warmup) = self.warmup.filter(|&warmup| warmup > self.steps) {
            return Err(format!("--warmup {warmup} is more than --steps {}", self.steps));
        }
        let muon_only = self.clip.map(|_| "--clip");
        let muon_only = muon_only.or((self.compute == Compute::F16).then_some("--compute f16"));
        match muon_only {
            Some(option) if self.optimizers() != [Optimizer::Muon] => {
                return Err(format!("{option} is for --optimizer muon alone"));
            }
            _ => {}
        }
        Ok(())
    }

    /// The device with a tape. In z3 that must be able to compute views of weights again, or it
    /// would keep the weights.
    pub(crate) fn with_tape(&self, device: &Device) -> Device {
        let device = device.clone().autodiff();
        match self.mode {
            Mode::Z2 => device,
            Mode::Z3 => device.gradient_checkpointing(),
        }
    }

    /// The mesh to train on.
    pub(crate) fn mesh(&self) -> Result<MeshShape, MeshError> {
        self.ranks.map_or(Ok(self.mesh), |ranks| MeshShape::new(1, ranks))
    }

    /// Number of ranks.
    pub(crate) fn num_ranks(&self) -> usize {
        self.ranks.unwrap_or(self.mesh.world_size())
    }

    /// Bytes that all ranks learn from in a step.
    pub(crate) fn tokens_per_step(&self) -> usize {
        self.num_ranks() * self.accumulate * self.batch * self.seq_len
    }

    /// Steps in which the learning rates rise.
    pub(crate) fn warmup(&self) -> usize {
        self.warmup.unwrap_or(self.steps.div_ceil(20))
    }

    pub(crate) fn publish(&self) -> ReplicatePublish {
        match self.publish {
            Publish::Async => ReplicatePublish::Async,
            Publish::Sync => ReplicatePublish::Sync,
        }
    }

    pub(crate) fn model(&self) -> GptConfig {
        GptConfig::new(self.layers, self.width, self.heads, self.seq_len)
    }

    /// The optimizers to train with, one after the other.
    pub(crate) fn optimizers(&self) -> Vec<Optimizer> {
        if self.compare { vec![Optimizer::Muon, Optimizer::Adamw] } else { vec![self.optimizer] }
    }
}

fn mesh(text: &str) -> Result<MeshShape, String> {
    let axes = text.split_once('x').map(|(g, r)| (g.trim().parse(), r.trim().parse()));
    let Some((Ok(replicate), Ok(shard))) = axes else {
        return Err("not a mesh such as 2x2: replicas, an x, ranks of each".to_owned());
    };
    MeshShape::new(replicate, shard).map_err(|error| error.to_string())
}

fn positive(text: &str) -> Result<usize, &'static str> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("not a whole number from 1 up"),
    }
}
