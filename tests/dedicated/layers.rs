//! Layers whose weights are not plain matrices, or not yet there: what Muon sees and what is kept.

use crate::cases::{Case, MODES, backward};
use crate::support::*;
use burn::module::{Module, Param};
use burn::nn::conv::{Conv1d, Conv1dConfig, Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig, LinearLayout};
use burn::tensor::{Device, Distribution, Tensor};
use dmuon::newton_schulz::{NewtonSchulz, NewtonSchulzConfig, Parallelism, Workspace};
use dmuon::{Hooked, MuonConfig, Rank, Rates, UpdateScale};

#[derive(Module, Debug)]
struct Filter {
    plane: Conv2d,
    line: Conv1d,
}

#[derive(Module, Debug)]
struct Filters {
    layers: Vec<Hooked<Filter>>,
}

impl Filters {
    fn new(device: &Device) -> Self {
        let filter = || Filter {
            plane: Conv2dConfig::new([BATCH, 6], [3, 2]).init(device),
            line: Conv1dConfig::new(SEQ, SEQ, 3).init(device),
        };
        Self { layers: (0..2).map(|_| Hooked::new(filter())).collect() }
    }

    /// `[batch, seq, width]`, of which the planes take the batch for channels.
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.layers.iter().fold(x, |x, layer| {
            layer.run(x, |filter, x| {
                let [_, seq, width] = x.dims();
                let y = filter.plane.forward(x.clone().unsqueeze_dim::<4>(0)).mean_dim(1);
                let x = x + y.squeeze_dim::<3>(0).mean_dim(2).mean_dim(1).expand([1, seq, width]);
                x.clone() + filter.line.forward(x).mean_dim(2)
            })
        })
    }
}

#[derive(Module, Debug)]
struct Experts {
    weight: Param<Tensor<3>>,
}

#[derive(Module, Debug)]
struct Mixture {
    layers: Vec<Hooked<Experts>>,
}

impl Mixture {
    fn new(device: &Device) -> Self {
        let experts = || {
            let weight = Tensor::random([BATCH, WIDTH, WIDTH], Distribution::Default, device);
            Experts { weight: Param::from_tensor(weight) }
        };
        Self { layers: (0..3).map(|_| Hooked::new(experts())).collect() }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let run = |x, layer: &Hooked<Experts>| {
            layer.run(x, |experts, x: Tensor<3>| x.matmul(experts.weight.val()))
        };
        self.layers.iter().fold(x, run)
    }
}

#[derive(Module, Debug)]
struct Columns {
    layers: Vec<Hooked<Linear>>,
}

impl Columns {
    fn new(device: &Device) -> Self {
        let config = LinearConfig::new(WIDTH, 2 * WIDTH).with_layout(LinearLayout::Col);
        let back = LinearConfig::new(2 * WIDTH, WIDTH).with_layout(LinearLayout::Col);
        let layers = [config, back].map(|config| Hooked::new(config.init(device)));
        Self { layers: layers.into() }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.layers.iter().fold(x, |x, layer| layer.run(x, |linear, x| linear.forward(x)))
    }

    /// The same values in row-major memory, which is how packed buffers store them. Burn multiplies
    /// by a transposed matrix in another order, so bits are compared with this model's.
    fn in_rows(mut self) -> Self {
        for layer in &mut self.layers {
            let map = |weight: Tensor<2>| {
                Tensor::from_data(weight.to_data(), &weight.device()).require_grad()
            };
            layer.weight = layer.weight.clone().map(map);
        }
        self
    }
}

#[test]
fn convolutions_average_bit_for_bit() {
    let filters = seeded(21, Filters::new);
    Case::new(&filters).check(|filters, rank| loss(filters.forward(batch(0, rank))));
}

#[test]
fn batches_of_matrices_average_bit_for_bit() {
    let mixture = seeded(22, Mixture::new);
    Case::new(&mixture).check(|mixture, rank| loss(mixture.forward(batch(0, rank))));
}

#[test]
fn column_major_weights_average_bit_for_bit() {
    let columns = seeded(23, Columns::new);
    let rows = columns.clone().in_rows();
    Case::new(&columns).against(&rows).check(|columns, rank| loss(columns.forward(batch(0, rank))));
}

const LR: f32 = 0.1;

/// The step rounds a product and a sum in f32; weights and updates are of order 1.
const UPDATE_TOLERANCE: f32 = 1e-6;

/// Weights before and after one step without decay or scale, and their averaged gradients.
fn one_step<M: Module + Sync>(
    model: &M,
    plain: &M,
    forward: impl Fn(&M, Tensor<3>) -> Tensor<3> + Sync,
) -> (Named, Named, usize) {
    let config =
        MuonConfig::new().with_nesterov(false).with_weight_decay(0.0).with_scale(UpdateScale::None);
    let loss = |model: &M, rank| loss(forward(model, batch(0, rank)));
    let plain: Vec<Named> =
        (0..2).map(|rank| plain_gradients(plain, |model| loss(model, rank))).collect();
    let mean = |name: &String| tree_mean(&[plain[0][name].clone(), plain[1][name].clone()]);
    let gradients = plain[0].keys().map(|name| (name.clone(), mean(name))).collect();
    let ranks = on_ranks(2, |world| {
        let (model, dedicated) = dedicate(&world, model, |d| d)?;
        let mut muon = config.init(&dedicated)?;
        let gradients = backward(&model, loss(&model, world.rank().0));
        let model = muon.step(Rates { muon: LR.into(), adamw: 0.0 }, model, gradients)?;
        let full = dedicated.full_model(&model, Rank(0))?;
        Ok((full.map(|full| values(&full)), muon.report().ns_calls))
    })
    .unwrap();
    let calls = ranks.iter().map(|(_, calls)| calls).sum();
    (ranks[0].0.clone().unwrap(), gradients, calls)
}

