//! Longest processing time first: the largest item goes to the least loaded slot that may take it.

use crate::slots::{Slots, Spread};

/// How many slots are asked for room, lightest first, before the lightest is taken regardless.
///
/// Bounds the work on large meshes; on smaller ones every slot is asked.
const PROBES: usize = 128;

/// Places all items on empty slots. Without spread, the largest load is at most 4/3 of the best.
///
/// # Source
/// Graham, "Bounds on multiprocessing timing anomalies" (1969), theorem 2.
pub(crate) fn place_all(slots: &mut Slots<'_>, spread: Spread) {
    for item in 0..slots.items.len() {
        if let Some(slot) = lightest(slots, slots.items[item].boundary, spread) {
            slots.place(item, slot);
        }
    }
}

/// An idle slot is always taken: an idle rank is worse than a crowded column.
fn lightest(slots: &Slots<'_>, boundary: usize, spread: Spread) -> Option<usize> {
    let may_take = |&slot: &usize| {
        spread == Spread::Ignore
            || slots.members(slot).is_empty()
            || slots.has_room(boundary, slot, None)
    };
    slots
        .by_load()
        .take(PROBES)
        .find(may_take)
        .or_else(|| slots.by_load().next())
}
