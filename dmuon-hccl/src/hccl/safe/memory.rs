//! Memory on a device, which host bytes are copied to and from.

use super::Device;
use crate::{LibraryError, hccl::sys};
use std::{
    ffi::c_void,
    mem,
    ops::Range,
    ptr::{NonNull, null_mut},
    sync::Arc,
};

/// Sizes are rounded up to this, so that a little more does not need new memory.
const GRANULE: usize = 1 << 20;

/// Memory on a device that grows as needed.
#[derive(Debug)]
pub(super) struct Memory {
    device: Arc<Device>,
    start: Option<NonNull<c_void>>,
    num_bytes: usize,
}

// SAFETY: the memory is this owner's alone, and threads enter the device before they use it.
unsafe impl Send for Memory {}

impl Memory {
    /// No memory yet.
    pub(super) fn new(device: Arc<Device>) -> Self {
        Self { device, start: None, num_bytes: 0 }
    }

    /// Where it starts on the device; null if there is none.
    pub(super) fn start(&self) -> *mut c_void {
        self.start.map_or(null_mut(), NonNull::as_ptr)
    }

    pub(super) fn num_bytes(&self) -> usize {
        self.num_bytes
    }

    /// Has room for `num_bytes`; what it held before is lost if it grows.
    pub(super) fn reserve(&mut self, num_bytes: usize) -> Result<(), LibraryError> {
        if num_bytes <= self.num_bytes {
            return Ok(());
        }
        self.free()?;
        let num_bytes = num_bytes.next_multiple_of(GRANULE);
        let table = &self.device.library.table;
        let mut start = null_mut();
        // SAFETY: takes a pointer to fill and a size that is not zero.
        let status = unsafe { (table.acl.aclrtMalloc)(&mut start, num_bytes, sys::HUGE_FIRST) };
        table.check_acl("aclrtMalloc", status)?;
        self.start = NonNull::new(start);
        self.num_bytes = num_bytes;
        Ok(())
    }

    /// Copies host bytes to `offset`.
    pub(super) fn upload(&mut self, offset: usize, bytes: &[u8]) -> Result<(), LibraryError> {
        let (place, room) = self.range(offset..offset + bytes.len());
        let (source, count) = (bytes.as_ptr().cast(), bytes.len());
        let copy = self.device.library.table.acl.aclrtMemcpy;
        // SAFETY: both ranges are valid for `count` bytes; the copy is over when the call returns.
        let status = unsafe { copy(place, room, source, count, sys::HOST_TO_DEVICE) };
        self.device.library.table.check_acl("aclrtMemcpy", status)
    }

    /// Copies bytes from `offset` to the host.
    pub(super) fn download(&self, offset: usize, bytes: &mut [u8]) -> Result<(), LibraryError> {
        let (place, _) = self.range(offset..offset + bytes.len());
        let (target, count) = (bytes.as_mut_ptr().cast(), bytes.len());
        let copy = self.device.library.table.acl.aclrtMemcpy;
        // SAFETY: both ranges are valid for `count` bytes; the copy is over when the call returns.
        let status = unsafe { copy(target, count, place, count, sys::DEVICE_TO_HOST) };
        self.device.library.table.check_acl("aclrtMemcpy", status)
    }

    /// Where the range starts, and how much room there is from there on.
    fn range(&self, range: Range<usize>) -> (*mut c_void, usize) {
        assert!(range.end <= self.num_bytes, "the range lies within the memory");
        let start = self.start.map_or(null_mut(), |start| start.as_ptr().cast::<u8>());
        // Not followed here: an address on the device.
        (start.wrapping_add(range.start).cast(), self.num_bytes - range.start)
    }

    fn free(&mut self) -> Result<(), LibraryError> {
        self.num_bytes = 0;
        let Some(start) = self.start.take() else { return Ok(()) };
        let table = &self.device.library.table;
        // SAFETY: it is the library's own pointer, given back once.
        let status = unsafe { (table.acl.aclrtFree)(start.as_ptr()) };
        table.check_acl("aclrtFree", status)
    }

    /// Keeps the memory for ever: something on the device may still use it.
    pub(super) fn forget(&mut self) {
        let memory = Self { start: self.start.take(), num_bytes: 0, device: self.device.clone() };
        mem::forget(memory);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Err(error) = self.device.enter().and_then(|()| self.free()) {
            tracing::debug!(%error, "memory on the device was not returned");
        }
    }
}
