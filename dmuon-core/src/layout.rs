//! Packed layouts: where each parameter of a unit lies in one contiguous buffer. Holds no data.

use std::ops::Range;
use std::sync::Arc;

/// Elements per 64-byte line of `f32`: every slot starts on a line.
pub const LINE_ELEMS: usize = 16;

/// Elements per line of slots that are [wide](WIDE_SLOT_ELEMS): 512 bytes in half precision. Burn sees
/// a part of a tensor on CUDA without a copy if that begins and ends so far from the tensor's ends.
pub(crate) const WIDE_LINE_ELEMS: usize = 256;

/// From so many elements on a slot is wide: whatever lines cost it is under two percent.
pub(crate) const WIDE_SLOT_ELEMS: usize = 1 << 15;

/// One parameter's place in a packed buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Full parameter name, e.g. `layers.0.attn.q_proj.weight`.
    pub name: Arc<str>,
    /// The parameter's own shape.
    pub shape: Vec<usize>,
    /// First element in the buffer; a multiple of [`LINE_ELEMS`], or of 256 if the slot is wide: of
    /// 32,768 elements or more.
    pub offset: usize,
    /// Number of elements.
    pub num_elems: usize,
}

impl Slot {
    /// The slot's elements in the buffer.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.num_elems
    }
}

/// The layout of one packed buffer of `f32`.
///
/// A layout with a wide slot also ends on a wide line, as do its gradients and its
/// [parts](crate::ShardLayout).
///
/// Trainable parameters come first. A gradient buffer has their slots only, followed by one *lane*
/// each: the number of ranks whose backward produced a gradient for it.
///
/// ```
/// use dmuon_core::PackedLayout;
///
/// let trainable = [("a".into(), vec![3, 5]), ("b".into(), vec![2])];
/// let layout = PackedLayout::new(trainable, [("frozen".into(), vec![4])]);
/// assert_eq!(layout.slots()[1].offset, 16);
/// assert_eq!(layout.weight_payload_elems(), 21);
/// assert_eq!(layout.weight_elems(), 48);
/// assert_eq!(layout.gradient_payload_elems(), 17);
/// assert_eq!(layout.gradient_elems(), 48);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedLayout {
    slots: Vec<Slot>,
    num_trainable: usize,
    /// Where the last slot's line ends.
    end: usize,
    line_elems: usize,
}

impl PackedLayout {
    /// Lays the trainable parameters out in the order given, then the frozen ones.
    pub fn new(
        trainable: impl IntoIterator<Item = (Arc<str>, Vec<usize>)>,
        frozen: impl IntoIterator<Item = (Arc<str>, Vec<usize>)>,
    ) -> Self {
        let mut layout =
            Self { slots: Vec::new(), num_trainable: 0, end: 0, line_elems: LINE_ELEMS };
        trainable.into_iter().for_each(|parameter| layout.push(parameter));
        layout.num_trainable = layout.slots.len();
        frozen.into_iter().for_each(|parameter| layout.push(parameter));
        layout
    }

    fn push(&mut self, (name, shape): (Arc<str>, Vec<usize>)) {
        let num_elems = shape.iter().product();
        let line_elems = match num_elems {
            WIDE_SLOT_ELEMS.. => WIDE_LINE_ELEMS,
            _ => LINE_ELEMS,
        };
        self.line_elems = self.line_elems.max(line_elems);
        let offset = self.end.next_multiple_of(line_elems);
        self.slots.push(Slot { name, shape, offset, num_elems });
        self.end = offset + num_elems.next_multiple_of(line_elems);
    }

    /// All slots, in buffer order.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The slots that have gradients, in buffer order.
    pub fn gradient_slots(&self) -> &[Slot] {
        &self.slots[..self.num_trainable]
    }

    /// Elements of weights that belong to parameters: what traffic formulas count.
    pub fn weight_payload_elems(&self) -> usize {
        self.slots.iter().map(|slot| slot.num_elems).sum()
    }

    /// Elements of gradients that belong to parameters: what traffic formulas count.
    pub fn gradient_payload_elems(&self) -> usize {
        self.gradient_slots().iter().map(|slot| slot.num_elems).sum()
    }

    /// Elements of the weight buffer, alignment padding included.
    pub fn weight_elems(&self) -> usize {
        self.to_line(self.end)
    }

    /// Elements of the gradient buffer: padding and presence lanes included.
    pub fn gradient_elems(&self) -> usize {
        self.lanes().start + self.to_line(self.num_trainable)
    }

    /// Where the presence lanes lie in the gradient buffer, one element per gradient slot.
    pub fn lanes(&self) -> Range<usize> {
        let start = self.gradient_slots().last().map_or(0, |slot| self.to_line(slot.range().end));
        start..start + self.num_trainable
    }

    /// So many elements and what fills up the last line.
    pub(crate) fn to_line(&self, num_elems: usize) -> usize {
        num_elems.next_multiple_of(self.line_elems)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Shapes = Vec<Vec<usize>>;

    /// Small ones, and some that are wide or nearly.
    fn shapes() -> impl Strategy<Value = Shapes> {
        let wide = (WIDE_SLOT_ELEMS - 9..WIDE_SLOT_ELEMS + 9).prop_map(|num_elems| vec![num_elems]);
        let small = prop::collection::vec(0usize..9, 1..4);
        prop::collection::vec(prop_oneof![4 => small, 1 => wide], 0..8)
    }

    fn named(shapes: &Shapes) -> Vec<(Arc<str>, Vec<usize>)> {
        shapes
            .iter()
            .enumerate()
            .map(|(i, shape)| (format!("p{i}").into(), shape.clone()))
            .collect()
    }

    proptest! {
        #[test]
        fn slots_are_aligned_disjoint_and_in_bounds(trainable in shapes(), frozen in shapes()) {
            let layout = PackedLayout::new(named(&trainable), named(&frozen));
            let mut end = 0;
            for (slot, shape) in layout.slots().iter().zip(trainable.iter().chain(&frozen)) {
                prop_assert_eq!(slot.offset % LINE_ELEMS, 0);
                prop_assert!(slot.offset >= end);
                prop_assert_eq!(slot.num_elems, shape.iter().product::<usize>());
                end = slot.range().end;
            }
            prop_assert!(end <= layout.weight_elems());
            let num_elems = layout.slots().iter().map(|slot| slot.num_elems);
            if num_elems.max() >= Some(WIDE_SLOT_ELEMS) {
                let is_wide = |slot: &&Slot| slot.num_elems >= WIDE_SLOT_ELEMS;
                let offsets = layout.slots().iter().filter(is_wide).map(|slot| slot.offset);
                let ends = [layout.weight_elems(), layout.lanes().start, layout.gradient_elems()];
                prop_assert!(offsets.chain(ends).all(|at| at % WIDE_LINE_ELEMS == 0));
            }
            prop_assert_eq!(layout.lanes().len(), trainable.len());
            let last = layout.gradient_slots().last().map_or(0, |slot| slot.range().end);
            prop_assert!(last <= layout.lanes().start);
            prop_assert!(layout.lanes().end <= layout.gradient_elems());
        }
    }

    #[test]
    fn an_empty_layout_has_no_elements() {
        let layout = PackedLayout::new([], []);
        assert_eq!((layout.weight_elems(), layout.gradient_elems()), (0, 0));
    }
}
