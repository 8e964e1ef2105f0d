//! The same training on the device and on Flex: losses and weights agree to rounding.

use crate::device::hold;
use crate::support::*;
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use dmuon::newton_schulz::{Form, Precision};
use dmuon::{
    AdamW, Dedicate, FullyShard, Mesh, Method, Mode, MuonConfig, Rank, ReplicatePublish, Result,
    World,
};

const STEPS: usize = 5;

/// The device sums products in another order than Flex, and Newton–Schulz runs in its operations.
/// Both round by about 1e-7 of values near 1; Newton–Schulz amplifies what that does to small
/// singular values (least in the direct form), and every step passes the difference on. A step
/// moves an element by up to 0.02: this is a two-thousandth of a single wrong step.
const TOLERANCE: f32 = 1e-5;

/// Burn's encoder also has a GELU, whose error function devices approximate, and which AdamW's
/// normalized steps of small bias gradients pass on: a hundredth of a wrong step.
const ENCODER_TOLERANCE: f32 = 2e-4;

/// Keeps AdamW from turning the rounding of an element near zero into a whole step.
const LARGE_EPS: f64 = 1e-3;

/// How a model is distributed.
#[derive(Clone, Copy, Debug)]
struct Setting {
    mesh: (usize, usize),
    mode: Mode,
    publish: ReplicatePublish,
    shards_the_rest: bool,
    /// Micro-batches of a step; all but the last inside `no_sync`.
    micro_batches: usize,
    max_norm: Option<f64>,
}

impl Setting {
    fn new(mesh: (usize, usize), mode: Mode) -> Self {
        let publish = ReplicatePublish::Async;
        Self { mesh, mode, publish, shards_the_rest: false, micro_batches: 1, max_norm: None }
    }

    fn num_ranks(&self) -> usize {
        self.mesh.0 * self.mesh.1
    }

    fn config(&self) -> MuonConfig {
        let adamw = AdamW { eps: LARGE_EPS, ..AdamW::default() };
        MuonConfig::new().with_adamw(adamw).with_form(Form::Direct).with_max_norm(self.max_norm)
    }
}

/// What a run leaves: all ranks' losses, an evaluation after the last step, and rank 0's full model.
struct Run {
    losses: Vec<Vec<f32>>,
    weights: Named,
}

/// One rank's training on `device`.
fn rank_main<M: Module>(
    world: &World,
    model: &M,
    device: &Device,
    setting: &Setting,
    forward: impl Fn(&M, Tensor<3>) -> Tensor<3>,
) -> Result<(Vec<f32>, Option<Named>)> {
    let Setting { mesh: (replicate, shard), mode, publish, .. } = *setting;
    let ad = device.clone().autodiff();
    let mesh = Mesh::hsdp(world, replicate, shard)?;
    let request = Dedicate::new(&mesh).mode(mode).publish(publish);
    let (mut model, mut handle) = request.apply(model.clone().fork(&ad))?;
    if setting.shards_the_rest {
        (model, handle) = FullyShard::new(&mesh).apply(model)?;
    }
    let mut muon = setting.config().init(&handle)?;
    let mut losses = Vec::new();
    let input = |batch_number: usize| batch(batch_number, world.rank().0).to_device(device);
    for step in 0..STEPS {
        let first = step * setting.micro_batches;
        let last = first + setting.micro_batches - 1;
        let backward =
            |model: &M, number| loss(forward(model, input(number).autodiff())).backward();
        handle.no_sync(|| (first..last).for_each(|number| drop(backward(&model, number))));
        let loss = loss(forward(&model, input(last).autodiff()));
        losses.push(loss.clone().into_scalar::<f32>());
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = muon.step(0.02, model, gradients)?;
        assert_eq!(muon.report().missing, Vec::<String>::new());
        assert!(muon.report().updates.iter().all(|update| !update.too_large));
    }
    losses.push(loss(forward(&model.valid(), input(0))).into_scalar::<f32>());
    let full = handle.full_model(&model, Rank(0))?;
    Ok((losses, full.map(|full| values(&full))))
}

fn train<M: Module + Sync>(
    model: &M,
    device: &Device,
    setting: &Setting,
    forward: impl Fn(&M, Tensor<3>) -> Tensor<3> + Sync,
) -> Run {
    let ranks =
        on_ranks(setting.num_ranks(), |world| rank_main(&world, model, device, setting, &forward));
    let mut ranks = ranks.unwrap();
    let weights = ranks[0].1.take().unwrap();
    Run { losses: ranks.into_iter().map(|(losses, _)| losses).collect(), weights }
}

/// The largest difference of two lists, all of whose numbers must be some.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let differences: Vec<f32> = a.iter().zip(b).map(|(a, b)| (a - b).abs()).collect();
    assert!(differences.iter().all(|difference| difference.is_finite()), "{a:?} {b:?}");
    differences.into_iter().fold(0.0, f32::max)
}

