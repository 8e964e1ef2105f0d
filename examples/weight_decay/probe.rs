//! Measures a whole model on one rank: the size of its weights, and of what its blocks put out on
//! text that never changes, in f32 and in bf16.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Device, Tensor};
use serde::Serialize;

use crate::bf16;
use crate::common::data::{Batch, Corpus};
use crate::common::model::{Gpt, cross_entropy};

/// Held-out sequences of the probe.
const SEQUENCES: usize = 16;

/// What a probe found.
#[derive(Serialize, Debug, Clone)]
pub(crate) struct Sizes {
    /// On the probe, nats a byte.
    pub(crate) held_out_loss: f64,
    /// RMS over the matrices of each block.
    pub(crate) weight_rms: Vec<f64>,
    pub(crate) embed_rms: f64,
    pub(crate) head_rms: f64,
    /// RMS of what leaves each block on the probe.
    pub(crate) output_rms: Vec<f64>,
    pub(crate) logit_rms: f64,
    pub(crate) bf16: Bf16,
}

/// The same model and probe in bf16, against f32.
#[derive(Serialize, Debug, Clone)]
pub(crate) struct Bf16 {
    pub(crate) held_out_loss: f64,
    /// RMS of the difference, of what leaves each block.
    pub(crate) output_error: Vec<f64>,
    /// RMS of the difference of logits.
    pub(crate) logit_error: f64,
    /// `logit_error` over the RMS of logits.
    pub(crate) logit_error_share: f64,
}

/// Text to measure on, the same for every model.
#[derive(Debug)]
pub(crate) struct Probe {
    batch: Batch,
}

impl Probe {
    pub(crate) fn new(corpus: &Corpus, seq_len: usize) -> Self {
        Self { batch: Batch::new(&corpus.validation(SEQUENCES, seq_len), &Device::flex()) }
    }

    /// Measures a plain model with all its weights.
    pub(crate) fn measure(&self, model: &Gpt) -> Sizes {
        let exact = self.forward(model);
        let rounded = self.forward(&bf16::cast(model));
        let weights = Weights::of(model);
        let logit_error = rms(&(rounded.logits - exact.logits.clone()));
        let logit_rms = rms(&exact.logits);
        let pairs = rounded.outputs.into_iter().zip(&exact.outputs);
        Sizes {
            held_out_loss: exact.loss,
            weight_rms: weights.layers.iter().map(Squares::rms).collect(),
            embed_rms: weights.embed.rms(),
            head_rms: weights.head.rms(),
            output_rms: exact.outputs.iter().map(rms).collect(),
            logit_rms,
            bf16: Bf16 {
                held_out_loss: rounded.loss,
                output_error: pairs.map(|(b, a)| rms(&(b - a.clone()))).collect(),
                logit_error,
                logit_error_share: logit_error / logit_rms,
            },
        }
    }

    /// In the precision of the model's weights; what it returns is f32.
    fn forward(&self, model: &Gpt) -> Forward {
        let mut outputs = Vec::new();
        let see = |x: &Tensor<3>| outputs.push(x.clone().cast(DType::F32));
        let logits = model.forward_seen(self.batch.inputs.clone(), see).cast(DType::F32);
        let loss = cross_entropy(logits.clone(), self.batch.targets.clone()).into_scalar();
        Forward { outputs, logits, loss }
    }
}

struct Forward {
    outputs: Vec<Tensor<3>>,
    logits: Tensor<3>,
    loss: f64,
}

fn rms(tensor: &Tensor<3>) -> f64 {
    let mut squares = Squares::default();
    squares.add(tensor.clone());
    squares.rms()
}

/// A sum of squares, in f64.
#[derive(Debug, Default, Clone, Copy)]
struct Squares {
    sum: f64,
    count: usize,
}

impl Squares {
    fn add<const D: usize>(&mut self, tensor: Tensor<D>) {
        for elem in tensor.into_data().iter::<f64>() {
            self.sum += elem * elem;
            self.count += 1;
        }
    }

    fn rms(&self) -> f64 {
        (self.sum / self.count.max(1) as f64).sqrt()
    }
}

/// Squares of weights, by part of the model; vectors, which are norms' gains, do not count.
#[derive(Debug, Default)]
struct Weights {
    path: Vec<String>,
    layers: Vec<Squares>,
    embed: Squares,
    head: Squares,
}

impl Weights {
    fn of(model: &Gpt) -> Self {
        let mut weights = Self::default();
        model.visit(&mut weights);
        weights
    }

    fn part(&mut self) -> Option<&mut Squares> {
        match self.path.first()?.as_str() {
            "embed" => Some(&mut self.embed),
            "head" => Some(&mut self.head),
            "layers" => {
                let layer: usize = self.path.get(1)?.parse().ok()?;
                self.layers.resize(self.layers.len().max(layer + 1), Squares::default());
                Some(&mut self.layers[layer])
            }
            _ => None,
        }
    }
}

impl ModuleVisitor for Weights {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let (2, Some(squares)) = (D, self.part()) {
            squares.add(param.val());
        }
    }
}
