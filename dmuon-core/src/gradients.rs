//! Gradients on their way to whoever holds the parameter: packed, summed over ranks, then averaged.

use crate::{
    Address, Axis, Buffer, BufferPool, Call, FloatType, Group, Holder, Mesh, Op, Pack,
    PackedLayout, Result, ShardLayout, SharedBuffer, Slot, Stream, Unit, Work,
};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Packs one rank's gradients and reduces each pack once per backward: along the shard axis to the
/// owner's column (or, sharded, each part to its rank), then along the replicate axis.
#[derive(Debug)]
pub(crate) struct Gradients {
    shard: Arc<dyn Group>,
    replicate: Arc<dyn Group>,
    pool: BufferPool,
    deadline: Duration,
    /// What gradients travel in.
    float: FloatType,
    units: Arc<[Unit]>,
    /// `filling[unit][pack]`: what this rank's backward has produced so far.
    filling: Vec<Vec<Option<Filling>>>,
    /// Reduces along the shard axis, in the order started.
    first_stage: VecDeque<InFlight>,
    /// Reduces that nothing follows, in the order started.
    last_stage: Vec<InFlight>,
    /// How far sums go for now.
    reach: Reach,
    /// Whether `filling` holds the sums of backwards that have ended.
    local_sums: bool,
    /// What averages are multiplied by.
    scale: f32,
    /// `kept[unit][pack]`: sums of backwards that ended within the replica.
    kept: Vec<Vec<Option<Buffer>>>,
}

/// How far a backward's gradients go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// To whoever holds the parameter.
    #[default]
    Holder,
    /// Along the shard axis; sums stay within the replica.
    Replica,
    /// Nowhere: sums stay on the rank.
    Rank,
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
    /// The mean over ranks, laid out as the pack, or as this rank's part of it; lanes included.
    pub buffer: Buffer,
    /// Per gradient slot, how many ranks produced a gradient; with 0 the parameter must be left
    /// alone.
    pub num_ranks: Vec<usize>,
}

impl Gradients {
    pub(crate) fn new(mesh: &Mesh, units: Arc<[Unit]>, float: FloatType) -> Self {
        let group = |axis| mesh.group(axis, Stream::Gradients).clone();
        let world = mesh.world();
        let mut this = Self {
            shard: group(Axis::Shard),
            replicate: group(Axis::Replicate),
            pool: world.pool().clone(),
            deadline: world.deadline(),
            float,
            units,
            filling: Vec::new(),
            first_stage: VecDeque::new(),
            last_stage: Vec::new(),
            reach: Reach::Holder,
            local_sums: false,
            scale: 1.0,
            kept: Vec::new(),
        };
        this.clear();
        this
    }

    /// Forgets everything, sums that were kept back too.
    pub(crate) fn clear(&mut self) {
        self.local_sums = false;
        self.abandon();
        let empty = |unit: &Unit| unit.packs.iter().map(|_| None).collect();
        self.kept = self.units.iter().map(empty).collect();
    }

    /// Forgets what an unfinished backward left behind. Reduces already started go on without us.
    pub(crate) fn abandon(&mut self) {
        if !self.local_sums {
            let empty = |unit: &Unit| unit.packs.iter().map(|_| None).collect();
            self.filling = self.units.iter().map(empty).collect();
        }
        self.first_stage.clear();
        self.last_stage.clear();
    }

    /// Whether sums that were kept back wait for a backward that reaches the holders.
    pub(crate) fn keeps_sums(&self) -> bool {
        self.local_sums || self.kept.iter().flatten().any(Option::is_some)
    }

    /// Adds a gradient to its slot, in row-major order.
    pub(crate) fn add(&mut self, address: Address, elems: &[f32]) {
        let Pack { holder, layout } = &self.units[address.unit].packs[address.pack];
        let shape = Shape::new(*holder, layout, self.shard.size());
        let filling = self.filling[address.unit][address.pack].get_or_insert_with(|| Filling {
            buffer: self.pool.take(shape.input_elems() * size_of::<f32>()),
            present: vec![false; layout.gradient_slots().len()],
        });
        let first = !std::mem::replace(&mut filling.present[address.slot], true);
        let buffer = filling.buffer.as_f32_mut();
        shape.pieces(&layout.gradient_slots()[address.slot], |of_slot, in_buffer| {
            write_or_add(&elems[of_slot], &mut buffer[in_buffer], first);
        });
    }

