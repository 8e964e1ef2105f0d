//! What this rank holds of each parameter and pack between passes, and what it answers for. Pure.

use crate::parameter::Parameter;
use crate::route::Route;
use crate::runtime::Runtime;
use dmuon_core::{Address, Coordinate, Holder, Mesh, PackedLayout, Rank, ShardLayout, Slot, Unit};
use dmuon_partition::Mode;
use std::ops::Range;

/// What a rank does for a pack that it has between passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeps {
    /// It makes the new weights.
    Updates,
    /// It receives them from the owner in another replica.
    Receives,
}

impl Runtime {
    pub(crate) fn holder(&self, parameter: usize) -> Holder {
        self.parameter(parameter).holder
    }

    /// Whether the parameter's weight travels: no rank but an owner has all of it by itself.
    pub(crate) fn moves(&self, parameter: usize) -> bool {
        self.holder(parameter) != Holder::Everyone
    }

    /// Whether this rank is its owner.
    pub(crate) fn owns(&self, parameter: usize) -> bool {
        self.holder(parameter).owner() == Some(self.mesh().coordinate())
    }

    /// The rank whose initial values count: the owner, rank 0 for what everyone holds; what is
    /// sharded is spread over ranks by unit, so that none draws all of it.
    pub(crate) fn provider(&self, Address { unit, pack, .. }: Address) -> Rank {
        match self.units()[unit].packs[pack].holder {
            Holder::Owner(owner) => self.mesh().shape().rank(owner),
            Holder::Shards => Rank(unit % self.world().size()),
            Holder::Everyone => Rank(0),
        }
    }

    /// Whether this rank's initial values of the parameter count.
    pub(crate) fn provides(&self, parameter: usize) -> bool {
        self.provider(self.parameter(parameter).address) == self.rank()
    }

    /// Whether this rank counts what it holds of the parameter where every element counts once, as
    /// in norms.
    pub(crate) fn counts(&self, parameter: usize) -> bool {
        match self.holder(parameter) {
            Holder::Owner(_) => self.owns(parameter),
            Holder::Shards => self.mesh().coordinate().replicate == 0,
            Holder::Everyone => self.rank() == Rank(0),
        }
    }

    /// The slot of the whole parameter in its pack.
    pub(crate) fn whole_slot(&self, parameter: usize) -> &Slot {
        let Address { unit, pack, slot } = self.parameter(parameter).address;
        &self.units()[unit].packs[pack].layout.slots()[slot]
    }

    /// Which of the parameter's elements this rank holds.
    pub(crate) fn held_elems(&self, parameter: usize) -> Range<usize> {
        let whole = self.whole_slot(parameter);
        let Some(held) = self.held_slot(parameter) else { return 0..0 };
        if self.holder(parameter) != Holder::Shards {
            return 0..whole.num_elems;
        }
        let Address { unit, pack, .. } = self.parameter(parameter).address;
        let layout = &self.units()[unit].packs[pack].layout;
        let piece = ShardLayout::new(layout, self.mesh().shape().shard())
            .piece(whole, self.mesh().coordinate().shard);
        debug_assert_eq!(piece.len(), held.num_elems);
        piece
    }

    /// The packs that no rank owns, in plan order, with their layouts.
    pub(crate) fn unowned_packs(&self) -> impl Iterator<Item = (usize, usize, &PackedLayout)> {
        let packs = |(unit, Unit { packs, .. }): (usize, &'_ Unit)| (unit, packs.len());
        let numbers = self.units().iter().enumerate().map(packs);
        let numbers = numbers.flat_map(|(unit, num)| (0..num).map(move |pack| (unit, pack)));
        numbers.filter_map(|(unit, pack)| {
            let pack_info = &self.units()[unit].packs[pack];
            pack_info.holder.owner().is_none().then_some((unit, pack, &pack_info.layout))
        })
    }

    /// The packs that this rank updates, in plan order: what it owns, its parts, and what everyone
    /// holds.
    pub(crate) fn held_packs(&self) -> impl Iterator<Item = (usize, usize)> {
        let held = self.kept_packs().filter(|(.., keeps)| *keeps == Keeps::Updates);
        held.map(|(unit, pack, _)| (unit, pack))
    }

    /// The packs that this rank has between passes, in plan order: its column's, its parts and
    /// everyone's.
    pub(crate) fn kept_packs(&self) -> impl Iterator<Item = (usize, usize, Keeps)> {
        let at = self.mesh().coordinate();
        let keeps = move |holder: Holder| match holder.owner() {
            None => Some(Keeps::Updates),
            Some(owner) if owner == at => Some(Keeps::Updates),
            Some(owner) => (owner.shard == at.shard).then_some(Keeps::Receives),
        };
        let packs = move |(unit, Unit { packs, .. }): (usize, &Unit)| {
            let kept = packs.iter().enumerate();
            let kept = kept.filter_map(|(pack, p)| Some((unit, pack, keeps(p.holder)?)));
            kept.collect::<Vec<_>>()
        };
        self.units().iter().enumerate().flat_map(packs)
    }

    /// Whether backward fetches the weight again rather than the tape keeping it.
    pub(crate) fn refetches(&self, parameter: usize) -> bool {
        self.mode() == Mode::Z3 && self.moves(parameter)
    }

    /// Whether this rank updates the parameter, or a piece of it.
    pub(crate) fn trains(&self, parameter: usize) -> bool {
        self.parameter(parameter).route != Route::Frozen && self.held_slot(parameter).is_some()
    }
}

/// What the rank at this place of the mesh holds of a parameter.
pub(crate) fn held(mesh: &Mesh, units: &[Unit], parameter: &Parameter) -> Option<Slot> {
    let Parameter { address, holder, .. } = parameter;
    let layout = &units[address.unit].packs[address.pack].layout;
    let slot = layout.slots()[address.slot].clone();
    let at: Coordinate = mesh.coordinate();
    match holder {
        Holder::Owner(owner) => (*owner == at).then_some(slot),
        Holder::Everyone => Some(slot),
        Holder::Shards => {
            let shards = ShardLayout::new(layout, mesh.shape().shard());
            let piece = shards.piece(&slot, at.shard);
            if piece.is_empty() {
                return None;
            }
            // Burn's tensors have a fixed number of dimensions: a piece lies along the last.
            let mut shape = vec![1; slot.shape.len()];
            shape.last_mut().into_iter().for_each(|last| *last = piece.len());
            let offset = shards.offset_in_part(&slot, at.shard);
            Some(Slot { shape, offset, num_elems: piece.len(), ..slot })
        }
    }
}
