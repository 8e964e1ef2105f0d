//! Gradients on their way to whoever holds the parameter: packed, summed over ranks, then averaged.

use crate::{
    Address, Buffer, BufferPool, Call, Element, Group, Holder, Op, PackedLayout, Result, Unit, Work,
};
use std::sync::Arc;
use std::time::Duration;

/// Packs one rank's gradients and reduces each pack once per backward.
#[derive(Debug)]
pub(crate) struct Gradients {
    group: Arc<dyn Group>,
    pool: BufferPool,
    deadline: Duration,
    units: Arc<[Unit]>,
    /// `filling[unit][pack]`: what this rank's backward has produced so far.
    filling: Vec<Vec<Option<Filling>>>,
    in_flight: Vec<InFlight>,
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
    pub(crate) fn new(
        group: Arc<dyn Group>,
        pool: BufferPool,
        deadline: Duration,
        units: Arc<[Unit]>,
    ) -> Self {
        let mut this = Self {
            group,
            pool,
            deadline,
            units,
            filling: Vec::new(),
            in_flight: Vec::new(),
        };
        this.clear();
        this
    }

    /// Forgets what an unfinished backward left behind. Reduces already started go on without us.
    pub(crate) fn clear(&mut self) {
        let empty = |unit: &Unit| unit.packs.iter().map(|_| None).collect();
        self.filling = self.units.iter().map(empty).collect();
        self.in_flight.clear();
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
            if self.units[unit].packs[pack]
                .layout
                .gradient_slots()
                .is_empty()
            {
                continue;
            }
            let buffer = self.finished(unit, pack).freeze();
            let Unit { name, packs, .. } = &self.units[unit];
            let op = match packs[pack].holder {
                Holder::Owner(root) => Op::Reduce { root },
                Holder::Everyone => Op::AllReduce,
            };
            let layout = &packs[pack].layout;
            let call = Call::new(op, name.clone(), Element::F32, layout.gradient_elems())
                .with_payload(layout.gradient_payload_elems());
            let work = self.group.start(call, Some(buffer))?;
            self.in_flight.push(InFlight { unit, pack, work });
        }
        Ok(())
    }

    /// Waits for every started reduce and returns the averages this rank holds.
    pub(crate) fn wait(&mut self) -> Result<Vec<ReducedPack>> {
        let num_ranks = self.group.size();
        let mut reduced = Vec::new();
        for InFlight { unit, pack, work } in std::mem::take(&mut self.in_flight) {
            let Some(sum) = work.wait(self.deadline)? else {
                continue;
            };
            // An all-reduce may hand the very same memory to every rank of the process.
            let mut buffer = sum
                .try_into_unique()
                .unwrap_or_else(|shared| self.pool.take_copy(&shared));
            let layout = &self.units[unit].packs[pack].layout;
            let num_ranks = average(buffer.as_f32_mut(), layout, num_ranks);
            reduced.push(ReducedPack {
                unit,
                pack,
                buffer,
                num_ranks,
            });
        }
        Ok(reduced)
    }

    /// The pack's buffer with zeros where this rank has nothing, and the presence lanes set.
    fn finished(&mut self, unit: usize, pack: usize) -> Buffer {
        let layout = &self.units[unit].packs[pack].layout;
        let Some(Filling {
            mut buffer,
            present,
        }) = self.filling[unit][pack].take()
        else {
            return self
                .pool
                .take_zeroed(layout.gradient_elems() * size_of::<f32>());
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
        elems[slot.range()]
            .iter_mut()
            .for_each(|elem| *elem /= divisor);
    }
    elems[layout.lanes()]
        .iter()
        .map(|&lane| lane as usize)
        .collect()
}
