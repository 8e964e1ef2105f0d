//! Gradients on their way to whoever holds the parameter: packed, summed over ranks, then averaged.

use crate::{
    Address, Axis, Buffer, BufferPool, Call, Element, Group, Mesh, Op, Pack, PackedLayout, Result,
    SharedBuffer, Stream, Unit, Work,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Packs one rank's gradients and reduces each pack once per backward: along the shard axis to the
/// owner's column, then along the replicate axis to the owner.
#[derive(Debug)]
pub(crate) struct Gradients {
    shard: Arc<dyn Group>,
    replicate: Arc<dyn Group>,
    pool: BufferPool,
    deadline: Duration,
    units: Arc<[Unit]>,
    /// `filling[unit][pack]`: what this rank's backward has produced so far.
    filling: Vec<Vec<Option<Filling>>>,
    /// Reduces along the shard axis, in the order started.
    first_stage: VecDeque<InFlight>,
    /// Reduces that nothing follows, in the order started.
    last_stage: Vec<InFlight>,
    /// Whether sums stay in this rank's replica for now.
    deferred: bool,
    /// `kept[unit][pack]`: sums of deferred backwards.
    kept: Vec<Vec<Option<Buffer>>>,
}

#[derive(Debug)]
struct Filling {
    buffer: Buffer,
    present: Vec<bool>,
}

#[derive(Debug)]
struct InFlight {
    unit: usize,
    pack: usize,
    work: Work,
}

/// A pack's averaged gradients, on the rank (or every rank) that holds the parameters.
#[derive(Debug)]
pub struct ReducedPack {
    /// Index of the unit.
    pub unit: usize,
    /// Index of the pack in the unit.
    pub pack: usize,
    /// The mean over ranks, laid out as the pack; lanes included.
    pub buffer: Buffer,
    /// Per gradient slot, how many ranks produced a gradient; with 0 the parameter must be left
    /// alone.
    pub num_ranks: Vec<usize>,
}

impl Gradients {
    pub(crate) fn new(mesh: &Mesh, units: Arc<[Unit]>) -> Self {
        let group = |axis| mesh.group(axis, Stream::Gradients).clone();
        let world = mesh.world();
        let mut this = Self {
            shard: group(Axis::Shard),
            replicate: group(Axis::Replicate),
            pool: world.pool().clone(),
            deadline: world.deadline(),
            units,
            filling: Vec::new(),
            first_stage: VecDeque::new(),
            last_stage: Vec::new(),
            deferred: false,
            kept: Vec::new(),
        };
        this.clear();
        this
    }

    /// Forgets everything, deferred sums too.
    pub(crate) fn clear(&mut self) {
        self.abandon();
        let empty = |unit: &Unit| unit.packs.iter().map(|_| None).collect();
        self.kept = self.units.iter().map(empty).collect();
    }

    /// Forgets what an unfinished backward left behind. Reduces already started go on without us.
    pub(crate) fn abandon(&mut self) {
        let empty = |unit: &Unit| unit.packs.iter().map(|_| None).collect();
        self.filling = self.units.iter().map(empty).collect();
        self.first_stage.clear();
        self.last_stage.clear();
    }

    /// Whether sums of deferred backwards wait for one that is not.
    pub(crate) fn keeps_sums(&self) -> bool {
        self.kept.iter().flatten().any(Option::is_some)
    }

    /// Lets `write` put a gradient into its slot. `write` is told whether it is the slot's first in
    /// this backward (contents unspecified: overwrite) or must be added.
    pub(crate) fn add(&mut self, address: Address, write: impl FnOnce(&mut [f32], bool)) {
        let layout = &self.units[address.unit].packs[address.pack].layout;
        let filling = self.filling[address.unit][address.pack].get_or_insert_with(|| Filling {
            buffer: self.pool.take(layout.gradient_elems() * size_of::<f32>()),
            present: vec![false; layout.gradient_slots().len()],
        });
        let first = !std::mem::replace(&mut filling.present[address.slot], true);
        let range = layout.gradient_slots()[address.slot].range();
        write(&mut filling.buffer.as_f32_mut()[range], first);
    }

    /// Starts one reduce for each pack of the unit; what this rank did not produce is zero.
    pub(crate) fn reduce(&mut self, unit: usize) -> Result<()> {
        for pack in 0..self.units[unit].packs.len() {
            if self.units[unit].packs[pack].layout.gradient_slots().is_empty() {
                continue;
            }
            let buffer = self.finished(unit, pack).freeze();
            let work = self.start(Axis::Shard, unit, pack, buffer)?;
            self.first_stage.push_back(InFlight { unit, pack, work });
        }
        self.advance()
    }

    /// Chooses whether the backwards that follow end with the first stage. Their sums are added to
    /// those of the next backward that does not.
    pub(crate) fn defer(&mut self, deferred: bool) {
        self.deferred = deferred;
    }

    /// Starts the second stage of every reduce whose first stage is done, in order.
    pub(crate) fn advance(&mut self) -> Result<()> {
        while self.first_stage.front().is_some_and(|front| front.work.is_done()) {
            self.pass_on()?;
        }
        Ok(())
    }

    /// Waits for every started reduce and returns the averages this rank holds.
    pub(crate) fn wait(&mut self) -> Result<Vec<ReducedPack>> {
        while !self.first_stage.is_empty() {
            self.pass_on()?;
        }
        let num_ranks = self.shard.size() * self.replicate.size();
        let mut reduced = Vec::new();
        for InFlight { unit, pack, work } in std::mem::take(&mut self.last_stage) {
            let Some(sum) = work.wait(self.deadline)? else { continue };
            // An all-reduce may hand the very same memory to every rank of the process.
            let mut buffer =
                sum.try_into_unique().unwrap_or_else(|shared| self.pool.take_copy(&shared));
            let layout = &self.units[unit].packs[pack].layout;
            let num_ranks = average(buffer.as_f32_mut(), layout, num_ranks);
            reduced.push(ReducedPack { unit, pack, buffer, num_ranks });
        }
        Ok(reduced)
    }

    /// Takes the oldest reduce from the first stage to the second, if this rank has a part in it.
    fn pass_on(&mut self) -> Result<()> {
        let Some(InFlight { unit, pack, work }) = self.first_stage.pop_front() else {
            return Ok(());
        };
        let kept = &mut self.kept[unit][pack];
        if self.replicate.size() == 1 && !self.deferred && kept.is_none() {
            self.last_stage.push(InFlight { unit, pack, work });
            return Ok(());
        }
        let Some(sum) = work.wait(self.deadline)? else { return Ok(()) };
        let sum = match kept.take() {
            None => sum,
            Some(mut kept) => {
                kept.as_f32_mut().iter_mut().zip(sum.as_f32()).for_each(|(kept, sum)| *kept += sum);
                kept.freeze()
            }
        };
        if self.deferred {
            let own = sum.try_into_unique().unwrap_or_else(|shared| self.pool.take_copy(&shared));
            self.kept[unit][pack] = Some(own);
            return Ok(());
        }
        let work = self.start(Axis::Replicate, unit, pack, sum)?;
        self.last_stage.push(InFlight { unit, pack, work });
        Ok(())
    }

    fn start(&self, axis: Axis, unit: usize, pack: usize, buffer: SharedBuffer) -> Result<Work> {
        let Unit { name, packs, .. } = &self.units[unit];
        let Pack { holder, layout } = &packs[pack];
        let (group, root) = match axis {
            Axis::Shard => (&self.shard, holder.owner().map(|owner| owner.shard)),
            Axis::Replicate => (&self.replicate, holder.owner().map(|owner| owner.replicate)),
        };
        let op = root.map_or(Op::AllReduce, |root| Op::Reduce { root });
        let call = Call::new(op, name.clone(), Element::F32, layout.gradient_elems())
            .with_payload(layout.gradient_payload_elems());
        group.start(call, Some(buffer))
    }

    /// The pack's buffer with zeros where this rank has nothing, and the presence lanes set.
    fn finished(&mut self, unit: usize, pack: usize) -> Buffer {
        let layout = &self.units[unit].packs[pack].layout;
        let Some(Filling { mut buffer, present }) = self.filling[unit][pack].take() else {
            return self.pool.take_zeroed(layout.gradient_elems() * size_of::<f32>());
        };
        let elems = buffer.as_f32_mut();
        let mut end = 0;
        for (slot, present) in layout.gradient_slots().iter().zip(&present) {
            elems[end..slot.offset].fill(0.0);
            if !present {
                elems[slot.range()].fill(0.0);
            }
            end = slot.range().end;
        }
        elems[end..].fill(0.0);
        for (lane, present) in elems[layout.lanes()].iter_mut().zip(present) {
            *lane = f32::from(u8::from(present));
        }
        buffer
    }
}

/// Divides the sums by the number of ranks; returns the presence lanes, which it leaves alone.
fn average(elems: &mut [f32], layout: &PackedLayout, num_ranks: usize) -> Vec<usize> {
    let divisor = num_ranks as f32;
    for slot in layout.gradient_slots() {
        elems[slot.range()].iter_mut().for_each(|elem| *elem /= divisor);
    }
    elems[layout.lanes()].iter().map(|&lane| lane as usize).collect()
}