    /// Starts one reduce for each pack of the unit; what this rank did not produce is zero.
    pub(crate) fn reduce(&mut self, unit: usize) -> Result<()> {
        if self.reach == Reach::Rank {
            return Ok(());
        }
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

    /// Chooses how far the gradients of the backwards that follow go. Sums that are kept back are
    /// added to those of the next backward that goes further.
    pub(crate) fn set_reach(&mut self, reach: Reach) {
        self.reach = reach;
    }

    pub(crate) fn reach(&self) -> Reach {
        self.reach
    }

    /// Sets what averages are multiplied by.
    pub(crate) fn set_scale(&mut self, scale: f32) {
        self.scale = scale;
    }

    pub(crate) fn scale(&self) -> f32 {
        self.scale
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
        self.local_sums = self.reach == Reach::Rank;
        while !self.first_stage.is_empty() {
            self.pass_on()?;
        }
        let num_ranks = self.shard.size() * self.replicate.size();
        let mut reduced = Vec::new();
        for InFlight { unit, pack, work } in std::mem::take(&mut self.last_stage) {
            let Some(sum) = self.sum(work)? else { continue };
            // An all-reduce may hand the very same memory to every rank of the process.
            let mut buffer =
                sum.try_into_unique().unwrap_or_else(|shared| self.pool.take_copy(&shared));
            let shape = self.shape(unit, pack);
            let num_ranks = shape.average(buffer.as_f32_mut(), num_ranks, self.scale);
            reduced.push(ReducedPack { unit, pack, buffer, num_ranks });
        }
        Ok(reduced)
    }

    /// Takes the oldest reduce from the first stage to the second, if this rank has a part in it.
    fn pass_on(&mut self) -> Result<()> {
        let Some(InFlight { unit, pack, work }) = self.first_stage.pop_front() else {
            return Ok(());
        };
        let kept = self.kept[unit][pack].take();
        let deferred = self.reach == Reach::Replica;
        if self.replicate.size() == 1 && !deferred && kept.is_none() {
            self.last_stage.push(InFlight { unit, pack, work });
            return Ok(());
        }
        let Some(sum) = self.sum(work)? else { return Ok(()) };
        let sum = match kept {
            None => sum,
            Some(mut kept) => {
                kept.as_f32_mut().iter_mut().zip(sum.as_f32()).for_each(|(kept, sum)| *kept += sum);
                kept.freeze()
            }
        };
        if deferred {
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
        let holder = packs[pack].holder;
        let (group, op) = match (axis, holder) {
            (Axis::Shard, Holder::Owner(owner)) => (&self.shard, Op::Reduce { root: owner.shard }),
            (Axis::Shard, Holder::Shards) => (&self.shard, Op::ReduceScatter),
            (Axis::Shard, Holder::Everyone) => (&self.shard, Op::AllReduce),
            (Axis::Replicate, Holder::Owner(owner)) => {
                (&self.replicate, Op::Reduce { root: owner.replicate })
            }
            (Axis::Replicate, Holder::Shards | Holder::Everyone) => {
                (&self.replicate, Op::AllReduce)
            }
        };
        let shape = self.shape(unit, pack);
        let call = Call::new(op, name.clone(), self.float.element(), shape.part_elems())
            .with_payload(shape.payload_elems());
        group.start(call, Some(self.float.narrow(buffer, &self.pool)))
    }

    /// What a reduce gave this rank, in `f32`.
    fn sum(&self, work: Work) -> Result<Option<SharedBuffer>> {
        Ok(work.wait(self.deadline)?.map(|sum| self.float.widen(sum, &self.pool)))
    }

    /// The pack's buffer with zeros where this rank has nothing, and the presence lanes set.
    fn finished(&mut self, unit: usize, pack: usize) -> Buffer {
        let filling = self.filling[unit][pack].take();
        let shape = self.shape(unit, pack);
        let Some(Filling { mut buffer, present }) = filling else {
            return self.pool.take_zeroed(shape.input_elems() * size_of::<f32>());
        };
        shape.complete(buffer.as_f32_mut(), &present);
        buffer
    }

    fn shape(&self, unit: usize, pack: usize) -> Shape<'_> {
        let Pack { holder, layout } = &self.units[unit].packs[pack];
        Shape::new(*holder, layout, self.shard.size())
    }
}

/// How a pack's gradients lie in the buffer that is reduced: whole and followed by the lanes, or
/// in parts that are each followed by all lanes.
#[derive(Clone, Copy, Debug)]
struct Shape<'a> {
    layout: &'a PackedLayout,
    shards: Option<ShardLayout>,
    num_parts: usize,
}

impl<'a> Shape<'a> {
    fn new(holder: Holder, layout: &'a PackedLayout, shard_size: usize) -> Self {
        match holder {
            Holder::Shards => {
                let shards = Some(ShardLayout::new(layout, shard_size));
                Self { layout, shards, num_parts: shard_size }
            }
            Holder::Owner(_) | Holder::Everyone => Self { layout, shards: None, num_parts: 1 },
        }
    }

