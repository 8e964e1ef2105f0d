//! Who passes what to whom along a tree; pure.

use dmuon_core::reduce::tree_split;
use std::ops::Range;

/// A rank's neighbours in a broadcast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BroadcastTree {
    /// Whom it receives from; the root from nobody.
    pub(super) parent: Option<usize>,
    /// Whom it sends to, those with most behind them first.
    pub(super) children: Vec<usize>,
}

/// A rank's neighbours in a reduce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReduceTree {
    /// Whose partial sums it adds to its own, in this order.
    pub(super) children: Vec<(usize, Side)>,
    /// Whom it sends the sum to; the root to nobody.
    pub(super) parent: Option<usize>,
}

/// Where a partial sum stands in the addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

impl BroadcastTree {
    /// A binomial tree: everybody who has the data passes it on, so ⌈log₂ size⌉ rounds reach all.
    pub(super) fn new(rank: usize, size: usize, root: usize) -> Self {
        // Counted from the root, a rank's parent lacks its lowest bit.
        let own = (rank + size - root) % size;
        let absolute = |relative: usize| (relative + root) % size;
        let reach = if own == 0 { size.next_power_of_two() } else { own & own.wrapping_neg() };
        let bits = std::iter::successors(Some(reach / 2), |bit| Some(bit / 2));
        let bits = bits.take_while(|bit| *bit > 0);
        Self {
            parent: (own != 0).then(|| absolute(own & (own - 1))),
            children: bits.map(|bit| own + bit).filter(|c| *c < size).map(absolute).collect(),
        }
    }
}

impl ReduceTree {
    /// The canonical tree of sums. A partial sum is held by the root where the root is among its
    /// ranks, else by the first of them; where a sum is taken does not change it.
    pub(super) fn new(rank: usize, size: usize, root: usize) -> Self {
        let mut tree = Self { children: Vec::new(), parent: None };
        tree.climb(0..size, rank, root);
        tree
    }

    /// Enters the sums over `ranks` that `rank` takes part in, inner ones first.
    fn climb(&mut self, ranks: Range<usize>, rank: usize, root: usize) {
        if ranks.len() == 1 {
            return;
        }
        let middle = ranks.start + tree_split(ranks.len());
        let (left, right) = (ranks.start..middle, middle..ranks.end);
        let (own, other, side) = match rank < middle {
            true => (left, right, Side::Right),
            false => (right, left, Side::Left),
        };
        let (own_holder, other_holder) = (holder(&own, root), holder(&other, root));
        self.climb(own, rank, root);
        if rank != own_holder {
            return;
        }
        if holder(&ranks, root) == rank {
            self.children.push((other_holder, side));
        } else {
            self.parent = Some(other_holder);
        }
    }
}

fn holder(ranks: &Range<usize>, root: usize) -> usize {
    if ranks.contains(&root) { root } else { ranks.start }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcasts_reach_everybody_once() {
        for size in 1..20 {
            for root in 0..size {
                let trees: Vec<_> =
                    (0..size).map(|rank| BroadcastTree::new(rank, size, root)).collect();
                assert_eq!(trees[root].parent, None);
                for (rank, tree) in trees.iter().enumerate().filter(|(rank, _)| *rank != root) {
                    let parent = tree.parent.expect("only the root has none");
                    assert!(trees[parent].children.contains(&rank), "{rank} of {size} from {root}");
                }
                let edges: usize = trees.iter().map(|tree| tree.children.len()).sum();
                assert_eq!(edges, size - 1);
            }
        }
    }

    /// The sum as text, by following the messages.
    fn traced(rank: usize, size: usize, root: usize) -> String {
        let tree = ReduceTree::new(rank, size, root);
        tree.children.iter().fold(rank.to_string(), |sum, (child, side)| {
            assert_eq!(ReduceTree::new(*child, size, root).parent, Some(rank));
            let other = traced(*child, size, root);
            match side {
                Side::Left => format!("({other}+{sum})"),
                Side::Right => format!("({sum}+{other})"),
            }
        })
    }

    fn canonical(ranks: Range<usize>) -> String {
        if ranks.len() == 1 {
            return ranks.start.to_string();
        }
        let middle = ranks.start + tree_split(ranks.len());
        format!("({}+{})", canonical(ranks.start..middle), canonical(middle..ranks.end))
    }

    #[test]
    fn reduces_sum_in_the_canonical_order_whoever_is_the_root() {
        for size in 1..20 {
            for root in 0..size {
                assert_eq!(traced(root, size, root), canonical(0..size), "{root} of {size}");
            }
        }
    }
}
