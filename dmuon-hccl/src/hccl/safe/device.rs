//! A device: opened once, entered by every thread that works with it, and one call to HCCL at a time.

use super::Library;
use crate::{LibraryError, hccl::sys};
use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

/// A device of this process. HCCL wants all threads in one context of it, and wants communicators to
/// be made and collectives to be issued one after the other.
#[derive(Debug)]
pub(in crate::hccl) struct Device {
    pub(super) library: Library,
    id: i32,
    context: sys::Context,
    door: Mutex<()>,
    /// Whether something may be left on it that nobody waits for any more.
    is_abandoned: AtomicBool,
}

impl Device {
    /// Takes device `id` into use, on this thread too.
    pub(in crate::hccl) fn open(library: Library, id: usize) -> Result<Self, LibraryError> {
        let id = i32::try_from(id).unwrap_or(i32::MAX);
        // From here on nothing may be finalized, as the call may take for ever.
        library.hold();
        // SAFETY: takes any number.
        let status = unsafe { (library.table.acl.aclrtSetDevice)(id) };
        let opened = library.table.check_acl("aclrtSetDevice", status);
        opened.inspect_err(|_| library.release())?;
        let (door, is_abandoned) = (Mutex::new(()), AtomicBool::new(false));
        let mut device = Self { library, id, context: sys::Context::NULL, door, is_abandoned };
        device.context = device.current_context()?;
        Ok(device)
    }

    /// The context that this thread is in.
    fn current_context(&self) -> Result<sys::Context, LibraryError> {
        let (table, mut context) = (&self.library.table, sys::Context::NULL);
        // SAFETY: takes a handle to fill.
        let status = unsafe { (table.acl.aclrtGetCurrentContext)(&mut context) };
        table.check_acl("aclrtGetCurrentContext", status)?;
        Ok(context)
    }

    /// Lets this thread work with the device.
    pub(in crate::hccl) fn enter(&self) -> Result<(), LibraryError> {
        // SAFETY: the context lives as long as the device is in use.
        let status = unsafe { (self.library.table.acl.aclrtSetCurrentContext)(self.context) };
        self.library.table.check_acl("aclrtSetCurrentContext", status)
    }

    /// Keeps other threads out of HCCL meanwhile.
    pub(super) fn alone(&self) -> MutexGuard<'_, ()> {
        self.door.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that something is left on the device that nobody waits for any more.
    pub(in crate::hccl) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Release);
        self.library.abandon();
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire)
    }
}

impl Drop for Device {
    /// Returns the device, unless something is left on it, which that would wait for.
    fn drop(&mut self) {
        if self.is_abandoned() {
            return;
        }
        // SAFETY: whatever was made on the device is gone: it held this.
        let status = unsafe { (self.library.table.acl.aclrtResetDevice)(self.id) };
        match self.library.table.check_acl("aclrtResetDevice", status) {
            Ok(()) => self.library.release(),
            Err(error) => tracing::debug!(%error, "a device was not returned"),
        }
    }
}
