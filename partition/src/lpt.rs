//! Longest processing time first: the largest item goes to the least loaded slot that may take it.

use crate::slots::{Slots, Spread};

/// How many slots are asked for room, lightest first, before the lightest is taken regardless.
///
/// Bounds the work on large meshes; on smaller ones every slot is asked.
const PROBES: usize = 128;

/// Places all items on empty slots. Without spread, the largest load is at most 4/3 of the best.
///
/// # Source
/// Graham, "Bounds on multiprocessing timing anomalies" (1969).
pub(crate) fn place_all(slots: &mut Slots<'_>, spread: Spread) {
    for item in 0..slots.items.len() {
        if let Some(slot) = lightest(slots, slots.items[item].boundary, spread) {
            slots.place(item, slot);
        }
    }
}

/// The lightest slot with room for the boundary. An idle slot is taken even without room: an idle
/// rank is worse than a crowded column.
fn lightest(slots: &Slots<'_>, boundary: usize, spread: Spread) -> Option<usize> {
    let lightest = slots.by_load().next();
    if spread == Spread::Ignore {
        return lightest;
    }
    let is_idle = |slot: usize| slots.members(slot).is_empty();
    let with_room = slots.by_load().take(PROBES).find(|&slot| slots.has_room(boundary, slot, None));
    with_room.filter(|&slot| is_idle(slot) || !lightest.is_some_and(is_idle)).or(lightest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MeshShape, Rank, pack::Item};

    fn items(costs: &[f64], boundaries: &[usize]) -> Vec<Item> {
        let item = |(&cost, &boundary)| Item { cost, elems: 1, boundary };
        costs.iter().zip(boundaries).map(item).collect()
    }

    fn owners(items: &[Item], mesh: MeshShape, spread: Spread) -> Vec<usize> {
        let mut slots = Slots::new(items, mesh);
        place_all(&mut slots, spread);
        slots.owners().into_iter().map(|Rank(slot)| slot).collect()
    }

    #[test]
    fn the_largest_goes_to_the_lightest() {
        let items = items(&[3.0, 3.0, 2.0, 2.0, 2.0], &[0; 5]);
        let mesh = MeshShape::new(1, 2).unwrap();
        assert_eq!(owners(&items, mesh, Spread::Ignore), [0, 1, 0, 1, 0]);
    }

    #[test]
    fn spread_passes_over_a_slot_that_has_its_share() {
        let items = items(&[8.0, 4.0, 3.0], &[0, 1, 1]);
        let mesh = MeshShape::new(1, 2).unwrap();
        assert_eq!(owners(&items, mesh, Spread::Ignore), [0, 1, 1]);
        assert_eq!(owners(&items, mesh, Spread::Keep), [0, 1, 0]);
    }

    #[test]
    fn spread_prefers_idle_slots_in_other_columns() {
        // Ranks 0 and 2 are one column, 1 and 3 the other.
        let items = items(&[4.0, 3.0, 2.0, 1.0], &[0, 1, 1, 0]);
        let mesh = MeshShape::new(2, 2).unwrap();
        assert_eq!(owners(&items, mesh, Spread::Keep), [0, 1, 2, 3]);
        let items = self::items(&[4.0, 3.0, 2.0, 1.0], &[0, 1, 0, 1]);
        assert_eq!(owners(&items, mesh, Spread::Keep), [0, 1, 3, 2]);
    }
}
