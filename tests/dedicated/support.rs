//! Models, worlds and oracles that the tests share.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor, TensorData};
use dmuon::{Dedicate, Dedicated, EngineOptions, Error, Hooked, Mesh, Result, World};
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) const WIDTH: usize = 8;
pub(crate) const SEQ: usize = 5;
pub(crate) const BATCH: usize = 2;

/// Long enough for a loaded machine, short enough that a hang fails the test.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Values by full parameter name.
pub(crate) type Named = BTreeMap<String, Vec<f32>>;

#[derive(Module, Debug)]
pub(crate) struct Block {
    pub(crate) norm: LayerNorm,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
}

impl Block {
    pub(crate) fn new(width: usize, device: &Device) -> Self {
        Self {
            norm: LayerNormConfig::new(width).init(device),
            up: LinearConfig::new(width, 3 * width).init(device),
            down: LinearConfig::new(3 * width, width).with_bias(false).init(device),
        }
    }

    pub(crate) fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        x.clone() + self.down.forward(relu(self.up.forward(self.norm.forward(x))))
    }
}

/// Blocks inside boundaries, with something outside at both ends.
#[derive(Module, Debug)]
pub(crate) struct Net {
    pub(crate) stem: Linear,
    pub(crate) layers: Vec<Hooked<Block>>,
    pub(crate) head: Linear,
}

impl Net {
    pub(crate) fn new(num_layers: usize, device: &Device) -> Self {
        Self {
            stem: LinearConfig::new(WIDTH, WIDTH).init(device),
            layers: (0..num_layers).map(|_| Hooked::new(Block::new(WIDTH, device))).collect(),
            head: LinearConfig::new(WIDTH, 3).init(device),
        }
    }

    pub(crate) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let x = self.stem.forward(x);
        let x = self.layers.iter().fold(x, |x, layer| layer.run(x, |block, x| block.forward(x)));
        self.head.forward(x)
    }
}

/// Burn's own encoder, which knows nothing of boundaries.
#[derive(Module, Debug)]
pub(crate) struct Closed {
    pub(crate) encoder: TransformerEncoder,
}

impl Closed {
    pub(crate) fn new(num_layers: usize, device: &Device) -> Self {
        let config = TransformerEncoderConfig::new(WIDTH, 2 * WIDTH, 2, num_layers);
        Self { encoder: config.with_dropout(0.0).init(device) }
    }

    pub(crate) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.encoder.forward(TransformerEncoderInput::new(x))
    }
}

pub(crate) fn device() -> Device {
    Device::flex().autodiff()
}

/// A model with values drawn in one place, whatever the ranks do.
pub(crate) fn seeded<M: Module>(seed: u64, build: impl FnOnce(&Device) -> M) -> M {
    drawing(seed, |device| {
        let model = build(device);
        dmuon::initialize(&model);
        model
    })
}

/// Runs `draw` from a seed, alone: the generator is process-global and tests are threads.
pub(crate) fn drawing<T>(seed: u64, draw: impl FnOnce(&Device) -> T) -> T {
    static DRAWING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _drawing = DRAWING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let device = device();
    device.seed(seed);
    draw(&device)
}

/// A rank's own batch: a pure function of its arguments.
pub(crate) fn batch(step: usize, rank: usize) -> Tensor<3> {
    let elem = |i: usize| {
        let i = i * 7919 + rank * 104_729 + step * 1_299_709;
        (i % 2003) as f32 / 2003.0 - 0.5
    };
    let data: Vec<f32> = (0..BATCH * SEQ * WIDTH).map(elem).collect();
    Tensor::from_data(TensorData::new(data, [BATCH, SEQ, WIDTH]), &device())
}

pub(crate) fn loss(output: Tensor<3>) -> Tensor<1> {
    output.square().mean()
}

pub(crate) fn options() -> EngineOptions {
    EngineOptions::default().with_deadline(DEADLINE)
}

