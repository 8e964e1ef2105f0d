//! Who is who: a group orders its ranks by key, a communicator of HCCL by their numbers in the world.

use crate::processes::Division;

/// A group's ranks in both orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Order {
    /// World ranks, by place in the group.
    world_ranks: Vec<usize>,
    /// Ranks in the communicator, by place in the group.
    comm_ranks: Vec<usize>,
    /// This rank's place in the group.
    place: usize,
}

impl Order {
    /// The group of all ranks.
    pub(super) fn of_world(rank: usize, size: usize) -> Self {
        Self::new((0..size).collect(), rank)
    }

    /// The group that a division of this one makes.
    pub(super) fn of_division(&self, division: &Division) -> Self {
        let world_ranks = division.members.iter().map(|place| self.world_ranks[*place]).collect();
        Self::new(world_ranks, division.rank)
    }

    fn new(world_ranks: Vec<usize>, place: usize) -> Self {
        let lower = |rank: &usize| world_ranks.iter().filter(|other| *other < rank).count();
        let comm_ranks = world_ranks.iter().map(lower).collect();
        Self { world_ranks, comm_ranks, place }
    }

    pub(super) fn size(&self) -> usize {
        self.world_ranks.len()
    }

    /// This rank's place in the group.
    pub(super) fn place(&self) -> usize {
        self.place
    }

    /// This rank in the communicator.
    pub(super) fn comm_rank(&self) -> usize {
        self.comm_ranks[self.place]
    }

    /// The rank in the communicator of whoever has a `place` in the group.
    pub(super) fn comm_rank_of(&self, place: usize) -> usize {
        self.comm_ranks[place]
    }

    /// World ranks in the communicator's order.
    pub(super) fn members(&self) -> Vec<u32> {
        let mut ranks: Vec<u32> = self.world_ranks.iter().map(|rank| *rank as u32).collect();
        ranks.sort_unstable();
        ranks
    }

    /// Whether both orders are the same.
    pub(super) fn is_straight(&self) -> bool {
        self.comm_ranks.is_sorted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::GroupId;

    fn division(members: &[usize], rank: usize) -> Division {
        Division { id: GroupId::WORLD, color: 0, members: members.to_vec(), rank }
    }

    #[test]
    fn the_world_is_in_one_order() {
        let order = Order::of_world(2, 4);
        assert!(order.is_straight());
        assert_eq!((order.size(), order.place(), order.comm_rank()), (4, 2, 2));
        assert_eq!(order.members(), [0, 1, 2, 3]);
    }

    #[test]
    fn communicators_are_sorted_whatever_the_group_is() {
        let order = Order::of_world(1, 6).of_division(&division(&[5, 1, 3], 1));
        assert!(!order.is_straight());
        assert_eq!(order.world_ranks, [5, 1, 3]);
        assert_eq!(order.members(), [1, 3, 5]);
        assert_eq!((order.place(), order.comm_rank()), (1, 0));
        assert_eq!([0, 1, 2].map(|place| order.comm_rank_of(place)), [2, 0, 1]);
        let order = order.of_division(&division(&[2, 1], 1));
        assert_eq!((&order.world_ranks[..], order.members()), (&[3, 1][..], vec![1, 3]));
    }
}
