//! The state of a placement: loads of all mesh slots and how each boundary is spread over them.

use crate::{MeshShape, Rank, pack::Item};
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};

/// What one slot carries. Ordered by cost, then by elements.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    pub(crate) cost: f64,
    pub(crate) elems: usize,
}

impl Ord for Load {
    fn cmp(&self, other: &Self) -> Ordering {
        self.cost.total_cmp(&other.cost).then(self.elems.cmp(&other.elems))
    }
}

impl PartialOrd for Load {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Load {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Load {}

/// Whether placements keep the matrices of a boundary apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    /// A slot takes at most its even share of a boundary's items, and so does a mesh column.
    Keep,
    /// Only loads count.
    Ignore,
}

/// Items on slots. Slots are ranks: `replicate · R + shard`; a column is one shard index.
#[derive(Clone, Debug)]
pub(crate) struct Slots<'a> {
    pub(crate) items: &'a [Item],
    mesh: MeshShape,
    /// Invariant: item numbers ascending, which is by cost, largest first.
    members: Vec<Vec<usize>>,
    /// Invariant: the sums over `members`.
    loads: Vec<Load>,
    /// Invariant: `(loads[slot], slot)` for every slot.
    order: BTreeSet<(Load, usize)>,
    /// Even share of each boundary for a slot and for a column, rounded up.
    shares: Vec<(usize, usize)>,
    /// Looked up only, never iterated, so that hashing cannot influence a plan.
    in_slot: HashMap<(usize, usize), usize>,
    in_column: HashMap<(usize, usize), usize>,
}

impl<'a> Slots<'a> {
    /// Empty slots for items in placing order.
    pub(crate) fn new(items: &'a [Item], mesh: MeshShape) -> Self {
        let num_boundaries = items.iter().map(|item| item.boundary + 1).max().unwrap_or(0);
        let mut sizes = vec![0_usize; num_boundaries];
        for item in items {
            sizes[item.boundary] += 1;
        }
        let slots = mesh.world_size();
        let share = |&size: &usize| (size.div_ceil(slots), size.div_ceil(mesh.shard()));
        Self {
            items,
            mesh,
            members: vec![Vec::new(); slots],
            loads: vec![Load::default(); slots],
            order: (0..slots).map(|slot| (Load::default(), slot)).collect(),
            shares: sizes.iter().map(share).collect(),
            in_slot: HashMap::new(),
            in_column: HashMap::new(),
        }
    }

    /// Slots from the lightest to the heaviest; equal loads by number.
    pub(crate) fn by_load(&self) -> impl DoubleEndedIterator<Item = usize> {
        self.order.iter().map(|&(_, slot)| slot)
    }

    pub(crate) fn cost(&self, slot: usize) -> f64 {
        self.loads[slot].cost
    }

    pub(crate) fn members(&self, slot: usize) -> &[usize] {
        &self.members[slot]
    }

    /// The largest cost of a slot.
    pub(crate) fn max_cost(&self) -> f64 {
        self.order.last().map_or(0.0, |(load, _)| load.cost)
    }

    /// The slot of each item.
    pub(crate) fn owners(&self) -> Vec<Rank> {
        let mut owners = vec![Rank(0); self.items.len()];
        for (slot, members) in self.members.iter().enumerate() {
            for &item in members {
                owners[item] = Rank(slot);
            }
        }
        owners
    }

    /// Whether `slot` may take one more item of the boundary; `from` is where the item is now.
    pub(crate) fn has_room(&self, boundary: usize, slot: usize, from: Option<usize>) -> bool {
        let (slot_share, column_share) = self.shares[boundary];
        let column = self.column(slot);
        let same_column = from.is_some_and(|from| self.column(from) == column);
        let count = |table: &HashMap<_, _>, place| table.get(&(boundary, place)).copied();
        count(&self.in_slot, slot).unwrap_or(0) < slot_share
            && (same_column || count(&self.in_column, column).unwrap_or(0) < column_share)
    }

    /// Puts an item on a slot.
    pub(crate) fn place(&mut self, item: usize, slot: usize) {
        let Item { cost, elems, boundary } = self.items[item];
        let position = self.members[slot].partition_point(|&other| other < item);
        self.members[slot].insert(position, item);
        *self.in_slot.entry((boundary, slot)).or_insert(0) += 1;
        *self.in_column.entry((boundary, self.column(slot))).or_insert(0) += 1;
        let Load { cost: before, elems: elems_before } = self.loads[slot];
        self.set_load(slot, Load { cost: before + cost, elems: elems_before + elems });
    }

    /// Takes an item off its slot.
    pub(crate) fn take(&mut self, item: usize, slot: usize) {
        let Item { boundary, .. } = self.items[item];
        self.members[slot].retain(|&other| other != item);
        let column = self.column(slot);
        for count in
            [self.in_slot.get_mut(&(boundary, slot)), self.in_column.get_mut(&(boundary, column))]
        {
            *count.expect("a placed item is counted in its slot and column") -= 1;
        }
        // Summed anew: subtracting would let rounding errors of measured costs pile up.
        let add = |load: Load, &item: &usize| Load {
            cost: load.cost + self.items[item].cost,
            elems: load.elems + self.items[item].elems,
        };
        let load = self.members[slot].iter().fold(Load::default(), add);
        self.set_load(slot, load);
    }

    fn set_load(&mut self, slot: usize, load: Load) {
        self.order.remove(&(self.loads[slot], slot));
        self.loads[slot] = load;
        self.order.insert((load, slot));
    }

    fn column(&self, slot: usize) -> usize {
        self.mesh.coordinate(Rank(slot)).shard
    }
}
