//! Training with packs that travel by address gives what it gives through the host.

use super::double::{Calls, ORDINAL, num_loans, reaching};
use crate::{Dedicate, FullyShard, Hooked, MuonConfig, Result, Route};
use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Device, DeviceKind, FloatDType, Tensor, TensorData};
use dmuon_core::{FloatType, Memory, Mesh, Rank, World};
use dmuon_partition::Mode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const STEPS: usize = 3;

/// Sums on the host are divided there, and others on the device, which may round quotients in
/// another way; those by powers of two are exact. Fused operations round as they are fused.
const TOLERANCE: f32 = 1e-5;

#[derive(Module, Debug)]
struct Net {
    stem: Linear,
    layers: Vec<Hooked<Linear>>,
    head: Linear,
}

impl Net {
    /// The stem's weights are frozen.
    fn new(width: usize) -> Self {
        let device = Device::flex().autodiff();
        let linear = |out| LinearConfig::new(width, out).init(&device);
        let layers = (0..3).map(|_| Hooked::new(linear(width))).collect();
        let net = Self { stem: linear(width).no_grad(), layers, head: linear(5) };
        crate::initialize(&net);
        net
    }

    fn body(&self, x: Tensor<2>) -> Tensor<2> {
        let layer = |layer: &Linear, x| layer.forward(x).tanh();
        let x = self.stem.forward(x);
        self.layers.iter().fold(x, |x, block| block.run(x, layer))
    }
}

/// How a model is distributed, and where.
#[derive(Clone, Copy, Debug)]
struct Setting {
    width: usize,
    mesh: (usize, usize),
    mode: Mode,
    shards_the_rest: bool,
    float: FloatType,
    /// Rank 0's engine takes memory of the host only.
    mixed: bool,
    moves: Moves,
}

/// Where a model goes after it was dedicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moves {
    Nowhere,
    /// From Flex to the device, before it is sharded.
    There,
    /// From the device to Flex, where it is published again.
    Back,
}

impl Setting {
    fn new(mesh: (usize, usize), mode: Mode, shards_the_rest: bool) -> Self {
        let (width, float) = (12, FloatType::F32);
        Self { width, mesh, mode, shards_the_rest, float, mixed: false, moves: Moves::Nowhere }
    }
}

/// What one rank's training leaves: what everyone holds, its losses, and the weights on rank 0.
fn rank_main(world: &World, net: &Net, device: &Device, setting: Setting) -> Result<Vec<f32>> {
    let Setting { width, mesh: (replicate, shard), float, .. } = setting;
    let mesh = Mesh::hsdp(world, replicate, shard)?;
    let request = Dedicate::new(&mesh).mode(setting.mode).route("head.bias", Route::Replicated);
    let (device, flex) = (device.clone().autodiff(), Device::flex().autodiff());
    let (home, ad) = match setting.moves {
        Moves::Nowhere => (&device, &device),
        Moves::There => (&flex, &device),
        Moves::Back => (&device, &flex),
    };
    let request = request.compute_type(float).reduce_type(float);
    let (mut model, mut handle) = request.apply(net.clone().fork(home))?;
    if setting.moves == Moves::There {
        model = model.fork(ad);
    }
    if setting.shards_the_rest {
        let request = FullyShard::new(&mesh).compute_type(float).reduce_type(float);
        (model, handle) = request.apply(model)?;
    }
    if setting.moves == Moves::Back {
        model = handle.publish(model.fork(ad))?;
    }
    let mut muon = MuonConfig::new().with_max_norm(Some(0.5)).init(&handle)?;
    let mut numbers = Vec::new();
    let forward = |model: &Net, number: usize| {
        let elem = |i: usize| ((i * 37 + number * 11 + world.rank().0 * 5) % 17) as f32 / 17.0;
        let data = TensorData::new((0..4 * width).map(elem).collect(), [4, width]);
        model.body(Tensor::<2>::from_data(data, ad).cast(dtype(float)))
    };
    let loss = |y: Tensor<2>| y.cast(FloatDType::F32).square().mean();
    let backward =
        |model: &Net, number| loss(model.head.forward(forward(model, number))).backward();
    for step in 0..STEPS {
        let is_last = world.size() > 1 && world.rank().0 + 1 == world.size();
        match step {
            0 => handle.no_sync(|| drop(backward(&model, 2 * step))),
            1 => handle.accumulate(|| drop(backward(&model, 2 * step))),
            _ => {}
        }
        let gradients = match step {
            // The last rank leaves the whole model out, ..
            2 if is_last => GradientsParams::new(),
            _ => {
                let y = forward(&model, 2 * step + 1);
                // .. or the head.
                let y = if step == 1 && is_last { y } else { model.head.forward(y) };
                let loss = loss(y);
                numbers.push(loss.clone().into_scalar::<f32>());
                GradientsParams::from_grads(loss.backward(), &model)
            }
        };
        model = muon.step(0.02, model, gradients)?;
    }
    // What everyone holds.
    numbers.splice(0..0, elems(&model.head.bias.as_ref().map(Param::base)));
    let full = handle.full_model(&model, Rank(0))?;
    drop((model, muon, handle));
    check_all_is_free(world, &device, &setting);
    if let Some(full) = full {
        struct Elems(Vec<f32>);
        impl ModuleVisitor for Elems {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.0.extend(elems(&Some(param.val())));
            }
        }
        let mut elems = Elems(numbers);
        full.visit(&mut elems);
        numbers = elems.0;
    }
    Ok(numbers)
}

