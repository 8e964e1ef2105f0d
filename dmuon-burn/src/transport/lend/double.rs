//! A test double of an engine that takes a device's memory: nobody here has a GPU. It takes that of
//! wgpu's devices, at made-up addresses, and moves it through the ranks on threads.

use super::Loan;
use crate::{Dedicate, FullyShard, Hooked, MuonConfig, Result};
use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Bytes, Device, FloatDType, Tensor, TensorData};
use burn_cubecl::tensor::CubeTensor;
use dmuon_core::{
    BufferPool, Call, Capabilities, DeviceTransfer, Error, FloatType, Group, Memory, Mesh, Pending,
    Rank, Recorder, SharedBuffer, Work, World,
};
use dmuon_partition::Mode;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What the double's groups call their device.
pub(super) const ORDINAL: usize = usize::MAX;

/// What is lent, by address.
static LOANS: LazyLock<Mutex<Loans>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Loans {
    tensors: HashMap<u64, CubeTensor>,
    last: u64,
}

/// Ends a loan when dropped.
struct Lender(u64);

/// Lends a tensor's memory.
pub(super) fn loan(tensor: CubeTensor) -> Loan {
    let mut loans = loans();
    loans.last += 1;
    let address = loans.last;
    let room = tensor.handle.size_in_used();
    loans.tensors.insert(address, tensor);
    Loan { address, room, lender: Arc::new(Lender(address)) }
}

impl Drop for Lender {
    fn drop(&mut self) {
        let ended = loans().tensors.remove(&self.0);
        drop(ended);
    }
}

fn loans() -> MutexGuard<'static, Loans> {
    LOANS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lent(address: u64) -> CubeTensor {
    loans().tensors[&address].clone()
}

/// A group of ranks on threads that takes memory of the device, or the host's only.
#[derive(Debug)]
struct Reaching {
    inner: Arc<dyn Group>,
    memory: Memory,
    calls: Arc<Calls>,
}

/// How many collectives a world has started.
#[derive(Debug, Default)]
struct Calls {
    on_host: AtomicUsize,
    on_device: AtomicUsize,
}

impl Group for Reaching {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn ranks(&self) -> &[Rank] {
        self.inner.ranks()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { memory: self.memory, ..self.inner.capabilities() }
    }

    fn split(&self, color: usize, key: usize, name: &str) -> dmuon_core::Result<Arc<dyn Group>> {
        let inner = self.inner.split(color, key, name)?;
        Ok(Arc::new(Self { inner, memory: self.memory, calls: self.calls.clone() }))
    }

    fn start(&self, call: Call, input: Option<SharedBuffer>) -> dmuon_core::Result<Work> {
        if self.name().ends_with("weights") || self.name().ends_with("gradients") {
            self.calls.on_host.fetch_add(1, Relaxed);
        }
        self.inner.start(call, input)
    }

    fn start_on_device(&self, call: Call, transfer: DeviceTransfer) -> dmuon_core::Result<Work> {
        self.calls.on_device.fetch_add(1, Relaxed);
        let (pool, place) = (BufferPool::default(), (self.rank(), self.size()));
        let wide = call.carried_out();
        transfer.check(&wide, place, self.ranks()[self.rank()], || unreachable!("{wide:?}"))?;
        let input = transfer.input.as_ref().map(|input| {
            let CubeTensor { client, handle, .. } = lent(input.address());
            let bytes = client.read_one(handle).expect("the device works");
            let buffer = pool.take_copy(&bytes).freeze();
            call.sums_widened().map_or(buffer.clone(), |float| float.narrow(buffer, &pool))
        });
        let trace = Recorder::new(Rank(0), Instant::now(), 1);
        let trace = trace.issue(&wide, &self.name().into(), 0, place);
        let sums = call.sums_widened();
        let inner = self.inner.start(call, input)?;
        Ok(Work::new(Box::new(Landing { inner, transfer, sums, pool }), trace))
    }

    fn health(&self) -> dmuon_core::Result<()> {
        self.inner.health()
    }

    fn abort(&self, cause: Error) {
        self.inner.abort(cause);
    }
}

struct Landing {
    inner: Work,
    transfer: DeviceTransfer,
    sums: Option<FloatType>,
    pool: BufferPool,
}

impl Pending for Landing {
    fn wait(self: Box<Self>, deadline: Duration) -> dmuon_core::Result<Option<SharedBuffer>> {
        let Self { inner, transfer, sums, pool } = *self;
        if let (Some(result), Some(output)) = (inner.wait(deadline)?, transfer.output) {
            let result = sums.map_or(result.clone(), |float| float.widen(result, &pool));
            let CubeTensor { client, handle, .. } = lent(output.address());
            client.write(&handle, Bytes::from_bytes_vec(result.to_vec()));
        }
        Ok(None)
    }

    fn is_done(&self) -> bool {
        self.inner.is_done()
    }
}

const WIDTH: usize = 12;
const STEPS: usize = 3;

