//! What an engine between processes must bring.

use super::course::{Course, Stop};
use crate::{LibraryError, control::GroupId};
use dmuon_core::{Call, DeviceTransfer, Memory, SharedBuffer};
use std::fmt::Debug;

/// How an engine moves the data of one group; it lives on the group's thread.
///
/// Its waits go through [`Course::wait`], so that they end when the world fails.
pub(crate) trait Conduit: Debug + Send + Sized + 'static {
    /// What collectives on a device's memory run behind; [`Infallible`](std::convert::Infallible)
    /// where there are none.
    type Fence: Debug + Send + 'static;

    /// Whether the engine could average by itself.
    const NATIVE_AVERAGE: bool;

    /// This rank's place in the group.
    fn rank(&self) -> usize;

    /// How many ranks the group has.
    fn size(&self) -> usize;

    /// Makes fences on the device whose memory may be used, if there is one.
    fn fencing(&self) -> Option<Box<dyn Fencing<Self::Fence>>> {
        None
    }

    /// Runs one collective to its end. The call and its input have been checked; sums are of `f32`
    /// or `f64`, since narrower elements are widened before.
    fn run(
        &mut self,
        course: &Course<'_>,
        call: &Call,
        input: Option<SharedBuffer>,
    ) -> Result<Option<SharedBuffer>, Stop>;

    /// Runs one collective on memory of the device to its end, not before the device is past the
    /// fence. The call, which is as it is [carried out](Call::carried_out), and its buffers have been
    /// checked. Whatever becomes of it, they are kept until the device is done with them.
    fn run_on_device(
        &mut self,
        course: &Course<'_>,
        call: &Call,
        transfer: DeviceTransfer,
        fence: Self::Fence,
    ) -> Result<(), Stop>;

    /// Every rank's `input`, in group order: for set-up, so it must notice ranks that are gone.
    fn all_gather(
        &mut self,
        course: &Course<'_>,
        input: SharedBuffer,
    ) -> Result<SharedBuffer, Stop>;

    /// The conduit of the members of `division`, to which this rank belongs. Every rank of the
    /// group is here, with its own division.
    fn split(&mut self, course: &Course<'_>, division: &Division) -> Result<Self, Stop>;
}

/// Makes fences on a device, for whoever starts collectives on its memory.
pub(crate) trait Fencing<F>: Debug + Send + Sync {
    /// Where buffers may live.
    fn memory(&self) -> Memory;

    /// A fence behind everything that this process has put on the device so far. Does not wait.
    fn fence(&self) -> Result<F, LibraryError>;
}

/// One of the groups that a split makes, as one of its members sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Division {
    /// The group it makes.
    pub(crate) id: GroupId,
    /// Which of the split's groups it is, from 0.
    pub(crate) color: usize,
    /// The members' places in the group that is split, in the order of the new one.
    pub(crate) members: Vec<usize>,
    /// This rank's place in the new group.
    pub(crate) rank: usize,
}

impl Division {
    /// The division of the rank at `place`, of what `all` ranks chose: a color and a key each.
    pub(crate) fn of(place: usize, all: &[[u64; 2]], id: GroupId) -> Self {
        let [own, _] = all[place];
        let mut colors: Vec<u64> = all.iter().map(|[color, _]| *color).collect();
        colors.sort_unstable();
        colors.dedup();
        let mut members: Vec<usize> = (0..all.len()).filter(|rank| all[*rank][0] == own).collect();
        members.sort_by_key(|rank| all[*rank][1]);
        let at = |list: &[usize]| list.iter().position(|rank| *rank == place);
        let rank = at(&members).expect("a rank has its own color");
        Self { id, color: colors.partition_point(|color| *color < own), members, rank }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisions_are_ordered_by_key_then_by_place() {
        let all = [[7, 1], [9, 0], [7, 0], [9, 0], [7, 1]];
        let id = GroupId::WORLD;
        let of = |place| Division::of(place, &all, id);
        assert_eq!(of(0), Division { id, color: 0, members: vec![2, 0, 4], rank: 1 });
        assert_eq!(of(3), Division { id, color: 1, members: vec![1, 3], rank: 1 });
        assert_eq!(of(2).rank, 0);
    }
}
