//! A communicator that is being split, until the new one is there.

use super::{
    Comm, Device, Library,
    comm::{Handle, int},
};
use crate::{LibraryError, nccl::sys};
use std::ptr::{NonNull, null_mut};

/// A split of a communicator.
#[derive(Debug)]
pub(in crate::nccl) struct Splitting {
    library: Library,
    device: Device,
    parent: Handle,
    color: usize,
    /// This rank in the new communicator, and how many there will be.
    place: (usize, usize),
    state: State,
}

#[derive(Debug)]
enum State {
    New,
    Asked(Slot),
    Done,
}

/// Where the library will put its new communicator, whenever that is; kept for ever if nobody waits
/// that long.
#[derive(Debug)]
struct Slot(NonNull<sys::Comm>);

// SAFETY: the memory belongs to nobody else but the library, which writes it on whatever thread.
unsafe impl Send for Slot {}

impl Comm {
    /// The communicator of those ranks that choose the same `color`, of which this one will be at the
    /// given place: its rank, of how many. Nothing is asked of the library yet.
    pub(in crate::nccl) fn splitting(&self, color: usize, place: (usize, usize)) -> Splitting {
        let (library, device) = (self.library.clone(), self.device.clone());
        Splitting { library, device, parent: self.handle.clone(), color, place, state: State::New }
    }
}

impl Splitting {
    /// Asks for the new communicator, the first time, and returns it when its ranks are connected.
    ///
    /// # Collective
    /// Every rank.
    pub(in crate::nccl) fn poll(&mut self) -> Result<Option<Comm>, LibraryError> {
        let slot = match &self.state {
            State::New => {
                self.state = State::Asked(self.ask()?);
                return Ok(None);
            }
            State::Asked(slot) if self.parent.is_idle(&self.library.table)? => slot.0.as_ptr(),
            _ => return Ok(None),
        };
        self.state = State::Done;
        // SAFETY: the library has written the slot before the parent became idle, and is done with
        // it; it came from a box, and nobody has it any more.
        let handle = *unsafe { Box::from_raw(slot) };
        if handle == sys::Comm::NULL {
            let text = "there is no communicator, although nothing went wrong".into();
            return Err(LibraryError { call: "ncclCommSplit", code: sys::SUCCESS.into(), text });
        }
        Ok(Some(Comm::adopt(&self.library, &self.device, handle, self.place)))
    }

    fn ask(&self) -> Result<Slot, LibraryError> {
        self.device.bind()?;
        let slot = Slot(NonNull::from(Box::leak(Box::new(sys::Comm::NULL))));
        let (color, key, split) =
            (int(self.color), int(self.place.0), self.library.table.ncclCommSplit);
        self.parent.call(&self.library.table, "ncclCommSplit", |handle| {
            // SAFETY: the handle is alive while it is locked; the slot stays until the split is
            // done, or for ever; without a configuration the new communicator is like the old.
            unsafe { split(handle, color, key, slot.0.as_ptr(), null_mut()) }
        })?;
        Ok(slot)
    }
}
