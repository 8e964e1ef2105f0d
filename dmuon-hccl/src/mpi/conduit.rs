//! MPI as an engine: a communicator for each group, and who runs the collectives over it.

use super::{
    course::{Course, tag_of},
    native, ordered,
    safe::Comm,
};
use crate::processes::{self, Conduit, Division, Stop};
use dmuon_core::{Call, Collectives, DeviceTransfer, Element, Op, SharedBuffer};
use std::convert::Infallible;

/// A group's communicator.
#[derive(Debug)]
pub(super) struct MpiConduit {
    pub(super) comm: Comm,
    pub(super) collectives: Collectives,
    /// Whether all ranks meet before the library is entered, which has no way out.
    pub(super) verify: bool,
}

impl MpiConduit {
    fn course<'a>(&'a self, general: &'a processes::Course<'a>, call: &Call) -> Course<'a> {
        Course { general, comm: &self.comm, pool: general.pool, tag: tag_of(call, general.place) }
    }
}

impl Conduit for MpiConduit {
    type Fence = Infallible;

    const NATIVE_AVERAGE: bool = false;

    fn rank(&self) -> usize {
        self.comm.rank()
    }

    fn size(&self) -> usize {
        self.comm.size()
    }

    fn run(
        &mut self,
        course: &processes::Course<'_>,
        call: &Call,
        input: Option<SharedBuffer>,
    ) -> Result<Option<SharedBuffer>, Stop> {
        let course = self.course(course, call);
        match self.collectives {
            Collectives::Library => native::run(&course, call, input, self.verify),
            _ => ordered::run(&course, call, input),
        }
    }

    fn run_on_device(
        &mut self,
        _: &processes::Course<'_>,
        _: &Call,
        _: DeviceTransfer,
        fence: Infallible,
    ) -> Result<(), Stop> {
        match fence {}
    }

    fn all_gather(
        &mut self,
        course: &processes::Course<'_>,
        input: SharedBuffer,
    ) -> Result<SharedBuffer, Stop> {
        let call = Call::new(Op::AllGather, "set-up", Element::U8, input.len_bytes());
        ordered::all_gather(&self.course(course, &call), &input)
    }

    fn split(&mut self, _: &processes::Course<'_>, division: &Division) -> Result<Self, Stop> {
        let comm = self.comm.split(division.color, division.rank)?;
        Ok(Self { comm, ..*self })
    }
}
