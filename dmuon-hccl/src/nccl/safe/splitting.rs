//! A communicator that is being split, until the new one is there.

use super::{
    Comm, Device, Library,
    comm::{Handle, int},
};
use crate::{LibraryError, nccl::sys};
use std::ptr::{NonNull, null_mut};

/// A split under way.
#[derive(Debug)]
pub(in crate::nccl) struct Splitting {
    library: Library,
    device: Device,
    parent: Handle,
    /// Taken when the new communicator is there.
    slot: Option<Slot>,
    /// This rank in the new communicator, and how many there will be.
    place: (usize, usize),
}

/// Where the library will put its new communicator, whenever that is; kept for ever if nobody waits
/// that long.
#[derive(Debug)]
struct Slot(NonNull<sys::Comm>);

// SAFETY: the memory belongs to nobody else but the library, which writes it on whatever thread.
unsafe impl Send for Slot {}

impl Comm {
    /// Starts forming the communicator of those ranks that choose the same `color`, of which this
    /// one will be at the given place: its rank, of how many.
    ///
    /// # Collective
    /// Every rank.
    pub(in crate::nccl) fn split(
        &self,
        color: usize,
        place: (usize, usize),
    ) -> Result<Splitting, LibraryError> {
        self.device.bind()?;
        let slot = Slot(NonNull::from(Box::leak(Box::new(sys::Comm::NULL))));
        let (color, key, split) = (int(color), int(place.0), self.library.table.ncclCommSplit);
        self.handle.call(&self.library.table, "ncclCommSplit", |handle| {
            // SAFETY: the handle is alive while it is locked; the slot stays until the split is
            // done, or for ever; without a configuration the new one is like the old.
            unsafe { split(handle, color, key, slot.0.as_ptr(), null_mut()) }
        })?;
        let (library, device) = (self.library.clone(), self.device.clone());
        Ok(Splitting { library, device, parent: self.handle.clone(), slot: Some(slot), place })
    }
}

impl Splitting {
    /// The new communicator, once, when its ranks are connected.
    pub(in crate::nccl) fn poll(&mut self) -> Result<Option<Comm>, LibraryError> {
        if !self.parent.is_idle(&self.library.table)? {
            return Ok(None);
        }
        let Some(slot) = self.slot.take() else { return Ok(None) };
        // SAFETY: the library has written the slot before the parent became idle, and is done with
        // it; it came from a box, and nobody else has it.
        let handle = *unsafe { Box::from_raw(slot.0.as_ptr()) };
        if handle == sys::Comm::NULL {
            let text = "there is no communicator, although nothing went wrong".into();
            return Err(LibraryError { call: "ncclCommSplit", code: sys::SUCCESS.into(), text });
        }
        Ok(Some(Comm::adopt(&self.library, &self.device, handle, self.place)))
    }
}