/// Trains on the device and on Flex.
fn check<M: Module + Sync>(
    model: &M,
    settings: &[Setting],
    tolerance: f32,
    forward: impl Fn(&M, Tensor<3>) -> Tensor<3> + Sync,
) {
    let held = hold();
    for setting in settings {
        let ours = train(model, &held.device, setting, &forward);
        let flex = train(model, &Device::flex(), setting, &forward);
        for (ours, flex) in ours.losses.iter().zip(&flex.losses) {
            assert!(ours[STEPS] < ours[0], "{setting:?} learns: {ours:?}");
            let differ = distance(ours, flex);
            assert!(differ < tolerance, "{setting:?}: losses differ by {differ:e}");
        }
        assert!(ours.weights.keys().eq(flex.weights.keys()));
        for (name, ours) in &ours.weights {
            let differ = distance(ours, &flex.weights[name]);
            assert!(differ < tolerance, "{setting:?}: {name} differs by {differ:e}");
        }
    }
}

#[test]
fn hooked_blocks_train_as_on_flex() {
    let net = seeded(1, |device| Net::new(2, device));
    let settings = [Mode::Z2, Mode::Z3].map(|mode| Setting::new((1, 2), mode));
    check(&net, &settings, TOLERANCE, Net::forward);
}

#[test]
fn three_ranks_train_as_on_flex() {
    let net = seeded(2, |device| Net::new(3, device));
    check(&net, &[Setting::new((1, 3), Mode::Z3)], TOLERANCE, Net::forward);
}

#[test]
fn replicas_train_as_on_flex() {
    let net = seeded(3, |device| Net::new(2, device));
    let settings = [
        Setting { publish: ReplicatePublish::Sync, ..Setting::new((2, 2), Mode::Z2) },
        Setting::new((2, 2), Mode::Z3),
    ];
    check(&net, &settings, TOLERANCE, Net::forward);
}

#[test]
fn shards_micro_batches_and_clipping_are_as_on_flex() {
    let net = seeded(4, |device| Net::new(2, device));
    let settings = [(1, 2), (2, 2)].map(|mesh| Setting {
        shards_the_rest: true,
        micro_batches: 2,
        max_norm: Some(0.1),
        ..Setting::new(mesh, Mode::Z3)
    });
    check(&net, &settings, TOLERANCE, Net::forward);
}

#[test]
fn burns_own_encoder_trains_as_on_flex() {
    let closed = seeded(5, |device| Closed::new(2, device));
    let settings = [Mode::Z2, Mode::Z3].map(|mode| Setting::new((1, 2), mode));
    // The encoder ends in a norm, whose output alone has nearly the same square whatever the weights.
    check(&closed, &settings, ENCODER_TOLERANCE, |closed, x| closed.forward(x.clone()) - x);
}

#[test]
fn modes_and_meshes_agree_on_the_device_to_the_bit_unless_fused() {
    let held = hold();
    let net = seeded(6, |device| Net::new(2, device));
    let train = |setting: Setting| train(&net, &held.device, &setting, Net::forward);
    let first = train(Setting::new((1, 4), Mode::Z2));
    for (mesh, mode) in [((1, 4), Mode::Z3), ((2, 2), Mode::Z2), ((2, 2), Mode::Z3)] {
        let other = train(Setting::new(mesh, mode));
        for (name, weight) in &first.weights {
            let what = format!("{mesh:?} {mode} {name}");
            match cfg!(feature = "fusion") {
                // What is fused with what depends on when each weight is there.
                true => assert!(distance(weight, &other.weights[name]) < TOLERANCE, "{what}"),
                false => assert_same_bits(weight, &other.weights[name], &what),
            }
        }
    }
}

#[test]
fn newton_schulz_is_direct_and_in_tensor_operations_by_default() {
    let held = hold();
    let net = seeded(7, |device| Net::new(1, device));
    on_ranks(1, |world| {
        let device = held.device.clone().autodiff();
        let mesh = Mesh::new(&world)?;
        let (model, handle) = Dedicate::new(&mesh).apply(net.clone().fork(&device))?;
        let mut muon = MuonConfig::new().init(&handle)?;
        let input = batch(0, 0).to_device(&held.device).autodiff();
        let backward = loss(model.forward(input)).backward();
        let gradients = GradientsParams::from_grads(backward, &model);
        muon.step(0.02, model, gradients)?;
        let updates = &muon.report().updates;
        assert!(!updates.is_empty());
        let direct = Method { form: Form::Direct, precision: Precision::F32, kernel: None };
        assert!(updates.iter().all(|update| update.method == direct), "{updates:?}");
        Ok(())
    })
    .unwrap();
}
