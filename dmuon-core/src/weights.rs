//! Whole weights on this rank: what its column keeps and its owners publish, and copies on loan.

use crate::memory::{InFlight, PackMemory};
use crate::{
    Axis, Buffer, BufferPool, Call, Coordinate, FloatType, Group, Holder, Holding, Mesh, Op, Pack,
    Result, ShardLayout, SharedBuffer, Stream, Unit,
};
use std::sync::Arc;
use std::time::Duration;

/// Packed weights of all units on one rank.
#[derive(Debug)]
pub(crate) struct Weights<M: PackMemory> {
    memory: M,
    at: Coordinate,
    shard: Arc<dyn Group>,
    replicate: Arc<dyn Group>,
    /// For masters, which are the host's.
    pool: BufferPool,
    deadline: Duration,
    /// What weights travel and are used in.
    float: FloatType,
    units: Arc<[Unit]>,
    /// `kept[unit][pack]`: the published weights of the packs of this rank's column, and its parts
    /// of the sharded ones.
    kept: Vec<Vec<Option<Kept<M::Pack>>>>,
    /// `copies[unit][pack]`: weights of other columns, or of all parts, started or arrived.
    copies: Vec<Vec<Option<Copy<M::Pack>>>>,
}

#[derive(Debug)]
enum Kept<P> {
    /// On its way from the owner, which is in another replica.
    Arriving(InFlight<P>),
    Here {
        /// In the type that weights travel in; in `f32` if everyone holds it.
        pack: P,
        /// In `f32`, on a rank that makes the weights.
        master: Option<(SharedBuffer, P)>,
    },
}

#[derive(Debug)]
enum Copy<P> {
    Started(InFlight<P>),
    Arrived(P),
}

impl<M: PackMemory> Weights<M> {
    pub(crate) fn new(memory: M, mesh: &Mesh, units: Arc<[Unit]>, float: FloatType) -> Self {
        let group = |axis| mesh.group(axis, Stream::Weights).clone();
        let world = mesh.world();
        Self {
            memory,
            at: mesh.coordinate(),
            shard: group(Axis::Shard),
            replicate: group(Axis::Replicate),
            pool: world.pool().clone(),
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
    pub(crate) fn publish(&mut self, unit: usize, pack: usize, buffer: Buffer) -> Result<M::Pack> {
        let master = buffer.freeze();
        let master_pack = self.memory.hold(Holding::OwnedWeights, &master, FloatType::F32);
        let holder = self.units[unit].packs[pack].holder;
        let kept = match self.float {
            FloatType::F32 => master_pack.clone(),
            // It never moves, and is rounded where it is used.
            _ if holder == Holder::Everyone => master_pack.clone(),
            float => {
                let rounded = float.narrow(master.clone(), &self.pool);
                self.memory.hold(Holding::OwnedWeights, &rounded, float)
            }
        };
        if let Some(owner) = holder.owner() {
            self.replicate(unit, pack, owner, Some(&kept))?;
        }
        let master = Some((master, master_pack.clone()));
        self.kept[unit][pack] = Some(Kept::Here { pack: kept, master });
        Ok(master_pack)
    }

    /// Takes part in a publish by the owner of the pack, which is in this rank's column.
    pub(crate) fn receive(&mut self, unit: usize, pack: usize) -> Result<()> {
        if let Some(owner) = self.units[unit].packs[pack].holder.owner()
            && let Some(in_flight) = self.replicate(unit, pack, owner, None)?
        {
            self.kept[unit][pack] = Some(Kept::Arriving(in_flight));
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
            let kept = self.here(unit, index);
            let is_whole = kept.is_some() && !self.is_part(pack);
            let in_flight = self.memory.send(&*self.shard, call, kept)?;
            if !is_whole {
                self.copies[unit][index] = Some(Copy::Started(in_flight));
            }
        }
        Ok(())
    }

    /// Drops this rank's copies of the unit and returns the packs whose memory something else,
    /// such as a tape, still holds.
    pub(crate) fn reshard(&mut self, unit: usize) -> Vec<usize> {
        let mut held = Vec::new();
        for (pack, copy) in self.copies[unit].iter_mut().enumerate() {
            if let Some(Copy::Arrived(copy)) = copy.take()
                && !self.memory.is_unique(&copy)
            {
                held.push(pack);
            }
        }
        held
    }

    /// The pack's whole weights, once they are here. `None`: neither kept nor unsharded.
    pub(crate) fn wait(&mut self, unit: usize, pack: usize) -> Result<Option<M::Pack>> {
        self.settle(unit, pack)?;
        let is_part = self.is_part(&self.units[unit].packs[pack]);
        if let Some(kept) = self.here(unit, pack).filter(|_| !is_part) {
            return Ok(Some(kept.clone()));
        }
        let copy = match self.copies[unit][pack].take() {
            None => return Ok(None),
            Some(Copy::Arrived(copy)) => copy,
            Some(Copy::Started(in_flight)) => match self.arrive(in_flight, Holding::Weights)? {
                None => return Ok(None),
                Some(copy) => copy,
            },
        };
        self.copies[unit][pack] = Some(Copy::Arrived(copy.clone()));
        Ok(Some(copy))
    }

    /// The weights published last for a pack that this rank made, in `f32`.
    pub(crate) fn published(&self, unit: usize, pack: usize) -> Option<&(SharedBuffer, M::Pack)> {
        match &self.kept[unit][pack] {
            Some(Kept::Here { master, .. }) => master.as_ref(),
            _ => None,
        }
    }

    fn here(&self, unit: usize, pack: usize) -> Option<&M::Pack> {
        match &self.kept[unit][pack] {
            Some(Kept::Here { pack, .. }) => Some(pack),
            _ => None,
        }
    }

    /// Waits for the pack's publish, if it is on its way.
    fn settle(&mut self, unit: usize, pack: usize) -> Result<()> {
        let kept = &mut self.kept[unit][pack];
        let Some(Kept::Arriving(in_flight)) =
            kept.take_if(|kept| matches!(kept, Kept::Arriving(_)))
        else {
            return Ok(());
        };
        if let Some(arrived) = self.arrive(in_flight, Holding::OwnedWeights)? {
            self.kept[unit][pack] = Some(Kept::Here { pack: arrived, master: None });
        }
        Ok(())
    }

    fn arrive(&self, in_flight: InFlight<M::Pack>, holding: Holding) -> Result<Option<M::Pack>> {
        self.memory.receive(in_flight, self.deadline, holding, self.float)
    }

    /// Broadcasts along the replicate axis, where there is one and this is the owner's column.
    fn replicate(
        &self,
        unit: usize,
        pack: usize,
        owner: Coordinate,
        kept: Option<&M::Pack>,
    ) -> Result<Option<InFlight<M::Pack>>> {
        if self.replicate.size() == 1 || owner.shard != self.at.shard {
            return Ok(None);
        }
        let Unit { name, packs, .. } = &self.units[unit];
        let call = self.broadcast(name, &packs[pack], owner.replicate);
        self.memory.send(&*self.replicate, call, kept).map(Some)
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
