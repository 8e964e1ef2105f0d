//! Where packed buffers live, what is done to them there, and how they get to a group and back.

use crate::{
    Buffer, BufferPool, Call, FloatType, Group, Holding, Lease, Ledger, Result, SharedBuffer, Work,
    World,
};
use std::fmt::Debug;
use std::marker::PhantomData;
use std::ops::Range;
use std::time::Duration;

/// What the exchange leaves to whoever has the memory that packed buffers are in.
pub trait PackMemory: Debug {
    /// A pack that is complete: weights, or averaged gradients. Clones are the same memory.
    type Pack: Clone + Debug;
    /// One parameter's gradient, as backward hands it over.
    type Gradient: ?Sized;
    /// A pack of gradients in `f32` that is being filled.
    type Filling: Debug;
    /// A pack of gradients in `f32` that is complete, on its way to an average.
    type Sums: Debug;

    /// `buffer`, of `float`s, as a pack that counts as `holding` while anything uses it.
    fn hold(&self, holding: Holding, buffer: &SharedBuffer, float: FloatType) -> Self::Pack;

    /// Whether nothing else uses the pack.
    fn is_unique(&self, pack: &Self::Pack) -> bool;

    /// Starts a collective that moves packs.
    ///
    /// # Errors
    /// As [`Group::start`].
    fn send(
        &self,
        group: &dyn Group,
        call: Call,
        pack: Option<&Self::Pack>,
    ) -> Result<InFlight<Self::Pack>>;

    /// Waits for a pack of `float`s, where this rank receives one.
    ///
    /// # Errors
    /// As [`Work::wait`].
    fn receive(
        &self,
        in_flight: InFlight<Self::Pack>,
        deadline: Duration,
        holding: Holding,
        float: FloatType,
    ) -> Result<Option<Self::Pack>>;

    /// An empty pack of `num_elems` gradients.
    fn fill(&self, num_elems: usize) -> Self::Filling;

    /// Writes a piece of a gradient, or adds it to what was written there before.
    fn put(
        &self,
        filling: &mut Self::Filling,
        gradient: &Self::Gradient,
        piece: Piece,
        first: bool,
    );

    /// Completes a pack: zeros in the `gaps`, where nothing was put, and `presence` in each of the
    /// `lanes`.
    ///
    /// # Errors
    /// The device does not work any more.
    fn complete(
        &self,
        filling: Self::Filling,
        gaps: &[Range<usize>],
        lanes: &[Range<usize>],
        presence: &[f32],
    ) -> Result<Self::Sums>;

    /// Starts a collective that sums packs; they travel as the call's elements.
    ///
    /// # Errors
    /// As [`Group::start`].
    fn start_sum(
        &self,
        group: &dyn Group,
        call: Call,
        sums: Self::Sums,
    ) -> Result<InFlight<Self::Sums>>;

    /// Waits for sums that travelled as `float`s, where this rank receives some.
    ///
    /// # Errors
    /// As [`Work::wait`].
    fn wait_sum(
        &self,
        in_flight: InFlight<Self::Sums>,
        deadline: Duration,
        float: FloatType,
    ) -> Result<Option<Self::Sums>>;

    /// Element by element, `kept + more`.
    ///
    /// # Errors
    /// The device does not work any more.
    fn add(&self, kept: Self::Sums, more: Self::Sums) -> Result<Self::Sums>;

    /// Divides what comes before the lanes by `divisor` and multiplies it by `scale`. Returns that,
    /// with anything in place of the lanes, and the lanes.
    ///
    /// # Errors
    /// The device does not work any more.
    fn average(
        &self,
        sums: Self::Sums,
        lanes: Range<usize>,
        divisor: f32,
        scale: f32,
    ) -> Result<(Self::Pack, Vec<f32>)>;
}

/// Elements of a gradient, and where they go in its pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which of the gradient's elements, in row-major order.
    pub of_gradient: Range<usize>,
    /// The pack's elements, as many.
    pub at: Range<usize>,
}

/// A started collective, and where its result will be unless the engine hands over a buffer.
#[derive(Debug)]
pub struct InFlight<T> {
    work: Work,
    landing: Option<T>,
}

impl<T> InFlight<T> {
    /// A collective whose result is a host buffer.
    pub fn on_host(work: Work) -> Self {
        Self { work, landing: None }
    }

    /// A collective whose result, if this rank has one, will be in `landing`.
    pub fn on_device(work: Work, landing: Option<T>) -> Self {
        Self { work, landing }
    }

    /// The same collective, whose result is called otherwise.
    pub fn map<U>(self, landing: impl FnOnce(T) -> U) -> InFlight<U> {
        InFlight { work: self.work, landing: self.landing.map(landing) }
    }

    /// Whether waiting would return at once.
    pub fn is_done(&self) -> bool {
        self.work.is_done()
    }

    /// Waits for the result, if this rank has one.
    ///
    /// # Errors
    /// As [`Work::wait`].
    pub fn wait(
        self,
        deadline: Duration,
        from_host: impl FnOnce(SharedBuffer) -> T,
    ) -> Result<Option<T>> {
        let buffer = self.work.wait(deadline)?;
        Ok(self.landing.or_else(|| buffer.map(from_host)))
    }
}

