//! How far this rank is in each of its groups, and which calls it started last.

use dmuon_core::Call;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Calls a group remembers: more than are ever in flight at once.
const MEMORY: usize = 256;

/// A group, by how it came about; the same number on every member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupId(u64);

/// One call of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The group.
    pub group: GroupId,
    /// Which of its calls, from 0.
    pub sequence: u64,
}

/// Calls started, by group.
pub(crate) type Progress = Vec<(GroupId, u64)>;

/// The calls a rank has started.
#[derive(Debug, Default)]
pub(super) struct CallLog {
    groups: Mutex<BTreeMap<GroupId, Recent>>,
}

#[derive(Debug, Default)]
struct Recent {
    num_started: u64,
    /// The latest, oldest first.
    calls: VecDeque<Call>,
}

impl GroupId {
    /// The group of all ranks.
    pub const WORLD: Self = Self(0);

    /// The group that `color` forms in the `split`-th split of this one.
    #[must_use]
    pub fn child(self, split: u64, color: usize) -> Self {
        Self(mixed(mixed(mixed(self.0, 1), split), color as u64))
    }

    /// The number itself, as a name for libraries that want one.
    pub fn number(self) -> u64 {
        self.0
    }

    /// Splits are numbered apart from calls: this stands for those of this group.
    #[must_use]
    pub fn splits(self) -> Self {
        Self(mixed(self.0, 2))
    }
}

impl CallLog {
    /// Enters a call.
    pub(super) fn start(&self, place: Place, call: &Call) {
        let mut groups = self.lock();
        let recent = groups.entry(place.group).or_default();
        recent.num_started = recent.num_started.max(place.sequence + 1);
        if recent.calls.len() == MEMORY {
            recent.calls.pop_front();
        }
        recent.calls.push_back(call.clone());
    }

    /// `None` if the call at `place` has not been started, `Some(None)` if it is forgotten.
    pub(super) fn look_up(&self, place: Place) -> Option<Option<Call>> {
        let groups = self.lock();
        let recent = groups.get(&place.group)?;
        let age = recent.num_started.checked_sub(place.sequence + 1)? as usize;
        let from_back = recent.calls.len().checked_sub(age + 1);
        Some(from_back.map(|index| recent.calls[index].clone()))
    }

    /// How far each group is.
    pub(super) fn progress(&self) -> Progress {
        self.lock().iter().map(|(group, recent)| (*group, recent.num_started)).collect()
    }

    /// Entries are whole at every step, so a panic elsewhere does no harm.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<GroupId, Recent>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a rank that got so far has started the call at `place`.
pub(super) fn has_started(progress: &Progress, place: Place) -> bool {
    progress.iter().any(|(group, started)| *group == place.group && *started > place.sequence)
}

/// A step of splitmix64: no two groups of a world get one number, short of bad luck in 2⁶⁴.
fn mixed(seed: u64, value: u64) -> u64 {
    let mut z =
        (seed ^ value.wrapping_mul(0xff51_afd7_ed55_8ccd)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn groups_are_told_apart() {
        let mut ids = BTreeSet::from([GroupId::WORLD]);
        for split in 0..20 {
            for color in 0..20 {
                let child = GroupId::WORLD.child(split, color);
                assert!(ids.insert(child) && ids.insert(child.splits()));
                assert!(ids.insert(child.child(color as u64, 3)));
            }
        }
    }

    #[test]
    fn recent_calls_are_remembered_and_old_ones_counted() {
        let log = CallLog::default();
        let place = |sequence| Place { group: GroupId::WORLD, sequence };
        for sequence in 0..300 {
            log.start(place(sequence), &Call::barrier(format!("step {sequence}")));
        }
        assert_eq!(log.look_up(place(300)), None);
        assert_eq!(log.look_up(place(0)), Some(None));
        for sequence in [44, 299] {
            let call = Call::barrier(format!("step {sequence}"));
            assert_eq!(log.look_up(place(sequence)), Some(Some(call)));
        }
        assert_eq!(log.progress(), [(GroupId::WORLD, 300)]);
        assert!(has_started(&log.progress(), place(299)));
        assert!(!has_started(&log.progress(), place(300)));
    }
}