#[derive(Module, Debug)]
struct Net {
    stem: Linear,
    layers: Vec<Hooked<Linear>>,
    head: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        let linear = |out| LinearConfig::new(WIDTH, out).init(device);
        let layers = (0..3).map(|_| Hooked::new(linear(WIDTH))).collect();
        Self { stem: linear(WIDTH), layers, head: linear(5) }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let layer = |layer: &Linear, x| layer.forward(x).tanh();
        let x = self.stem.forward(x);
        self.head.forward(self.layers.iter().fold(x, |x, block| block.run(x, layer)))
    }
}

/// How a model is distributed.
#[derive(Clone, Copy, Debug)]
struct Setting {
    mesh: (usize, usize),
    mode: Mode,
    shards_the_rest: bool,
    float: FloatType,
}

/// One rank's training; returns its losses and, on rank 0, the weights.
fn rank_main(world: &World, net: &Net, device: &Device, setting: Setting) -> Result<Vec<f32>> {
    let Setting { mesh: (replicate, shard), mode, shards_the_rest, float } = setting;
    let mesh = Mesh::hsdp(world, replicate, shard)?;
    let request = Dedicate::new(&mesh).mode(mode).compute_type(float).reduce_type(float);
    let ad = device.clone().autodiff();
    let (mut model, mut handle) = request.apply(net.clone().fork(&ad))?;
    if shards_the_rest {
        let request = FullyShard::new(&mesh).compute_type(float).reduce_type(float);
        (model, handle) = request.apply(model)?;
    }
    let mut muon = MuonConfig::new().with_max_norm(Some(0.5)).init(&handle)?;
    let mut numbers = Vec::new();
    let backward = |model: &Net, number: usize| {
        let elem = |i: usize| ((i * 37 + number * 11 + world.rank().0 * 5) % 17) as f32 / 17.0;
        let data = TensorData::new((0..4 * WIDTH).map(elem).collect(), [4, WIDTH]);
        let x = Tensor::<2>::from_data(data, &ad).cast(dtype(float));
        let loss = model.forward(x).cast(FloatDType::F32).square().mean();
        (loss.clone().into_scalar::<f32>(), loss.backward())
    };
    for step in 0..STEPS {
        handle.no_sync(|| drop(backward(&model, 2 * step)));
        let (loss, gradients) = backward(&model, 2 * step + 1);
        numbers.push(loss);
        let gradients = GradientsParams::from_grads(gradients, &model);
        model = muon.step(0.02, model, gradients)?;
    }
    if let Some(full) = handle.full_model(&model, Rank(0))? {
        struct Elems(Vec<f32>);
        impl ModuleVisitor for Elems {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.0.extend(param.val().into_data().try_to_vec::<f32>().expect("f32"));
            }
        }
        let mut elems = Elems(numbers);
        full.visit(&mut elems);
        numbers = elems.0;
    }
    Ok(numbers)
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
        let group = Reaching { inner: world.group(), memory, calls: calls.clone() };
        let (pool, ledger) = (world.pool().clone(), world.ledger().clone());
        let (recorder, deadline) = (world.recorder().clone(), world.deadline());
        let world = World::new(Arc::new(group), pool, ledger, recorder, deadline);
        rank_main(&world, net, device, setting)
    });
    (ranks.unwrap(), [calls.on_host.load(Relaxed), calls.on_device.load(Relaxed)])
}

/// Packs that are summed on the host are averaged there, others on the device: where ranks are no
/// power of two, the quotients are rounded there in another way. Fused operations round as they are
/// fused.
const TOLERANCE: f32 = 1e-5;

#[test]
fn packs_travel_by_address_as_through_the_host() {
    let device = Device::wgpu_options().init().expect("a Vulkan driver");
    let net = Net::new(&Device::flex().autodiff());
    crate::initialize(&net);
    let setting = |mesh, mode, shards_the_rest| Setting {
        mesh,
        mode,
        shards_the_rest,
        float: FloatType::F32,
    };
    let mut settings = vec![
        setting((1, 2), Mode::Z2, false),
        setting((1, 2), Mode::Z3, true),
        setting((2, 2), Mode::Z3, true),
        setting((2, 1), Mode::Z2, false),
        setting((1, 3), Mode::Z3, true),
    ];
    for float in [FloatType::F16, FloatType::Bf16] {
        if device.supports_dtype(dtype(float)) {
            settings.push(Setting { float, ..settings[2] });
        }
    }
    for setting in settings {
        let taken = Memory::HostOrCuda { ordinal: ORDINAL };
        let (by_address, [on_host, on_device]) = train(&net, &device, setting, taken);
        let (staged, calls) = train(&net, &device, setting, Memory::Host);
        assert_eq!(calls, [on_host + on_device, 0], "{setting:?}");
        // Only the full model is gathered there, from one replica's shards of five boundaries.
        let num_parts = if setting.shards_the_rest { 5 * setting.mesh.1 } else { 0 };
        assert_eq!(on_host, num_parts, "{setting:?}");
        assert!(loans().tensors.is_empty(), "{setting:?}: {} loans", loans().tensors.len());
        let exact = setting.mesh != (1, 3) && !cfg!(feature = "fusion");
        for (ours, staged) in by_address.iter().flatten().zip(staged.iter().flatten()) {
            let differ = (ours - staged).abs();
            let tolerance = if exact { 0.0 } else { TOLERANCE };
            assert!(differ <= tolerance, "{setting:?}: {ours} is not {staged}");
        }
    }
}
