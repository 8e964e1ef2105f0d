//! How a packed layout is cut into one equal part for each rank of the shard axis. Holds no data.

use crate::{PackedLayout, Slot};
use std::ops::Range;

/// The parts of one packed layout.
///
/// Parts are contiguous, of one length, and begin on a line; the last ones may hold padding alone.
/// A slot may lie in several parts: each rank then holds a *piece* of the parameter. A gradient
/// part is followed by the layout's presence lanes.
///
/// ```
/// use dmuon_core::{PackedLayout, ShardLayout};
///
/// let layout = PackedLayout::new([("a".into(), vec![3, 10]), ("b".into(), vec![2])], []);
/// let shards = ShardLayout::new(&layout, 2);
/// assert_eq!(shards.part_elems(), 32);
/// assert_eq!(shards.piece(&layout.slots()[0], 0), 0..30);
/// assert_eq!(shards.piece(&layout.slots()[1], 1), 0..2);
/// assert!(shards.piece(&layout.slots()[1], 0).is_empty());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardLayout {
    num_parts: usize,
    part_elems: usize,
    num_lanes: usize,
    /// With what fills up the last line of them.
    lane_elems: usize,
    payload_elems: usize,
}

impl ShardLayout {
    /// Cuts `layout` into `num_parts` parts.
    pub fn new(layout: &PackedLayout, num_parts: usize) -> Self {
        Self {
            num_parts,
            part_elems: layout.to_line(layout.weight_elems().div_ceil(num_parts)),
            num_lanes: layout.gradient_slots().len(),
            lane_elems: layout.to_line(layout.gradient_slots().len()),
            payload_elems: layout.weight_payload_elems().div_ceil(num_parts),
        }
    }

    /// Elements of a part's weights, padding included.
    pub fn part_elems(self) -> usize {
        self.part_elems
    }

    /// Elements of all parts, padding included.
    pub fn whole_elems(self) -> usize {
        self.num_parts * self.part_elems
    }

    /// Elements of a part that belong to parameters, on average and rounded up: what traffic
    /// formulas count.
    pub fn payload_elems(self) -> usize {
        self.payload_elems
    }

    /// Elements of a part's gradients, lanes included.
    pub fn gradient_part_elems(self) -> usize {
        self.part_elems + self.lane_elems
    }

    /// Where the lanes lie in a gradient part.
    pub fn lanes(self) -> Range<usize> {
        self.part_elems..self.part_elems + self.num_lanes
    }

    /// The elements of `slot` that lie in `part`, counted from the slot's first.
    pub fn piece(self, slot: &Slot, part: usize) -> Range<usize> {
        let (start, end) = (part * self.part_elems, (part + 1) * self.part_elems);
        let Range { start: first, end: last } = slot.range();
        let piece = start.clamp(first, last)..end.clamp(first, last);
        piece.start - first..piece.end - first
    }

    /// Where that piece begins in `part`; meaningless for an empty one.
    pub fn offset_in_part(self, slot: &Slot, part: usize) -> usize {
        slot.offset.saturating_sub(part * self.part_elems)
    }

    /// The parts that hold a piece of `slot`.
    pub fn parts_of(self, slot: &Slot) -> Range<usize> {
        match slot.num_elems {
            0 => 0..0,
            _ => slot.offset / self.part_elems..(slot.range().end - 1) / self.part_elems + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{WIDE_LINE_ELEMS, WIDE_SLOT_ELEMS};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_tile_every_slot(
            sizes in prop::collection::vec(
                prop_oneof![4 => 0usize..100, 1 => WIDE_SLOT_ELEMS - 9..WIDE_SLOT_ELEMS + 9],
                0..6,
            ),
            num_parts in 1usize..9,
        ) {
            let named = sizes.iter().enumerate().map(|(i, &n)| (format!("p{i}").into(), vec![n]));
            let layout = PackedLayout::new(named, []);
            let shards = ShardLayout::new(&layout, num_parts);
            prop_assert!(shards.whole_elems() >= layout.weight_elems());
            let line_elems = match sizes.iter().any(|&size| size >= WIDE_SLOT_ELEMS) {
                true => WIDE_LINE_ELEMS,
                false => crate::LINE_ELEMS,
            };
            prop_assert_eq!(shards.part_elems() % line_elems, 0);
            prop_assert_eq!(shards.gradient_part_elems() % line_elems, 0);
            for slot in layout.slots() {
                let mut end = 0;
                for part in 0..num_parts {
                    let piece = shards.piece(slot, part);
                    prop_assert_eq!(!piece.is_empty(), shards.parts_of(slot).contains(&part));
                    if piece.is_empty() {
                        continue;
                    }
                    prop_assert_eq!(piece.start, end);
                    let at = shards.offset_in_part(slot, part);
                    prop_assert_eq!(part * shards.part_elems() + at, slot.offset + piece.start);
                    prop_assert!(at + piece.len() <= shards.part_elems());
                    end = piece.end;
                }
                prop_assert_eq!(end, slot.num_elems);
            }
        }
    }

    #[test]
    fn an_empty_layout_and_more_parts_than_elements_are_fine() {
        let empty = ShardLayout::new(&PackedLayout::new([], []), 4);
        assert_eq!((empty.whole_elems(), empty.gradient_part_elems()), (0, 0));
        let layout = PackedLayout::new([("scalar".into(), vec![1])], []);
        let shards = ShardLayout::new(&layout, 4);
        assert_eq!(shards.parts_of(&layout.slots()[0]), 0..1);
        assert_eq!(shards.payload_elems(), 1);
    }
}
