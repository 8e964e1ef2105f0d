//! A test double of an engine that takes a device's memory: nobody here has a GPU. It takes that of
//! wgpu's devices, at made-up addresses, and moves it through the ranks on threads.

use super::Loan;
use burn::tensor::Bytes;
use burn_cubecl::tensor::CubeTensor;
use dmuon_core::{
    BufferPool, Call, Capabilities, DeviceTransfer, Error, FloatType, Group, Memory, Pending, Rank,
    Recorder, Result, SharedBuffer, Work, World,
};
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

/// How many loans have not ended.
pub(super) fn num_loans() -> usize {
    loans().tensors.len()
}

fn read(address: u64) -> Vec<u8> {
    let CubeTensor { client, handle, .. } = loans().tensors[&address].clone();
    client.read_one(handle).expect("the device works").to_vec()
}

fn write(address: u64, bytes: &[u8]) {
    let CubeTensor { client, handle, .. } = loans().tensors[&address].clone();
    client.write(&handle, Bytes::from_bytes_vec(bytes.to_vec()));
}

/// A rank of `world` whose groups take such memory, and count their calls.
pub(super) fn reaching(world: &World, memory: Memory, calls: &Arc<Calls>) -> World {
    let group = Reaching { inner: world.group(), memory, calls: calls.clone() };
    let (pool, ledger) = (world.pool().clone(), world.ledger().clone());
    let (recorder, deadline) = (world.recorder().clone(), world.deadline());
    World::new(Arc::new(group), pool, ledger, recorder, deadline)
}

/// A group of ranks on threads that takes memory of the device, or the host's only.
#[derive(Debug)]
struct Reaching {
    inner: Arc<dyn Group>,
    memory: Memory,
    calls: Arc<Calls>,
}

/// How many collectives of packs a world has started.
#[derive(Debug, Default)]
pub(super) struct Calls {
    on_host: AtomicUsize,
    on_device: AtomicUsize,
}

impl Calls {
    /// On the host, and on the device.
    pub(super) fn get(&self) -> [usize; 2] {
        [&self.on_host, &self.on_device].map(|count| count.load(Relaxed))
    }
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

    fn split(&self, color: usize, key: usize, name: &str) -> Result<Arc<dyn Group>> {
        let inner = self.inner.split(color, key, name)?;
        Ok(Arc::new(Self { inner, memory: self.memory, calls: self.calls.clone() }))
    }

    fn start(&self, call: Call, input: Option<SharedBuffer>) -> Result<Work> {
        if self.name().ends_with("weights") || self.name().ends_with("gradients") {
            self.calls.on_host.fetch_add(1, Relaxed);
        }
        self.inner.start(call, input)
    }

    fn start_on_device(&self, call: Call, transfer: DeviceTransfer) -> Result<Work> {
        self.calls.on_device.fetch_add(1, Relaxed);
        let (pool, place) = (BufferPool::default(), (self.rank(), self.size()));
        let wide = call.carried_out();
        transfer.check(&wide, place, self.ranks()[self.rank()], || unreachable!("{wide:?}"))?;
        let sent = transfer.input.as_ref().map(|input| read(input.address()));
        let input = sent.as_ref().map(|bytes| {
            let buffer = pool.take_copy(bytes).freeze();
            call.sums_widened().map_or(buffer.clone(), |float| float.narrow(buffer, &pool))
        });
        let trace = Recorder::new(Rank(0), Instant::now(), 1);
        let trace = trace.issue(&wide, &self.name().into(), 0, place);
        let sums = call.sums_widened();
        let inner = self.inner.start(call, input)?;
        Ok(Work::new(Box::new(Landing { inner, transfer, sent, sums, pool }), trace))
    }

    fn health(&self) -> Result<()> {
        self.inner.health()
    }

    fn abort(&self, cause: Error) {
        self.inner.abort(cause);
    }
}

struct Landing {
    inner: Work,
    transfer: DeviceTransfer,
    /// What the input was when the collective was started.
    sent: Option<Vec<u8>>,
    sums: Option<FloatType>,
    pool: BufferPool,
}

impl Pending for Landing {
    fn wait(self: Box<Self>, deadline: Duration) -> Result<Option<SharedBuffer>> {
        let Self { inner, transfer, sent, sums, pool } = *self;
        let result = inner.wait(deadline)?;
        let still = transfer.input.map(|input| read(input.address()));
        assert!(still == sent, "an engine may read its input until now");
        if let (Some(result), Some(output)) = (result, transfer.output) {
            let result = sums.map_or(result.clone(), |float| float.widen(result, &pool));
            write(output.address(), &result);
        }
        Ok(None)
    }

    fn is_done(&self) -> bool {
        self.inner.is_done()
    }
}
