//! Who waits at the library's door: a group enters together, and all groups in one order on all ranks.
//!
//! A library that must not be called by two threads at once, and may wait for the other ranks inside
//! a call, would lock up if one rank entered group A's call before group B's and another B's before
//! A's. The host lets a group in once all of its ranks are there; what it says, every rank hears in
//! the order in which it was said.

use super::log::Place;
use dmuon_core::Rank;
use std::collections::HashMap;

/// Ranks that wait for the rest of their group, by place.
#[derive(Debug, Default)]
pub(super) struct Muster {
    waiting: HashMap<Place, Vec<Rank>>,
}

impl Muster {
    /// Takes note that `rank` is at `place`, and returns the whole group if it is the last.
    pub(super) fn arrive(&mut self, rank: Rank, place: Place, group_size: usize) -> Vec<Rank> {
        let waiting = self.waiting.entry(place).or_default();
        waiting.push(rank);
        if waiting.len() < group_size {
            return Vec::new();
        }
        self.waiting.remove(&place).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::GroupId;

    #[test]
    fn a_group_enters_when_its_last_rank_arrives() {
        let mut muster = Muster::default();
        let world = Place { group: GroupId::WORLD, sequence: 0 };
        let pair = Place { group: GroupId::WORLD.child(0, 1), sequence: 0 };
        assert!(muster.arrive(Rank(2), world, 3).is_empty());
        assert!(muster.arrive(Rank(1), pair, 2).is_empty());
        assert!(muster.arrive(Rank(0), world, 3).is_empty());
        assert_eq!(muster.arrive(Rank(2), pair, 2), [Rank(1), Rank(2)]);
        assert_eq!(muster.arrive(Rank(1), world, 3), [Rank(2), Rank(0), Rank(1)]);
        assert!(muster.waiting.is_empty());
    }
}
