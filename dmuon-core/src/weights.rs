//! Whole weights on this rank: what its column keeps and its owners publish, and copies on loan.

use crate::{
    Axis, Buffer, BufferPool, Call, Coordinate, FloatType, Group, Holder, Holding, Lease, Ledger,
    Mesh, Op, Pack, Result, ShardLayout, SharedBuffer, Stream, Unit, Work,
};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// What the runtime above makes of a packed buffer once it is here, e.g. storage for tensors.
pub trait PackView: Clone + Debug {
    /// Wraps a buffer of `float`s that this rank may read while the view, or anything made from
    /// it, lives.
    fn new(lease: Lease, float: FloatType) -> Self;

    /// Whether nothing else uses the buffer through this view.
    fn is_unique(&self) -> bool;
}

/// Packed weights of all units on one rank.
#[derive(Debug)]
pub(crate) struct Weights<V> {
    at: Coordinate,
    shard: Arc<dyn Group>,
    replicate: Arc<dyn Group>,
    pool: BufferPool,
    ledger: Ledger,
    deadline: Duration,
    /// What weights travel and are used in.
    float: FloatType,
    units: Arc<[Unit]>,
    /// `kept[unit][pack]`: the published weights of the packs of this rank's column, and its parts
    /// of the sharded ones.
    kept: Vec<Vec<Option<Kept<V>>>>,
    /// `copies[unit][pack]`: weights of other columns, or of all parts, started or arrived.
    copies: Vec<Vec<Option<Copy<V>>>>,
}

#[derive(Debug)]
enum Kept<V> {
    /// On its way from the owner, which is in another replica.
    Arriving(Work),
    Here {
        /// In the type that weights travel in.
        buffer: SharedBuffer,
        view: V,
        /// In `f32`, on a rank that makes the weights.
        master: Option<(SharedBuffer, V)>,
    },
}

#[derive(Debug)]
enum Copy<V> {
    Started(Work),
    Arrived(V),
}

impl<V: PackView> Weights<V> {
    pub(crate) fn new(mesh: &Mesh, units: Arc<[Unit]>, float: FloatType) -> Self {
        let group = |axis| mesh.group(axis, Stream::Weights).clone();
        let world = mesh.world();
        Self {
            at: mesh.coordinate(),
            shard: group(Axis::Shard),
            replicate: group(Axis::Replicate),
            pool: world.pool().clone(),
            ledger: world.ledger().clone(),
            deadline: world.deadline(),
            float,
            kept: units.iter().map(|unit| unit.packs.iter().map(|_| None).collect()).collect(),
            copies: units.iter().map(|unit| unit.packs.iter().map(|_| None).collect()).collect(),
            units,
        }
    }

    /// An unpublished buffer for the next version of a pack.
    pub(crate) fn spare(&self, unit: usize, pack: usize) -> Buffer {
        let pack = &self.units[unit].packs[pack];
        if let Some(shards) = self.shards(pack) {
            return self.pool.take_zeroed(shards.part_elems() * size_of::<f32>());
        }
        let layout = &pack.layout;
        let mut buffer = self.pool.take(layout.weight_elems() * size_of::<f32>());
        // Padding moves with the payload: keep it defined, so that equal weights are equal bytes.
        let mut end = 0;
        for slot in layout.slots() {
            buffer.as_f32_mut()[end..slot.offset].fill(0.0);
            end = slot.range().end;
        }
        buffer.as_f32_mut()[end..].fill(0.0);
        buffer
    }

    /// Makes `buffer` the pack's weights on the rank that made them, and starts sending them to its
    /// column, rounded to what weights travel in; later broadcasts along the shard axis send the
    /// same. Returns a view of `buffer`.
    pub(crate) fn publish(&mut self, unit: usize, pack: usize, buffer: Buffer) -> Result<V> {
        let master = buffer.freeze();
        let buffer = self.float.narrow(master.clone(), &self.pool);
        if let Some(owner) = self.units[unit].packs[pack].holder.owner() {
            self.replicate(unit, pack, owner, Some(buffer.clone()))?;
        }
        let master_view = self.keep(&master, FloatType::F32);
        let view = match self.float {
            FloatType::F32 => master_view.clone(),
            float => self.keep(&buffer, float),
        };
        let master = Some((master, master_view.clone()));
        self.kept[unit][pack] = Some(Kept::Here { buffer, view, master });
        Ok(master_view)
    }

    /// Takes part in a publish by the owner of the pack, which is in this rank's column.
    pub(crate) fn receive(&mut self, unit: usize, pack: usize) -> Result<()> {
        if let Some(owner) = self.units[unit].packs[pack].holder.owner()
            && let Some(work) = self.replicate(unit, pack, owner, None)?
        {
            self.kept[unit][pack] = Some(Kept::Arriving(work));
        }
        Ok(())
    }

    /// Waits for every publish that is on its way to this rank.
    pub(crate) fn drain(&mut self) -> Result<()> {
        for unit in 0..self.kept.len() {
            for pack in 0..self.kept[unit].len() {
                self.settle(unit, pack)?;
            }
        }
        Ok(())
    }

