//! Device memory: host memory that knows which device it belongs to and where it ends.

use crate::live;
use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    collections::BTreeMap,
    ptr::with_exposed_provenance_mut,
    sync::{Mutex, MutexGuard, PoisonError},
};

const ALIGNMENT: usize = 256;

/// Every allocation, by its first address.
static ALLOCATIONS: Mutex<BTreeMap<usize, Allocation>> = Mutex::new(BTreeMap::new());

#[derive(Clone, Copy, Debug)]
struct Allocation {
    num_bytes: usize,
    device: i32,
}

/// Some bytes on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) num_bytes: usize,
}

pub(crate) fn allocate(num_bytes: usize, device: i32) -> usize {
    // SAFETY: the size is not zero.
    let start = unsafe { alloc_zeroed(layout(num_bytes)) }.expose_provenance();
    lock().insert(start, Allocation { num_bytes, device });
    live::make();
    start
}

/// Frees an allocation, if it is one.
pub(crate) fn free(start: usize) -> bool {
    let Some(allocation) = lock().remove(&start) else { return false };
    // SAFETY: it was allocated with this layout, and is nobody's since it was taken from the list.
    unsafe { dealloc(with_exposed_provenance_mut(start), layout(allocation.num_bytes)) };
    live::give_back();
    true
}

impl Span {
    /// Whether all of it is memory of the device.
    pub(crate) fn is_on(self, device: i32) -> bool {
        let list = lock();
        let found = list.range(..=self.start).next_back();
        found.is_some_and(|(start, found)| {
            found.device == device && self.start + self.num_bytes <= start + found.num_bytes
        })
    }

    /// A copy of the bytes.
    pub(crate) fn read(self) -> Vec<u8> {
        let mut bytes = vec![0; self.num_bytes];
        let from: *const u8 = with_exposed_provenance_mut(self.start);
        // SAFETY: whoever put this on a stream has checked the span, and frees it after that.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        bytes
    }

    /// Replaces the bytes.
    pub(crate) fn write(self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.num_bytes, "a span is written as a whole");
        let to: *mut u8 = with_exposed_provenance_mut(self.start);
        // SAFETY: as in `read`.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

fn layout(num_bytes: usize) -> Layout {
    Layout::from_size_align(num_bytes.max(1), ALIGNMENT).expect("sizes are sane")
}

fn lock() -> MutexGuard<'static, BTreeMap<usize, Allocation>> {
    ALLOCATIONS.lock().unwrap_or_else(PoisonError::into_inner)
}
