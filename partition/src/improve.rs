//! Local improvement: moves and swaps that relieve the heaviest slot until none helps.

use crate::slots::{Slots, Spread};

/// How many of the lightest slots the heaviest tries to trade with.
const PARTNERS: usize = 128;

/// How many swap candidates are looked at for one item, on either side of the ideal one.
const NEIGHBOURS: usize = 24;

/// Candidates looked at in all: this many an item, and a constant that lets small models search
/// until nothing helps.
const EFFORT_PER_ITEM: usize = 64;
const EFFORT: usize = 1 << 20;

/// A gain below this fraction of the load is rounding, not progress.
const LEAST_GAIN: f64 = 1e-9;

/// An item that leaves the heavy slot, and the lighter one that comes back for it, if any.
#[derive(Clone, Copy, Debug)]
struct Trade {
    give: usize,
    take: Option<usize>,
    /// The larger load of the two slots afterwards.
    cost: f64,
}

/// Trades until the largest cost is at most `target`, nothing helps, or the effort is used up.
///
/// Every trade lowers the heaviest of two slots below what it was and raises none above, so the
/// largest cost never grows. With [`Spread::Keep`] no trade crowds a slot or column.
pub(crate) fn improve(slots: &mut Slots<'_>, spread: Spread, target: f64) {
    let mut effort = EFFORT + EFFORT_PER_ITEM * slots.items.len();
    while effort > 0 && slots.max_cost() > target {
        let Some(heavy) = slots.by_load().next_back() else {
            return;
        };
        let partners: Vec<usize> = slots.by_load().take(PARTNERS).collect();
        let trade = partners.into_iter().find_map(|light| {
            best_trade(slots, heavy, light, spread, &mut effort).map(|trade| (trade, light))
        });
        let Some((trade, light)) = trade else { return };
        apply(slots, trade, heavy, light);
    }
}

fn apply(slots: &mut Slots<'_>, trade: Trade, heavy: usize, light: usize) {
    slots.take(trade.give, heavy);
    if let Some(item) = trade.take {
        slots.take(item, light);
        slots.place(item, heavy);
    }
    slots.place(trade.give, light);
}

/// The trade between two slots that lowers their maximum most.
fn best_trade(
    slots: &Slots<'_>,
    heavy: usize,
    light: usize,
    spread: Spread,
    effort: &mut usize,
) -> Option<Trade> {
    let (high, low) = (slots.cost(heavy), slots.cost(light));
    let pair = Pair { slots, heavy, light, spread, high, low };
    let mut best = Trade { give: 0, take: None, cost: high * (1.0 - LEAST_GAIN) };
    let mut found = false;
    for &give in slots.members(heavy) {
        for trade in [pair.move_of(give, &best), pair.swap_of(give, &best, effort)] {
            if let Some(trade) = trade.filter(|trade| trade.cost < best.cost) {
                best = trade;
                found = true;
            }
        }
    }
    found.then_some(best)
}

/// A heavy slot and a light one that may trade.
#[derive(Debug)]
struct Pair<'a> {
    slots: &'a Slots<'a>,
    heavy: usize,
    light: usize,
    spread: Spread,
    high: f64,
    low: f64,
}