fn assert_update(before: &Named, after: &Named, gradient: &Named, name: &str, view: [usize; 3]) {
    let mut update = vec![0.0; gradient[name].len()];
    let mut workspace = Workspace::new(Parallelism::Serial);
    NewtonSchulz::new(NewtonSchulzConfig::default())
        .unwrap()
        .orthogonalize_batch(&mut workspace, &gradient[name], view, &mut update)
        .unwrap();
    assert!(update.iter().any(|&elem| elem.abs() > 0.01), "{name} moves");
    for ((before, after), update) in before[name].iter().zip(&after[name]).zip(update) {
        let expected = before - LR * update;
        assert!((after - expected).abs() < UPDATE_TOLERANCE, "{name}: {after}, not {expected}");
    }
}

#[test]
fn muon_sees_a_convolution_as_one_matrix_with_a_row_for_each_output() {
    let filters = seeded(24, Filters::new);
    let (after, gradients, calls) = one_step(&filters, &filters, Filters::forward);
    assert_eq!(calls, 4);
    for layer in 0..2 {
        let [plane, line] = ["plane", "line"].map(|name| format!("layers.{layer}.{name}.weight"));
        let before = values(&filters);
        assert_update(&before, &after, &gradients, &plane, [1, 6, BATCH * 3 * 2]);
        assert_update(&before, &after, &gradients, &line, [1, SEQ, SEQ * 3]);
    }
}

#[test]
fn muon_sees_three_dimensions_as_a_batch() {
    let mixture = seeded(25, Mixture::new);
    let (after, gradients, calls) = one_step(&mixture, &mixture, Mixture::forward);
    assert_eq!(calls, 3 * BATCH);
    for layer in 0..3 {
        let name = format!("layers.{layer}.weight");
        assert_update(&values(&mixture), &after, &gradients, &name, [BATCH, WIDTH, WIDTH]);
    }
}

#[test]
fn muon_sees_a_column_major_weight_as_its_layer_does() {
    let columns = seeded(26, Columns::new);
    let rows = columns.clone().in_rows();
    let (after, gradients, _) = one_step(&columns, &rows, Columns::forward);
    for (layer, [rows, cols]) in [[WIDTH, 2 * WIDTH], [2 * WIDTH, WIDTH]].into_iter().enumerate() {
        let name = format!("layers.{layer}.weight");
        assert_update(&values(&columns), &after, &gradients, &name, [1, rows, cols]);
    }
}

#[test]
fn a_full_model_saves_a_column_major_weight_in_its_own_form() {
    let columns = seeded(27, Columns::new);
    let full = on_ranks(2, |world| {
        let (columns, dedicated) = dedicate(&world, &columns, |d| d)?;
        dedicated.full_model(&columns, Rank(0))
    });
    let full = full.unwrap().swap_remove(0).unwrap();
    let record = full.into_record();
    let loaded = drawing(28, Columns::new).load_record(record);
    for (name, value) in values(&columns) {
        assert_same_bits(&values(&loaded)[&name], &value, &name);
    }
}

/// Dedicates a model of which nothing is initialized yet; returns first outputs and all weights.
fn lazily<M: Module + Sync>(
    seed: u64,
    build: impl Fn(&Device) -> M + Sync,
    forward: impl Fn(&M, Tensor<3>) -> Tensor<3> + Sync,
) -> Vec<(Vec<f32>, Option<Named>)> {
    drawing(seed, |_| {
        let (mode, prefetch) = MODES[3];
        let run = on_ranks(3, |world| {
            let mesh = dmuon::Mesh::new(&world)?;
            let request = dmuon::Dedicate::new(&mesh).mode(mode).prefetch(prefetch);
            let (model, dedicated) = request.apply(build(&device()))?;
            let output = forward(&model, batch(0, 0));
            backward(&model, loss(output.clone()));
            let full = dedicated.full_model(&model, Rank(0))?;
            if let Some(full) = full.clone() {
                let plain = forward(&full.fork(&device()), batch(0, 0)).into_data();
                assert_eq!(output.to_data(), plain);
            }
            Ok((output.into_data().try_to_vec().unwrap(), full.map(|full| values(&full))))
        });
        run.unwrap()
    })
}

#[test]
fn lazily_initialized_models_depend_on_the_seed_alone() {
    fn check<M: Module + Sync>(
        build: impl Fn(&Device) -> M + Sync,
        forward: impl Fn(&M, Tensor<3>) -> Tensor<3> + Sync,
    ) {
        let [first, again] = [0, 1].map(|_| lazily(31, &build, &forward));
        for (rank, (output, weights)) in first.iter().enumerate() {
            assert_same_bits(output, &first[0].0, "every rank computes with the same weights");
            assert_same_bits(output, &again[rank].0, "outputs");
            assert_eq!(weights, &again[rank].1);
        }
        assert_ne!(first[0].1, lazily(32, &build, &forward)[0].1);
    }
    check(|device| Net::new(3, device), Net::forward);
    check(Columns::new, Columns::forward);
    check(Filters::new, Filters::forward);
}