/// Runs ranks with a deadline.
pub(crate) fn on_ranks<T: Send>(
    num_ranks: usize,
    rank_main: impl Fn(World) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    dmuon::launch_with::<T, Error, _>(num_ranks, &options(), rank_main)
}

/// Dedicates a rank's own copy of `model` over all ranks.
pub(crate) fn dedicate<M: Module>(
    world: &World,
    model: &M,
    request: impl FnOnce(Dedicate) -> Dedicate,
) -> Result<(M, Dedicated)> {
    let mesh = Mesh::new(world)?;
    request(Dedicate::new(&mesh)).apply(model.clone().fork(&device()))
}

/// Dedicates a rank's own copy of `model` over a (replicate, shard) mesh.
pub(crate) fn dedicate_on<M: Module>(
    world: &World,
    (replicate, shard): (usize, usize),
    model: &M,
    request: impl FnOnce(Dedicate) -> Dedicate,
) -> Result<(M, Dedicated)> {
    let mesh = Mesh::hsdp(world, replicate, shard)?;
    request(Dedicate::new(&mesh)).apply(model.clone().fork(&device()))
}

struct Visit<F>(F, Vec<String>);

/// Something to do with every float parameter.
pub(crate) trait Each {
    fn each<const D: usize>(&mut self, name: String, param: &Param<Tensor<D>>);
}

impl<F: Each> ModuleVisitor for Visit<F> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.1.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.1.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.each(self.1.join("."), param);
    }
}

pub(crate) fn visit<M: Module, F: Each>(model: &M, each: F) -> F {
    let mut visit = Visit(each, Vec::new());
    model.visit(&mut visit);
    visit.0
}

/// Gradients by name, of the parameters that have one.
pub(crate) fn gradients<M: Module>(model: &M, gradients: &GradientsParams) -> Named {
    struct Of<'a>(&'a GradientsParams, Named);
    impl Each for Of<'_> {
        fn each<const D: usize>(&mut self, name: String, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.get::<D>(param.id) {
                self.1.insert(name, gradient.into_data().try_to_vec().unwrap());
            }
        }
    }
    visit(model, Of(gradients, Named::new())).1
}

/// Stored values by name; placeholders included.
pub(crate) fn values<M: Module>(model: &M) -> Named {
    struct Of(Named);
    impl Each for Of {
        fn each<const D: usize>(&mut self, name: String, param: &Param<Tensor<D>>) {
            self.0.insert(name, param.base().into_data().try_to_vec().unwrap());
        }
    }
    visit(model, Of(Named::new())).0
}

/// Gradients of one rank's loss, by plain Burn.
pub(crate) fn plain_gradients<M: Module>(model: &M, loss: impl Fn(&M) -> Tensor<1>) -> Named {
    let model = model.clone().fork(&device());
    let backward = loss(&model).backward();
    gradients(&model, &GradientsParams::from_grads(backward, &model))
}

/// The mean over ranks in dmuon's order: a tree split at the largest power of two below n.
pub(crate) fn tree_mean(ranks: &[Vec<f32>]) -> Vec<f32> {
    fn sum(ranks: &[Vec<f32>]) -> Vec<f32> {
        match ranks {
            [one] => one.clone(),
            _ => {
                let split = ranks.len().next_power_of_two() / 2;
                let (left, right) = (sum(&ranks[..split]), sum(&ranks[split..]));
                left.iter().zip(right).map(|(a, b)| a + b).collect()
            }
        }
    }
    sum(ranks).iter().map(|sum| sum / ranks.len() as f32).collect()
}

/// Asserts equality of every bit.
pub(crate) fn assert_same_bits(ours: &[f32], theirs: &[f32], what: &str) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    let differs = ours.iter().zip(theirs).position(|(a, b)| a.to_bits() != b.to_bits());
    if let Some(at) = differs {
        panic!("{what} differs at {at}: {:e} is not {:e}", ours[at], theirs[at]);
    }
}