    /// Starts one broadcast for each owner of the unit, and one all-gather of what is sharded.
    pub(crate) fn unshard(&mut self, unit: usize) -> Result<()> {
        let units = self.units.clone();
        let Unit { name, packs, .. } = &units[unit];
        for (index, pack) in packs.iter().enumerate() {
            let call = match pack.holder {
                Holder::Owner(owner) => self.broadcast(name, pack, owner.shard),
                Holder::Shards if self.shard.size() > 1 => self.all_gather(name, pack),
                Holder::Shards | Holder::Everyone => continue,
            };
            self.settle(unit, index)?;
            let kept = self.here(unit, index).map(|(buffer, _)| buffer.clone());
            let is_whole = kept.is_some() && !self.is_part(pack);
            let work = self.shard.start(call, kept)?;
            if !is_whole {
                self.copies[unit][index] = Some(Copy::Started(work));
            }
        }
        Ok(())
    }

    /// Drops this rank's copies of the unit and returns the packs whose memory something else,
    /// such as a tape, still holds.
    pub(crate) fn reshard(&mut self, unit: usize) -> Vec<usize> {
        let mut held = Vec::new();
        for (pack, copy) in self.copies[unit].iter_mut().enumerate() {
            if let Some(Copy::Arrived(view)) = copy.take()
                && !view.is_unique()
            {
                held.push(pack);
            }
        }
        held
    }

    /// The pack's whole weights, once they are here. `None`: neither kept nor unsharded.
    pub(crate) fn wait(&mut self, unit: usize, pack: usize) -> Result<Option<V>> {
        self.settle(unit, pack)?;
        let is_part = self.is_part(&self.units[unit].packs[pack]);
        if let Some((_, view)) = self.here(unit, pack).filter(|_| !is_part) {
            return Ok(Some(view.clone()));
        }
        let view = match self.copies[unit][pack].take() {
            None => return Ok(None),
            Some(Copy::Arrived(view)) => view,
            Some(Copy::Started(work)) => match work.wait(self.deadline)? {
                None => return Ok(None),
                Some(buffer) => V::new(self.ledger.hold(Holding::Weights, buffer), self.float),
            },
        };
        self.copies[unit][pack] = Some(Copy::Arrived(view.clone()));
        Ok(Some(view))
    }

    /// The weights published last for a pack that this rank made, in `f32`.
    pub(crate) fn published(&self, unit: usize, pack: usize) -> Option<&(SharedBuffer, V)> {
        match &self.kept[unit][pack] {
            Some(Kept::Here { master, .. }) => master.as_ref(),
            _ => None,
        }
    }

    fn here(&self, unit: usize, pack: usize) -> Option<(&SharedBuffer, &V)> {
        match &self.kept[unit][pack] {
            Some(Kept::Here { buffer, view, .. }) => Some((buffer, view)),
            _ => None,
        }
    }

    /// Waits for the pack's publish, if it is on its way.
    fn settle(&mut self, unit: usize, pack: usize) -> Result<()> {
        let kept = &mut self.kept[unit][pack];
        let Some(Kept::Arriving(work)) = kept.take_if(|kept| matches!(kept, Kept::Arriving(_)))
        else {
            return Ok(());
        };
        if let Some(buffer) = work.wait(self.deadline)? {
            let view = self.keep(&buffer, self.float);
            self.kept[unit][pack] = Some(Kept::Here { buffer, view, master: None });
        }
        Ok(())
    }

    fn keep(&self, buffer: &SharedBuffer, float: FloatType) -> V {
        V::new(self.ledger.hold(Holding::OwnedWeights, buffer.clone()), float)
    }

    /// Broadcasts along the replicate axis, where there is one and this is the owner's column.
    fn replicate(
        &self,
        unit: usize,
        pack: usize,
        owner: Coordinate,
        buffer: Option<SharedBuffer>,
    ) -> Result<Option<Work>> {
        if self.replicate.size() == 1 || owner.shard != self.at.shard {
            return Ok(None);
        }
        let Unit { name, packs, .. } = &self.units[unit];
        let call = self.broadcast(name, &packs[pack], owner.replicate);
        self.replicate.start(call, buffer).map(Some)
    }

    fn broadcast(&self, name: &Arc<str>, pack: &Pack, root: usize) -> Call {
        let layout = &pack.layout;
        let element = self.float.element();
        Call::new(Op::Broadcast { root }, name.clone(), element, layout.weight_elems())
            .with_payload(layout.weight_payload_elems())
    }

    fn all_gather(&self, name: &Arc<str>, pack: &Pack) -> Call {
        let shards = ShardLayout::new(&pack.layout, self.shard.size());
        Call::new(Op::AllGather, name.clone(), self.float.element(), shards.part_elems())
            .with_payload(shards.payload_elems())
    }

    /// Whether what this rank keeps of the pack is less than all of it.
    fn is_part(&self, pack: &Pack) -> bool {
        pack.holder == Holder::Shards && self.shard.size() > 1
    }

    fn shards(&self, pack: &Pack) -> Option<ShardLayout> {
        let is_sharded = pack.holder == Holder::Shards;
        is_sharded.then(|| ShardLayout::new(&pack.layout, self.shard.size()))
    }
}
