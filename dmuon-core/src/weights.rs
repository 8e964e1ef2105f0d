//! Whole weights on this rank: what it owns and publishes, and copies on loan from other owners.

use crate::{
    Buffer, BufferPool, Call, Element, Group, Holder, Holding, Lease, Ledger, Op, Result,
    SharedBuffer, Unit, Work,
};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// What the runtime above makes of a packed buffer once it is here, e.g. storage for tensors.
pub trait PackView: Clone + Debug {
    /// Wraps a buffer that this rank may read while the view, or anything made from it, lives.
    fn new(lease: Lease) -> Self;

    /// Whether nothing else uses the buffer through this view.
    fn is_unique(&self) -> bool;
}

/// Packed weights of all units on one rank.
#[derive(Debug)]
pub(crate) struct Weights<V> {
    group: Arc<dyn Group>,
    pool: BufferPool,
    ledger: Ledger,
    deadline: Duration,
    units: Arc<[Unit]>,
    /// `owned[unit][pack]`: the published weights of packs this rank owns.
    owned: Vec<Vec<Option<Owned<V>>>>,
    /// `copies[unit][pack]`: weights of other owners, started or arrived.
    copies: Vec<Vec<Option<Copy<V>>>>,
}

#[derive(Debug)]
struct Owned<V> {
    buffer: SharedBuffer,
    view: V,
}

#[derive(Debug)]
enum Copy<V> {
    Started(Work),
    Arrived(V),
}

impl<V: PackView> Weights<V> {
    pub(crate) fn new(
        group: Arc<dyn Group>,
        pool: BufferPool,
        ledger: Ledger,
        deadline: Duration,
        units: Arc<[Unit]>,
    ) -> Self {
        let none = |unit: &Unit| unit.packs.iter().map(|_| None).collect();
        let owned = units.iter().map(none).collect();
        let none = |unit: &Unit| unit.packs.iter().map(|_| None).collect();
        let copies = units.iter().map(none).collect();
        Self {
            group,
            pool,
            ledger,
            deadline,
            units,
            owned,
            copies,
        }
    }

    /// An unpublished buffer for the next version of a pack.
    pub(crate) fn spare(&self, unit: usize, pack: usize) -> Buffer {
        let layout = &self.units[unit].packs[pack].layout;
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

    /// Makes `buffer` the pack's weights; later broadcasts send it.
    pub(crate) fn publish(&mut self, unit: usize, pack: usize, buffer: Buffer) -> V {
        let buffer = buffer.freeze();
        let view = V::new(self.ledger.hold(Holding::OwnedWeights, buffer.clone()));
        self.owned[unit][pack] = Some(Owned {
            buffer,
            view: view.clone(),
        });
        view
    }

    /// Starts one broadcast for each owner of the unit.
    pub(crate) fn unshard(&mut self, unit: usize) -> Result<()> {
        let Unit { name, packs, .. } = &self.units[unit];
        for (index, pack) in packs.iter().enumerate() {
            let Holder::Owner(root) = pack.holder else {
                continue;
            };
            let call = Call::new(
                Op::Broadcast { root },
                name.clone(),
                Element::F32,
                pack.layout.weight_elems(),
            )
            .with_payload(pack.layout.weight_payload_elems());
            let owned = self.owned[unit][index]
                .as_ref()
                .map(|owned| owned.buffer.clone());
            let is_owner = owned.is_some();
            let work = self.group.start(call, owned)?;
            if !is_owner {
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

    /// The pack's weights, once they are here. `None`: neither owned nor unsharded.
    pub(crate) fn wait(&mut self, unit: usize, pack: usize) -> Result<Option<V>> {
        if let Some(owned) = &self.owned[unit][pack] {
            return Ok(Some(owned.view.clone()));
        }
        let view = match self.copies[unit][pack].take() {
            None => return Ok(None),
            Some(Copy::Arrived(view)) => view,
            Some(Copy::Started(work)) => match work.wait(self.deadline)? {
                None => return Ok(None),
                Some(buffer) => V::new(self.ledger.hold(Holding::Weights, buffer)),
            },
        };
        self.copies[unit][pack] = Some(Copy::Arrived(view.clone()));
        Ok(Some(view))
    }

    /// The weights this rank published last for a pack it owns.
    pub(crate) fn published(&self, unit: usize, pack: usize) -> Option<&V> {
        self.owned[unit][pack].as_ref().map(|owned| &owned.view)
    }
}
