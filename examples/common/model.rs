//! A byte-level GPT in ordinary Burn modules, its blocks wrapped as boundaries; it knows nothing of
//! ranks, owners or optimizers.

use burn::config::Config;
use burn::module::{Initializer, Module};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::activation::{silu, softmax};
use burn::tensor::{Bool, Device, FloatDType, Int, Tensor};
use dmuon::Hooked;

/// Every value of a byte is a token.
pub(crate) const VOCABULARY: usize = 256;

/// The size of a [`Gpt`].
#[derive(Config, Debug)]
pub(crate) struct GptConfig {
    /// Number of transformer blocks.
    pub(crate) layers: usize,
    /// Width of the residual stream.
    pub(crate) width: usize,
    /// Number of attention heads; divides `width`.
    pub(crate) heads: usize,
    /// Longest context, in bytes.
    pub(crate) seq_len: usize,
}

/// Bytes in, logits of the next byte out.
#[derive(Module, Debug)]
pub(crate) struct Gpt {
    embed: Embedding,
    layers: Vec<Hooked<Block>>,
    norm: RmsNorm,
    head: Linear,
}

impl GptConfig {
    /// A fresh model; its values follow from the seed of `device`.
    pub(crate) fn init(&self, device: &Device) -> Gpt {
        let embedding = Initializer::Normal { mean: 0.0, std: 0.02 };
        let embed = EmbeddingConfig::new(VOCABULARY, self.width).with_initializer(embedding);
        Gpt {
            embed: embed.init(device),
            layers: (0..self.layers).map(|_| Hooked::new(Block::new(self, device))).collect(),
            norm: RmsNormConfig::new(self.width).init(device),
            head: linear(self.width, VOCABULARY, device),
        }
    }

    /// Width inside the feed-forward layer: 8/3 of `width`, rounded up to a multiple of 64.
    fn hidden(&self) -> usize {
        (self.width * 8).div_ceil(3).next_multiple_of(64)
    }
}

impl Gpt {
    /// Logits `[batch, seq, 256]` for the byte after each of `bytes`, `[batch, seq]`.
    pub(crate) fn forward(&self, bytes: Tensor<2, Int>) -> Tensor<3> {
        self.forward_seen(bytes, |_| {})
    }

    /// As [`forward`](Self::forward); `see` is shown what leaves each block, `[batch, seq, width]`.
    pub(crate) fn forward_seen(
        &self,
        bytes: Tensor<2, Int>,
        mut see: impl FnMut(&Tensor<3>),
    ) -> Tensor<3> {
        let mut x = self.embed.forward(bytes);
        for block in &self.layers {
            x = block.run(x, |block, x| block.forward(x));
            see(&x);
        }
        self.head.forward(self.norm.forward(x))
    }

    /// Mean cross-entropy, in nats a byte, of `targets` (`[batch, seq]`, as `bytes`).
    pub(crate) fn loss(&self, bytes: Tensor<2, Int>, targets: Tensor<2, Int>) -> Tensor<1> {
        cross_entropy(self.forward(bytes), targets)
    }
}

/// Mean, in nats a byte, of `logits` (`[batch, seq, 256]`) on `targets` (`[batch, seq]`); in `f32`,
/// whatever the logits are in.
pub(crate) fn cross_entropy(logits: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<1> {
    let device = logits.device();
    let logits = logits.cast(FloatDType::F32).flatten::<2>(0, 1);
    CrossEntropyLossConfig::new().init(&device).forward(logits, targets.flatten::<1>(0, 1))
}

/// One pre-norm transformer block.
#[derive(Module, Debug)]
pub(crate) struct Block {
    attn_norm: RmsNorm,
    attn: Attention,
    mlp_norm: RmsNorm,
    mlp: Mlp,
}

impl Block {
    fn new(config: &GptConfig, device: &Device) -> Self {
        Self {
            attn_norm: RmsNormConfig::new(config.width).init(device),
            attn: Attention::new(config, device),
            mlp_norm: RmsNormConfig::new(config.width).init(device),
            mlp: Mlp::new(config, device),
        }
    }

    /// `[batch, seq, width]` in and out.
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let x = x.clone() + self.attn.forward(self.attn_norm.forward(x));
        x.clone() + self.mlp.forward(self.mlp_norm.forward(x))
    }
}