/// The device's thread lets go of what it has uploaded in its own time.
fn check_all_is_free(world: &World, device: &Device, setting: &Setting) {
    device.sync().expect("the device works");
    let since = Instant::now();
    while world.ledger().current_total_bytes() > 0 {
        let held = world.ledger();
        assert!(since.elapsed() < Duration::from_secs(5), "{setting:?}: {held:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn elems<const D: usize>(tensor: &Option<Tensor<D>>) -> Vec<f32> {
    let data = tensor.clone().expect("a parameter").into_data();
    data.try_to_vec().expect("parameters are f32")
}

fn dtype(float: FloatType) -> FloatDType {
    match float {
        FloatType::F32 => FloatDType::F32,
        FloatType::F16 => FloatDType::F16,
        FloatType::Bf16 => FloatDType::BF16,
    }
}

/// Trains on ranks whose engine takes such memory; returns what each has, and how collectives of
/// packs started: on the host, and on the device.
fn train(
    net: &Net,
    device: &Device,
    setting: Setting,
    memory: Memory,
) -> (Vec<Vec<f32>>, [usize; 2]) {
    let (num_ranks, calls) = (setting.mesh.0 * setting.mesh.1, Arc::new(Calls::default()));
    let ranks = dmuon_core::launch::<_, crate::Error, _>(num_ranks, |world| {
        let memory = match setting.mixed && world.rank() == Rank(0) {
            true => Memory::Host,
            false => memory,
        };
        rank_main(&reaching(&world, memory, &calls), net, device, setting)
    });
    (ranks.unwrap(), calls.get())
}

/// Trains both ways.
fn check(settings: &[Setting]) {
    // Tests count what is lent, and the device has few cores here.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = &Device::wgpu(DeviceKind::DefaultDevice);
    let able = settings.iter().filter(|setting| device.supports_dtype(dtype(setting.float)));
    assert!(able.clone().count() > 0, "{device:?} can do none of {settings:?}");
    for &setting in able {
        let net = Net::new(setting.width);
        let taken = Memory::HostOrCuda { ordinal: ORDINAL };
        let (by_address, [on_host, on_device]) = train(&net, device, setting, taken);
        assert_eq!(num_loans(), 0, "{setting:?}");
        let (staged, calls) = train(&net, device, setting, Memory::Host);
        assert_eq!(calls, [on_host + on_device, 0], "{setting:?}");
        // Else only the full model is gathered there, from one replica's shards of five boundaries.
        let num_parts = if setting.shards_the_rest { 5 * setting.mesh.1 } else { 0 };
        match setting.mixed {
            true => assert!(on_host > num_parts && on_device > on_host, "{setting:?}"),
            false => assert_eq!(on_host, num_parts, "{setting:?}"),
        }
        let num_ranks = setting.mesh.0 * setting.mesh.1;
        let exact = num_ranks.is_power_of_two() && !cfg!(feature = "fusion");
        let tolerance = if exact { 0.0 } else { TOLERANCE };
        for (ours, staged) in by_address.iter().zip(&staged) {
            assert_eq!(ours[..5], by_address[0][..5], "{setting:?}");
            assert_eq!(ours.len(), staged.len(), "{setting:?}");
            for (ours, staged) in ours.iter().zip(staged) {
                let differ = (ours - staged).abs();
                assert!(differ <= tolerance, "{setting:?}: {ours} is not {staged}");
            }
        }
    }
}

#[test]
fn packs_travel_by_address_as_through_the_host() {
    check(&[
        Setting::new((1, 2), Mode::Z2, false),
        Setting::new((1, 2), Mode::Z3, true),
        Setting::new((2, 2), Mode::Z3, true),
        Setting::new((1, 3), Mode::Z3, true),
    ]);
}

#[test]
fn groups_and_worlds_of_one_have_their_packs_where_they_are() {
    check(&[
        Setting::new((2, 1), Mode::Z2, true),
        Setting::new((1, 1), Mode::Z3, true),
        Setting { float: FloatType::F16, ..Setting::new((2, 1), Mode::Z3, false) },
    ]);
}

#[test]
fn halves_are_rounded_in_the_same_places() {
    let floats = [FloatType::F16, FloatType::Bf16];
    check(&floats.map(|float| Setting { float, ..Setting::new((2, 2), Mode::Z3, true) }));
}

#[test]
fn wide_weights_travel_as_narrow_ones() {
    check(&[Setting { width: 192, ..Setting::new((1, 2), Mode::Z3, true) }]);
}

#[test]
fn some_ranks_may_have_no_address_to_give() {
    check(&[Setting { mixed: true, ..Setting::new((2, 2), Mode::Z2, true) }]);
}

#[test]
fn models_may_be_moved_between_dedicating_and_sharding_or_publishing() {
    check(&[
        Setting { moves: Moves::There, ..Setting::new((1, 2), Mode::Z3, true) },
        Setting { moves: Moves::Back, ..Setting::new((2, 2), Mode::Z3, true) },
        Setting { moves: Moves::Back, ..Setting::new((1, 2), Mode::Z2, false) },
    ]);
}
