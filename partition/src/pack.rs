//! What is placed as one: a matrix, or several small ones of a boundary that share a buffer.

use crate::Matrix;

/// The unit that the balancing places.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Item {
    pub(crate) cost: f64,
    pub(crate) elems: usize,
    pub(crate) boundary: usize,
}

/// Items in placing order, and the item of each matrix.
#[derive(Clone, Debug)]
pub(crate) struct Items {
    /// Invariant: by cost, largest first; equal costs in visit order.
    pub(crate) list: Vec<Item>,
    pub(crate) of_matrix: Vec<usize>,
}

/// How much may share one buffer.
#[derive(Clone, Copy, Debug)]
struct Limits {
    small: usize,
    elems: usize,
    cost: f64,
}

/// No shared buffer exceeds this fraction of a rank's fair share, neither in cost nor in elements.
///
/// Below a third, a shared buffer never costs the balance its 4/3 guarantee; at an eighth it still
/// fills gaps well, and a small model never ends up on one rank.
const FAIR_SHARE: f64 = 1.0 / 8.0;

impl Items {
    /// Joins matrices of fewer than `pack_below` elements with their neighbours in visit order,
    /// within a boundary, as long as together they stay within `pack_below` elements.
    ///
    /// Costs and boundaries are given a matrix; shapes have been checked.
    pub(crate) fn pack(
        matrices: &[Matrix],
        costs: &[f64],
        boundaries: &[usize],
        pack_below: usize,
        slots: usize,
    ) -> Self {
        let share = FAIR_SHARE / slots as f64;
        let total_elems = matrices.iter().map(Matrix::elems).sum::<usize>() as f64;
        let limits = Limits {
            small: pack_below,
            elems: pack_below.min((share * total_elems) as usize),
            cost: share * costs.iter().sum::<f64>(),
        };
        let num_boundaries = boundaries.iter().max().map_or(0, |last| last + 1);
        let mut open: Vec<Option<usize>> = vec![None; num_boundaries];
        let mut list: Vec<Item> = Vec::with_capacity(matrices.len());
        let mut of_matrix = Vec::with_capacity(matrices.len());
        for ((matrix, &cost), &boundary) in matrices.iter().zip(costs).zip(boundaries) {
            let item = Item { cost, elems: matrix.elems(), boundary };
            let shared = open[boundary].filter(|&open| limits.allow(list[open], item));
            let position = shared.unwrap_or(list.len());
            if shared.is_some() {
                list[position].cost += item.cost;
                list[position].elems += item.elems;
            } else {
                list.push(item);
                if item.elems < limits.small {
                    open[boundary] = Some(position);
                }
            }
            of_matrix.push(position);
        }
        Self { list, of_matrix }.sorted()
    }

    /// Brings the list into placing order.
    fn sorted(self) -> Self {
        let mut order: Vec<usize> = (0..self.list.len()).collect();
        order.sort_by(|&a, &b| self.list[b].cost.total_cmp(&self.list[a].cost));
        let mut position = vec![0; order.len()];
        for (new, &old) in order.iter().enumerate() {
            position[old] = new;
        }
        Self {
            list: order.iter().map(|&old| self.list[old]).collect(),
            of_matrix: self.of_matrix.iter().map(|&old| position[old]).collect(),
        }
    }
}

impl Limits {
    fn allow(self, open: Item, next: Item) -> bool {
        next.elems < self.small
            && open.elems + next.elems <= self.elems
            && open.cost + next.cost <= self.cost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack(shapes: &[(usize, usize)], boundaries: &[usize], below: usize, slots: usize) -> Items {
        let matrices: Vec<_> =
            shapes.iter().map(|&(rows, cols)| Matrix::new("w", rows, cols)).collect();
        let costs: Vec<_> = matrices.iter().map(|matrix| matrix.elems() as f64).collect();
        Items::pack(&matrices, &costs, boundaries, below, slots)
    }

    #[test]
    fn small_neighbours_of_a_boundary_share() {
        let shapes = [(64, 64), (2, 2), (2, 2), (2, 2), (64, 64)];
        let items = pack(&shapes, &[0, 0, 0, 1, 1], 16, 2);
        assert_eq!(items.of_matrix, [0, 2, 2, 3, 1]);
        assert_eq!(items.list[2], Item { cost: 8.0, elems: 8, boundary: 0 });
    }

    #[test]
    fn a_shared_buffer_stays_below_the_threshold() {
        let shapes = [(64, 64), (2, 5), (2, 5), (2, 5)];
        let items = pack(&shapes, &[0; 4], 20, 2);
        assert_eq!(items.of_matrix, [0, 1, 1, 2]);
    }

    #[test]
    fn a_small_model_is_not_packed_onto_one_rank() {
        let items = pack(&[(2, 2); 6], &[0; 6], 1 << 16, 2);
        assert_eq!(items.list.len(), 6);
    }
}
