//! A lane as a conduit: host buffers go up to the device and results come down; memory of the device
//! is used where it is.

use super::Lane;
use crate::{
    LibraryError,
    processes::{Conduit, Course, Division, Fencing, Stop},
};
use dmuon_core::{Call, DeviceTransfer, Element, Op, SharedBuffer};

/// A lane that takes host buffers, too.
#[derive(Debug)]
pub(crate) struct Staged<L> {
    lane: L,
    /// The rank that did not come to a call, by its place here: the lane ended with that.
    gone: Option<usize>,
}

impl<L: Lane> Staged<L> {
    pub(crate) fn new(lane: L) -> Self {
        Self { lane, gone: None }
    }

    /// Refuses what was queued before the world failed, or before a rank did not come: the lane has
    /// ended with that, and may still be at what it had begun.
    fn check(&self, course: &Course<'_>) -> Result<(), Stop> {
        if let Some(gone) = self.gone {
            return Err(Stop::Gone(gone));
        }
        course.watch.failure().map_or(Ok(()), |failure| Err(Stop::Failed(failure)))
    }

    /// Runs `call` on the device, where `issue` puts it, to its end.
    fn drive(
        &mut self,
        course: &Course<'_>,
        call: &Call,
        issue: impl FnOnce(&mut L) -> Result<(), LibraryError>,
    ) -> Result<(), Stop> {
        self.check(course)?;
        if call.num_elems == 0 {
            // Ranks meet for nothing, too, but libraries do not move it.
            self.lane.issue(&Call::barrier(call.label.clone()), None)?;
        } else {
            issue(&mut self.lane)?;
        }
        self.wait(course, |lane| Ok(lane.poll()?.then_some(())))
    }

    /// Waits for every other rank. If one does not come, nothing can be waited for ever again.
    fn wait<T>(
        &mut self,
        course: &Course<'_>,
        mut poll: impl FnMut(&mut L) -> Result<Option<T>, LibraryError>,
    ) -> Result<T, Stop> {
        let others: Vec<_> = (0..self.size()).filter(|rank| *rank != self.rank()).collect();
        let lane = &mut self.lane;
        let outcome = course.wait(&others, || poll(lane));
        outcome.inspect_err(|stop| {
            if let Stop::Gone(gone) = stop {
                self.gone = Some(*gone);
            }
            self.lane.abort();
        })
    }
}

impl<L: Lane> Conduit for Staged<L> {
    type Fence = L::Fence;

    const NATIVE_AVERAGE: bool = L::NATIVE_AVERAGE;

    fn rank(&self) -> usize {
        self.lane.rank()
    }

    fn size(&self) -> usize {
        self.lane.size()
    }

    fn fencing(&self) -> Option<Box<dyn Fencing<L::Fence>>> {
        self.lane.fencing()
    }

    fn run(
        &mut self,
        course: &Course<'_>,
        call: &Call,
        input: Option<SharedBuffer>,
    ) -> Result<Option<SharedBuffer>, Stop> {
        self.drive(course, call, |lane| lane.issue(call, input.as_deref()))?;
        if call.returns_input(self.rank(), self.size()) {
            return Ok(input);
        }
        let Some(num_bytes) = call.output_bytes(self.rank(), self.size()) else { return Ok(None) };
        let mut output = course.pool.take(num_bytes);
        if num_bytes > 0 {
            self.lane.collect(call, output.as_mut_slice())?;
        }
        Ok(Some(output.freeze()))
    }

    fn run_on_device(
        &mut self,
        course: &Course<'_>,
        call: &Call,
        transfer: DeviceTransfer,
        fence: L::Fence,
    ) -> Result<(), Stop> {
        self.drive(course, call, |lane| lane.issue_on_device(call, transfer, fence))
    }

    fn all_gather(
        &mut self,
        course: &Course<'_>,
        input: SharedBuffer,
    ) -> Result<SharedBuffer, Stop> {
        let call = Call::new(Op::AllGather, "set-up", Element::U8, input.len_bytes());
        let all = self.run(course, &call, Some(input))?;
        Ok(all.expect("an all-gather has an output on every rank"))
    }

    fn split(&mut self, course: &Course<'_>, division: &Division) -> Result<Self, Stop> {
        self.check(course)?;
        let mut forming = self.lane.split(division)?;
        self.wait(course, |_| L::formed(&mut forming)).map(Self::new)
    }
}