/// Causal self-attention with rotary position embeddings.
#[derive(Module, Debug)]
pub(crate) struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    rotary: Rotary,
    /// True where a query must not look: above the diagonal.
    future: Tensor<2, Bool>,
    heads: usize,
}

impl Attention {
    fn new(config: &GptConfig, device: &Device) -> Self {
        let width = config.width;
        Self {
            q_proj: linear(width, width, device),
            k_proj: linear(width, width, device),
            v_proj: linear(width, width, device),
            o_proj: residual(config, width, device),
            rotary: Rotary::new(config.seq_len, width / config.heads, device),
            future: Tensor::tril_mask([config.seq_len, config.seq_len], 0, device),
            heads: config.heads,
        }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, seq, width] = x.dims();
        let head_width = width / self.heads;
        let split = |t: Tensor<3>| t.reshape([batch, seq, self.heads, head_width]).swap_dims(1, 2);

        let scale = (head_width as f64).powf(-0.5);
        let query = self.rotary.forward(split(self.q_proj.forward(x.clone()))) * scale;
        let key = self.rotary.forward(split(self.k_proj.forward(x.clone())));
        let value = split(self.v_proj.forward(x));

        let future = self.future.clone().slice([0..seq, 0..seq]).unsqueeze::<4>();
        let future = future.expand([batch, self.heads, seq, seq]);
        let scores = query.matmul(key.transpose()).mask_fill(future, f32::NEG_INFINITY);
        let mixed = softmax(scores, 3).matmul(value);
        self.o_proj.forward(mixed.swap_dims(1, 2).reshape([batch, seq, width]))
    }
}

/// Feed-forward layer with a SiLU gate (SwiGLU).
#[derive(Module, Debug)]
pub(crate) struct Mlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

impl Mlp {
    fn new(config: &GptConfig, device: &Device) -> Self {
        let (width, hidden) = (config.width, config.hidden());
        Self {
            gate_proj: linear(width, hidden, device),
            up_proj: linear(width, hidden, device),
            down_proj: residual(config, hidden, device),
        }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let gate = silu(self.gate_proj.forward(x.clone()));
        self.down_proj.forward(gate * self.up_proj.forward(x))
    }
}

/// Rotary position embedding: turns each pair (i, i + half) of a head by an angle that grows with
/// the position, so that a score depends on the distance of query and key.
#[derive(Module, Debug)]
pub(crate) struct Rotary {
    /// `[seq, head / 2]`, as `sin`.
    cos: Tensor<2>,
    sin: Tensor<2>,
}

impl Rotary {
    const BASE: f64 = 10_000.0;

    fn new(seq_len: usize, head_width: usize, device: &Device) -> Self {
        let half = head_width / 2;
        let position = Tensor::<1, Int>::arange(0..seq_len as i64, device).float();
        let pair = Tensor::<1, Int>::arange(0..half as i64, device).float();
        let frequency = (pair * (-Self::BASE.ln() / half as f64)).exp();
        let angle = position.unsqueeze_dim::<2>(1) * frequency.unsqueeze_dim::<2>(0);
        Self { cos: angle.clone().cos(), sin: angle.sin() }
    }

    /// `[batch, heads, seq, head]` in and out.
    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let [_, _, seq, head_width] = x.dims();
        let half = head_width / 2;
        let angles = |t: &Tensor<2>| t.clone().narrow(0, 0, seq).unsqueeze::<4>().cast(x.dtype());
        let (cos, sin) = (angles(&self.cos), angles(&self.sin));
        let low = x.clone().narrow(3, 0, half);
        let high = x.narrow(3, half, half);
        let turned_low = low.clone() * cos.clone() - high.clone() * sin.clone();
        let turned_high = high * cos + low * sin;
        Tensor::cat(vec![turned_low, turned_high], 3)
    }
}

/// A projection without bias, in Burn's default initialization.
fn linear(input: usize, output: usize, device: &Device) -> Linear {
    LinearConfig::new(input, output).with_bias(false).init(device)
}

/// A projection that ends in the residual stream: smaller the more of them add up.
fn residual(config: &GptConfig, input: usize, device: &Device) -> Linear {
    let std = (input as f64 * 3.0 * 2.0 * config.layers as f64).powf(-0.5);
    LinearConfig::new(input, config.width)
        .with_bias(false)
        .with_initializer(Initializer::Normal { mean: 0.0, std })
        .init(device)
}
