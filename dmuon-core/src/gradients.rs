//! Gradients on their way to whoever holds the parameter: packed, summed over ranks, then averaged.

use crate::memory::{InFlight, PackMemory, Piece};
use crate::{
    Address, Axis, Call, FloatType, Group, Holder, Mesh, Op, Pack, PackedLayout, Result,
    ShardLayout, Slot, Stream, Unit,
};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Packs one rank's gradients and reduces each pack once per backward: along the shard axis to the
/// owner's column (or, sharded, each part to its rank), then along the replicate axis.
#[derive(Debug)]
pub(crate) struct Gradients<M: PackMemory> {
    memory: M,
    shard: Arc<dyn Group>,
    replicate: Arc<dyn Group>,
    deadline: Duration,
    /// What gradients travel in.
    float: FloatType,
    units: Arc<[Unit]>,
    /// `filling[unit][pack]`: what this rank's backward has produced so far.
    filling: Vec<Vec<Option<Filling<M::Filling>>>>,
    /// Reduces along the shard axis, in the order started.
    first_stage: VecDeque<Reduce<M::Sums>>,
    /// Reduces that nothing follows, in the order started.
    last_stage: Vec<Reduce<M::Sums>>,
    /// How far sums go for now.
    reach: Reach,
    /// Whether `filling` holds the sums of backwards that have ended.
    local_sums: bool,
    /// What averages are multiplied by.
    scale: f32,
    /// `kept[unit][pack]`: sums of backwards that ended within the replica.
    kept: Vec<Vec<Option<M::Sums>>>,
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
struct Filling<F> {
    pack: F,
    /// By gradient slot.
    present: Vec<bool>,
}

#[derive(Debug)]
struct Reduce<S> {
    unit: usize,
    pack: usize,
    in_flight: InFlight<S>,
}

/// A pack's averaged gradients, on the rank (or every rank) that holds the parameters.
#[derive(Debug)]
pub struct ReducedPack<P> {
    /// Index of the unit.
    pub unit: usize,
    /// Index of the pack in the unit.
    pub pack: usize,
    /// The mean over ranks, laid out as the pack, or as this rank's part of it; with anything in
    /// place of the lanes.
    pub average: P,
    /// Per gradient slot, how many ranks produced a gradient; with 0 the parameter must be left
    /// alone.
    pub num_ranks: Vec<usize>,
}

impl<M: PackMemory> Gradients<M> {
    pub(crate) fn new(memory: M, mesh: &Mesh, units: Arc<[Unit]>, float: FloatType) -> Self {
        let group = |axis| mesh.group(axis, Stream::Gradients).clone();
        let world = mesh.world();
        let mut this = Self {
            memory,
            shard: group(Axis::Shard),
            replicate: group(Axis::Replicate),
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

    /// Adds a gradient to its slot.
    pub(crate) fn add(&mut self, address: Address, gradient: &M::Gradient) {
        let Self { memory, units, filling, shard, .. } = self;
        let Pack { holder, layout } = &units[address.unit].packs[address.pack];
        let shape = Shape::new(*holder, layout, shard.size());
        let Filling { pack, present } =
            filling[address.unit][address.pack].get_or_insert_with(|| {
                let present = vec![false; layout.gradient_slots().len()];
                Filling { pack: memory.fill(shape.input_elems()), present }
            });
        let first = !std::mem::replace(&mut present[address.slot], true);
        shape.pieces(&layout.gradient_slots()[address.slot], |piece| {
            memory.put(pack, gradient, piece, first);
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
            let sums = self.finished(unit, pack)?;
            let in_flight = self.start(Axis::Shard, unit, pack, sums)?;
            self.first_stage.push_back(Reduce { unit, pack, in_flight });
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
        while self.first_stage.front().is_some_and(|front| front.in_flight.is_done()) {
            self.pass_on()?;
        }
        Ok(())
    }

    /// Waits for every started reduce and returns the averages this rank holds.
    pub(crate) fn wait(&mut self) -> Result<Vec<ReducedPack<M::Pack>>> {
        self.local_sums = self.reach == Reach::Rank;
        while !self.first_stage.is_empty() {
            self.pass_on()?;
        }
        let num_ranks = self.shard.size() * self.replicate.size();
        let mut reduced = Vec::new();
        for Reduce { unit, pack, in_flight } in std::mem::take(&mut self.last_stage) {
            let Some(sums) = self.arrive(in_flight)? else { continue };
            let lanes = self.shape(unit, pack).lanes();
            let (average, lanes) =
                self.memory.average(sums, lanes, num_ranks as f32, self.scale)?;
            let num_ranks = lanes.into_iter().map(|lane| lane as usize).collect();
            reduced.push(ReducedPack { unit, pack, average, num_ranks });
        }
        Ok(reduced)
    }

    /// Takes the oldest reduce from the first stage to the second, if this rank has a part in it.
    fn pass_on(&mut self) -> Result<()> {
        let Some(Reduce { unit, pack, in_flight }) = self.first_stage.pop_front() else {
            return Ok(());
        };
        let kept = self.kept[unit][pack].take();
        let deferred = self.reach == Reach::Replica;
        if self.replicate.size() == 1 && !deferred && kept.is_none() {
            self.last_stage.push(Reduce { unit, pack, in_flight });
            return Ok(());
        }
        let Some(sums) = self.arrive(in_flight)? else { return Ok(()) };
        let sums = match kept {
            None => sums,
            Some(kept) => self.memory.add(kept, sums)?,
        };
        if deferred {
            self.kept[unit][pack] = Some(sums);
            return Ok(());
        }
        let in_flight = self.start(Axis::Replicate, unit, pack, sums)?;
        self.last_stage.push(Reduce { unit, pack, in_flight });
        Ok(())
    }

    fn start(
        &self,
        axis: Axis,
        unit: usize,
        pack: usize,
        sums: M::Sums,
    ) -> Result<InFlight<M::Sums>> {
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
        self.memory.start_sum(&**group, call, sums)
    }

    /// What a reduce gave this rank.
    fn arrive(&self, in_flight: InFlight<M::Sums>) -> Result<Option<M::Sums>> {
        self.memory.wait_sum(in_flight, self.deadline, self.float)
    }

    /// The pack's sums with zeros where this rank has nothing, and the presence lanes set.
    fn finished(&mut self, unit: usize, pack: usize) -> Result<M::Sums> {
        let filling = self.filling[unit][pack].take();
        let shape = self.shape(unit, pack);
        let Filling { pack, present } = filling.unwrap_or_else(|| Filling {
            pack: self.memory.fill(shape.input_elems()),
            present: vec![false; shape.layout.gradient_slots().len()],
        });
        let presence: Vec<_> = present.iter().map(|here| f32::from(u8::from(*here))).collect();
        self.memory.complete(pack, &shape.gaps(&present), &shape.all_lanes(), &presence)
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

    /// Calls `each` with every piece of the slot's gradient.
    fn pieces(self, slot: &Slot, mut each: impl FnMut(Piece)) {
        let Some(shards) = self.shards else {
            return each(Piece { of_gradient: 0..slot.num_elems, at: slot.range() });
        };
        for part in shards.parts_of(slot) {
            let of_gradient = shards.piece(slot, part);
            let start = part * self.part_elems() + shards.offset_in_part(slot, part);
            each(Piece { at: start..start + of_gradient.len(), of_gradient });
        }
    }

    /// What is neither a present slot nor a lane: padding, and slots without a gradient.
    fn gaps(self, present: &[bool]) -> Vec<Range<usize>> {
        let mut taken = self.all_lanes();
        for (slot, _) in self.layout.gradient_slots().iter().zip(present).filter(|(_, here)| **here)
        {
            self.pieces(slot, |piece| taken.push(piece.at));
        }
        // Empty slots begin where their neighbours do.
        taken.sort_unstable_by_key(|range| (range.start, range.end));
        let ends = taken.iter().map(|range| range.end);
        let starts = taken.iter().map(|range| range.start);
        let gaps = [0].into_iter().chain(ends).zip(starts.chain([self.input_elems()]));
        gaps.map(|(start, end)| start..end).filter(|gap| !gap.is_empty()).collect()
    }

    /// The lanes of every part.
    fn all_lanes(self) -> Vec<Range<usize>> {
        let Range { start, end } = self.lanes();
        let starts = (0..self.num_parts).map(|part| part * self.part_elems());
        starts.map(|part| part + start..part + end).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::WIDE_SLOT_ELEMS;
    use crate::{Buffer, EngineOptions, HostMemory, Lease, PackView, SharedBuffer, World};
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    struct Plain(Lease);

    impl PackView for Plain {
        fn new(lease: Lease, _: FloatType) -> Self {
            Self(lease)
        }

        fn is_unique(&self) -> bool {
            true
        }

        fn buffer(&self) -> SharedBuffer {
            self.0.buffer().clone()
        }
    }

    #[test]
    fn gradients_are_cut_into_parts_with_lanes_of_their_own() {
        let layout = PackedLayout::new(
            [("a".into(), vec![20]), ("absent".into(), vec![3]), ("b".into(), vec![2])],
            [],
        );
        let shape = Shape::new(Holder::Shards, &layout, 2);
        assert_eq!((shape.part_elems(), shape.input_elems()), (48, 96));
        let memory = HostMemory::<Plain>::new(&World::solo(&EngineOptions::default()).unwrap());
        let mut filling = memory.fill(shape.input_elems());
        filling.as_f32_mut().fill(f32::NAN);
        let elems: Vec<f32> = (1..=20).map(|elem| elem as f32).collect();
        for (slot, elems) in [(0, &elems[..]), (2, &[7.0, 8.0])] {
            shape.pieces(&layout.slots()[slot], |piece| {
                memory.put(&mut filling, elems, piece, true);
            });
        }
        let gaps = shape.gaps(&[true, false, true]);
        let lanes = shape.all_lanes();
        let sums = memory.complete(filling, &gaps, &lanes, &[1.0, 0.0, 1.0]).unwrap();
        let (first, second) = sums.as_f32().split_at(48);
        assert_eq!(&first[..20], elems);
        assert!(first[20..32].iter().all(|&elem| elem == 0.0));
        assert_eq!(&second[..3], [0.0; 3]);
        assert_eq!(&second[16..18], [7.0, 8.0]);
        for part in [first, second] {
            assert_eq!(part[32..35], [1.0, 0.0, 1.0]);
            assert!(part[35..].iter().all(|&elem| elem == 0.0));
        }
        for (scale, expected) in [(1.0, [3.5, 4.0]), (2.0, [7.0, 8.0])] {
            let part = Buffer::from_elements(second).freeze();
            let (average, presence) = memory.average(part, shape.lanes(), 2.0, scale).unwrap();
            assert_eq!(presence, [1.0, 0.0, 1.0]);
            assert_eq!(average.buffer().as_f32()[16..18], expected);
        }
    }

    fn num_elems() -> impl Strategy<Value = usize> {
        prop_oneof![20 => 0usize..40, 1 => WIDE_SLOT_ELEMS - 40..WIDE_SLOT_ELEMS + 40]
    }

    proptest! {
        #[test]
        fn gaps_are_what_is_neither_lane_nor_present(
            slots in prop::collection::vec((num_elems(), any::<bool>()), 0..40),
            frozen in prop::collection::vec(num_elems(), 0..3),
            num_parts in 1usize..5,
            sharded in any::<bool>(),
        ) {
            let named = |num_elems: usize| ("p".into(), vec![num_elems]);
            // What is sharded is frozen apart.
            let frozen = frozen.into_iter().filter(|_| !sharded).map(named);
            let trainable = slots.iter().map(|(num_elems, _)| named(*num_elems));
            let layout = PackedLayout::new(trainable, frozen);
            let holder = if sharded { Holder::Shards } else { Holder::Everyone };
            let shape = Shape::new(holder, &layout, num_parts);
            let present: Vec<bool> = slots.iter().map(|(_, present)| *present).collect();
            let mut is_gap = vec![true; shape.input_elems()];
            shape.all_lanes().into_iter().for_each(|lanes| is_gap[lanes].fill(false));
            for (slot, present) in layout.gradient_slots().iter().zip(&present) {
                shape.pieces(slot, |piece| if *present { is_gap[piece.at].fill(false) });
            }
            let mut found = vec![false; shape.input_elems()];
            shape.gaps(&present).into_iter().for_each(|gap| found[gap].fill(true));
            prop_assert_eq!(found, is_gap);
        }
    }
}
