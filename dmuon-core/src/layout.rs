//! Packed layouts: where each parameter of a unit lies in one contiguous buffer. Holds no data.

use std::ops::Range;
use std::sync::Arc;

/// Elements per 64-byte line of `f32`: every slot starts on a line.
pub const LINE_ELEMS: usize = 16;

/// One parameter's place in a packed buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Full parameter name, e.g. `layers.0.attn.q_proj.weight`.
    pub name: Arc<str>,
    /// The parameter's own shape.
    pub shape: Vec<usize>,
    /// First element in the buffer; a multiple of [`LINE_ELEMS`].
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
    weight_elems: usize,
}

impl PackedLayout {
    /// Lays the trainable parameters out in the order given, then the frozen ones.
    pub fn new(
        trainable: impl IntoIterator<Item = (Arc<str>, Vec<usize>)>,
        frozen: impl IntoIterator<Item = (Arc<str>, Vec<usize>)>,
    ) -> Self {
        let mut layout = Self { slots: Vec::new(), num_trainable: 0, weight_elems: 0 };
        trainable.into_iter().for_each(|parameter| layout.push(parameter));
        layout.num_trainable = layout.slots.len();
        frozen.into_iter().for_each(|parameter| layout.push(parameter));
        layout
    }

    fn push(&mut self, (name, shape): (Arc<str>, Vec<usize>)) {
        let num_elems = shape.iter().product();
        self.slots.push(Slot { name, shape, offset: self.weight_elems, num_elems });
        self.weight_elems += to_line(num_elems);
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
        self.weight_elems
    }

    /// Elements of the gradient buffer: padding and presence lanes included.
    pub fn gradient_elems(&self) -> usize {
        self.lanes().start + to_line(self.num_trainable)
    }

    /// Where the presence lanes lie in the gradient buffer, one element per gradient slot.
    pub fn lanes(&self) -> Range<usize> {
        let start = self.gradient_slots().last().map_or(0, |slot| to_line(slot.range().end));
        start..start + self.num_trainable
    }
}

pub(crate) fn to_line(num_elems: usize) -> usize {
    num_elems.next_multiple_of(LINE_ELEMS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Shapes = Vec<Vec<usize>>;

    fn shapes() -> impl Strategy<Value = Shapes> {
        prop::collection::vec(prop::collection::vec(0usize..9, 1..4), 0..8)
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