/// What the runtime above makes of a packed host buffer, e.g. storage for tensors.
pub trait PackView: Clone + Debug {
    /// Wraps a buffer of `float`s that this rank may read while the view, or anything made from
    /// it, lives.
    fn new(lease: Lease, float: FloatType) -> Self;

    /// Whether nothing else uses the buffer through this view.
    fn is_unique(&self) -> bool;

    /// The buffer.
    fn buffer(&self) -> SharedBuffer;
}

/// Packed buffers in host memory, seen as `V`s, and filled from gradients that are `G`s.
#[derive(Debug)]
pub struct HostMemory<V, G: ?Sized = [f32]> {
    pool: BufferPool,
    ledger: Ledger,
    of: PhantomData<fn(&G) -> V>,
}

impl<V, G: ?Sized> Clone for HostMemory<V, G> {
    fn clone(&self) -> Self {
        Self { pool: self.pool.clone(), ledger: self.ledger.clone(), of: PhantomData }
    }
}

impl<V, G: ?Sized> HostMemory<V, G> {
    /// The memory of a rank of `world`.
    pub fn new(world: &World) -> Self {
        let (pool, ledger) = (world.pool().clone(), world.ledger().clone());
        Self { pool, ledger, of: PhantomData }
    }

    /// Where its buffers come from.
    pub fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// Where they are counted.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn unique(&self, sums: SharedBuffer) -> Buffer {
        // An all-reduce may hand the very same memory to every rank of the process.
        sums.try_into_unique().unwrap_or_else(|shared| self.pool.take_copy(&shared))
    }
}

impl<V: PackView, G: AsRef<[f32]> + Debug + ?Sized> PackMemory for HostMemory<V, G> {
    type Pack = V;
    type Gradient = G;
    type Filling = Buffer;
    type Sums = SharedBuffer;

    fn hold(&self, holding: Holding, buffer: &SharedBuffer, float: FloatType) -> V {
        V::new(self.ledger.hold(holding, buffer.clone()), float)
    }

    fn is_unique(&self, pack: &V) -> bool {
        pack.is_unique()
    }

    fn send(&self, group: &dyn Group, call: Call, pack: Option<&V>) -> Result<InFlight<V>> {
        group.start(call, pack.map(V::buffer)).map(InFlight::on_host)
    }

    fn receive(
        &self,
        in_flight: InFlight<V>,
        deadline: Duration,
        holding: Holding,
        float: FloatType,
    ) -> Result<Option<V>> {
        in_flight.wait(deadline, |buffer| self.hold(holding, &buffer, float))
    }

    fn fill(&self, num_elems: usize) -> Buffer {
        self.pool.take(num_elems * size_of::<f32>())
    }

    fn put(&self, filling: &mut Buffer, gradient: &G, piece: Piece, first: bool) {
        let (elems, out) =
            (&gradient.as_ref()[piece.of_gradient], &mut filling.as_f32_mut()[piece.at]);
        match first {
            true => out.copy_from_slice(elems),
            false => out.iter_mut().zip(elems).for_each(|(out, elem)| *out += elem),
        }
    }

    fn complete(
        &self,
        mut filling: Buffer,
        gaps: &[Range<usize>],
        lanes: &[Range<usize>],
        presence: &[f32],
    ) -> Result<SharedBuffer> {
        let elems = filling.as_f32_mut();
        gaps.iter().for_each(|gap| elems[gap.clone()].fill(0.0));
        lanes.iter().for_each(|lanes| elems[lanes.clone()].copy_from_slice(presence));
        Ok(filling.freeze())
    }

    fn start_sum(
        &self,
        group: &dyn Group,
        call: Call,
        sums: SharedBuffer,
    ) -> Result<InFlight<SharedBuffer>> {
        let narrowed = match call.sums_widened() {
            Some(float) => float.narrow(sums, &self.pool),
            None => sums,
        };
        group.start(call, Some(narrowed)).map(InFlight::on_host)
    }

    fn wait_sum(
        &self,
        in_flight: InFlight<SharedBuffer>,
        deadline: Duration,
        float: FloatType,
    ) -> Result<Option<SharedBuffer>> {
        in_flight.wait(deadline, |sums| float.widen(sums, &self.pool))
    }

    fn add(&self, kept: SharedBuffer, more: SharedBuffer) -> Result<SharedBuffer> {
        let mut kept = self.unique(kept);
        kept.as_f32_mut().iter_mut().zip(more.as_f32()).for_each(|(kept, more)| *kept += more);
        Ok(kept.freeze())
    }

    fn average(
        &self,
        sums: SharedBuffer,
        lanes: Range<usize>,
        divisor: f32,
        scale: f32,
    ) -> Result<(V, Vec<f32>)> {
        let mut sums = self.unique(sums);
        let elems = &mut sums.as_f32_mut()[..lanes.start];
        match scale {
            1.0 => elems.iter_mut().for_each(|elem| *elem /= divisor),
            scale => elems.iter_mut().for_each(|elem| *elem = *elem / divisor * scale),
        }
        let lanes = sums.as_f32()[lanes].to_vec();
        Ok((self.hold(Holding::Gradients, &sums.freeze(), FloatType::F32), lanes))
    }
}