impl Pair<'_> {
    fn move_of(&self, give: usize, best: &Trade) -> Option<Trade> {
        let cost = self.after(self.slots.items[give].cost);
        (cost < best.cost && self.may_move(give)).then_some(Trade { give, take: None, cost })
    }

    /// The best swap for `give`: the ideal partner makes both loads equal; its neighbours by cost
    /// are tried outwards from there, for as long as they beat `best`.
    fn swap_of(&self, give: usize, best: &Trade, effort: &mut usize) -> Option<Trade> {
        let items = self.slots.items;
        let members = self.slots.members(self.light);
        let ideal = items[give].cost - (self.high - self.low) / 2.0;
        let start = members.partition_point(|&item| items[item].cost >= ideal);
        let trade = |&take: &usize| {
            let cost = self.after(items[give].cost - items[take].cost);
            Trade { give, take: Some(take), cost }
        };
        let mut search = |candidates: &mut dyn Iterator<Item = &usize>| {
            candidates
                .take((*effort).min(NEIGHBOURS))
                .inspect(|_| *effort -= 1)
                .map(trade)
                .take_while(|trade| trade.cost < best.cost)
                .find(|trade| trade.take.is_some_and(|take| self.may_swap(give, take)))
        };
        let dearer = search(&mut members[..start].iter().rev());
        let cheaper = search(&mut members[start..].iter());
        match (dearer, cheaper) {
            (Some(a), Some(b)) => Some(if b.cost < a.cost { b } else { a }),
            (a, b) => a.or(b),
        }
    }

    /// The larger load once `shift` has gone from the heavy slot to the light one.
    fn after(&self, shift: f64) -> f64 {
        (self.high - shift).max(self.low + shift)
    }

    fn may_move(&self, give: usize) -> bool {
        self.spread == Spread::Ignore
            || self.slots.has_room(self.slots.items[give].boundary, self.light, Some(self.heavy))
    }

    fn may_swap(&self, give: usize, take: usize) -> bool {
        let boundary = |item: usize| self.slots.items[item].boundary;
        self.spread == Spread::Ignore
            || boundary(give) == boundary(take)
            || (self.may_move(give)
                && self.slots.has_room(boundary(take), self.heavy, Some(self.light)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MeshShape, pack::Item};

    fn items(costs: &[f64], boundaries: &[usize]) -> Vec<Item> {
        let item = |(&cost, &boundary)| Item { cost, elems: 1, boundary };
        costs.iter().zip(boundaries).map(item).collect()
    }

    fn placed<'a>(items: &'a [Item], owners: &[usize], ranks: usize) -> Slots<'a> {
        let mut slots = Slots::new(items, MeshShape::new(1, ranks).unwrap());
        for (item, &slot) in owners.iter().enumerate() {
            slots.place(item, slot);
        }
        slots
    }

    #[test]
    fn swaps_repair_what_greed_got_wrong() {
        // Greedy reaches 7 here; 3 + 3 against 2 + 2 + 2 is optimal.
        let items = items(&[3.0, 3.0, 2.0, 2.0, 2.0], &[0, 1, 2, 3, 4]);
        let mut slots = placed(&items, &[0, 1, 0, 1, 0], 2);
        improve(&mut slots, Spread::Ignore, 6.0);
        assert_eq!(slots.max_cost(), 6.0);
    }

    #[test]
    fn swaps_inside_a_boundary_keep_it_spread() {
        let items = items(&[5.0, 5.0, 1.0, 1.0], &[0, 1, 0, 1]);
        let mut slots = placed(&items, &[0, 0, 1, 1], 2);
        improve(&mut slots, Spread::Keep, 0.0);
        assert_eq!(slots.max_cost(), 6.0);
        for slot in [0, 1] {
            let boundaries: Vec<_> =
                slots.members(slot).iter().map(|&item| items[item].boundary).collect();
            assert!(boundaries == [0, 1] || boundaries == [1, 0]);
        }
    }

    #[test]
    fn a_move_that_would_crowd_is_not_made() {
        // 3 against 2 + 1 is optimal, but the latter are of one boundary.
        let items = items(&[3.0, 2.0, 1.0], &[0, 1, 1]);
        let mut kept = placed(&items, &[0, 1, 0], 2);
        let mut free = kept.clone();
        improve(&mut kept, Spread::Keep, 0.0);
        assert_eq!(kept.max_cost(), 4.0);
        improve(&mut free, Spread::Ignore, 0.0);
        assert_eq!(free.max_cost(), 3.0);
    }

    #[test]
    fn improvement_stops_at_the_target() {
        let items = items(&[1.0; 8], &[0; 8]);
        let mut slots = placed(&items, &[0; 8], 4);
        improve(&mut slots, Spread::Ignore, 5.0);
        assert!(slots.max_cost() > 2.0 && slots.max_cost() <= 5.0);
    }
}