    /// Elements of one part, which is what a rank receives.
    fn part_elems(self) -> usize {
        self.shards.map_or(self.layout.gradient_elems(), ShardLayout::gradient_part_elems)
    }

    /// Elements that a rank contributes.
    fn input_elems(self) -> usize {
        self.num_parts * self.part_elems()
    }

    fn payload_elems(self) -> usize {
        self.shards.map_or(self.layout.gradient_payload_elems(), ShardLayout::payload_elems)
    }

    /// The lanes of one part.
    fn lanes(self) -> Range<usize> {
        self.shards.map_or(self.layout.lanes(), ShardLayout::lanes)
    }

    /// Calls `each` with every run of the slot's elements: where it is in the slot and in the
    /// buffer.
    fn pieces(self, slot: &Slot, mut each: impl FnMut(Range<usize>, Range<usize>)) {
        let Some(shards) = self.shards else { return each(0..slot.num_elems, slot.range()) };
        for part in shards.parts_of(slot) {
            let piece = shards.piece(slot, part);
            let start = part * self.part_elems() + shards.offset_in_part(slot, part);
            each(piece.clone(), start..start + piece.len());
        }
    }

    /// Sets everything but the slots that are present: zeros for padding and for slots without a
    /// gradient, and the lanes.
    fn complete(self, buffer: &mut [f32], present: &[bool]) {
        let mut end = 0;
        for (slot, present) in self.layout.gradient_slots().iter().zip(present) {
            self.pieces(slot, |_, at| {
                let from = if *present { at.start } else { at.end };
                buffer[end..from].fill(0.0);
                end = at.end;
            });
        }
        buffer[end..].fill(0.0);
        for part in 0..self.num_parts {
            let lanes = &mut buffer[part * self.part_elems()..][self.lanes()];
            for (lane, present) in lanes.iter_mut().zip(present) {
                *lane = f32::from(u8::from(*present));
            }
        }
    }

    /// Divides one part's sums by the number of ranks and multiplies them by `scale`; returns its
    /// lanes, which it leaves alone.
    fn average(self, part: &mut [f32], num_ranks: usize, scale: f32) -> Vec<usize> {
        let sums = &mut part[..self.lanes().start];
        match (num_ranks as f32, scale) {
            (divisor, 1.0) => sums.iter_mut().for_each(|elem| *elem /= divisor),
            (divisor, _) => sums.iter_mut().for_each(|elem| *elem = *elem / divisor * scale),
        }
        part[self.lanes()].iter().map(|&lane| lane as usize).collect()
    }
}

fn write_or_add(elems: &[f32], out: &mut [f32], first: bool) {
    if first {
        out.copy_from_slice(elems);
    } else {
        out.iter_mut().zip(elems).for_each(|(out, elem)| *out += elem);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_are_cut_into_parts_with_lanes_of_their_own() {
        let layout = PackedLayout::new(
            [("a".into(), vec![20]), ("absent".into(), vec![3]), ("b".into(), vec![2])],
            [],
        );
        let shape = Shape::new(Holder::Shards, &layout, 2);
        assert_eq!((shape.part_elems(), shape.input_elems()), (48, 96));
        let mut buffer = vec![f32::NAN; shape.input_elems()];
        let elems: Vec<f32> = (1..=20).map(|elem| elem as f32).collect();
        for (slot, elems) in [(0, &elems[..]), (2, &[7.0, 8.0])] {
            shape.pieces(&layout.slots()[slot], |of_slot, at| {
                write_or_add(&elems[of_slot], &mut buffer[at], true);
            });
        }
        shape.complete(&mut buffer, &[true, false, true]);
        let (first, second) = buffer.split_at(48);
        assert_eq!(&first[..20], elems);
        assert!(first[20..32].iter().all(|&elem| elem == 0.0));
        assert_eq!(&second[..3], [0.0; 3]);
        assert_eq!(&second[16..18], [7.0, 8.0]);
        for part in [first, second] {
            assert_eq!(part[32..35], [1.0, 0.0, 1.0]);
            assert!(part[35..].iter().all(|&elem| elem == 0.0));
        }
        let mut part = second.to_vec();
        assert_eq!(shape.average(&mut part, 2, 1.0), [1, 0, 1]);
        assert_eq!(&part[16..18], [3.5, 4.0]);
        assert_eq!(shape.average(&mut part, 1, 2.0), [1, 0, 1]);
        assert_eq!(&part[16..18], [7.0, 8.0]);
    }
}
