//! Memory of devices: allocations of this process that are looked up before they are touched.

use crate::{
    SUCCESS, Status,
    acl_status::{MEMORY_ALLOCATION, PARAM_INVALID},
    device::{Device, lock},
    faults,
    messages::fail,
};
use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    collections::BTreeMap,
    ffi::{c_int, c_void},
    sync::{Mutex, atomic::Ordering},
};

const ALIGNMENT: usize = 64;
const HOST_TO_DEVICE: c_int = 1;
const DEVICE_TO_HOST: c_int = 2;

/// Allocations by address: their sizes and devices.
static ALLOCATIONS: Mutex<BTreeMap<usize, (usize, i32)>> = Mutex::new(BTreeMap::new());

/// Whether `num_bytes` from `start` on are memory of a device.
pub(crate) fn is_of(device: i32, start: usize, num_bytes: usize) -> bool {
    let allocations = lock(&ALLOCATIONS);
    let found = allocations.range(..=start).next_back();
    found
        .is_some_and(|(first, (size, owner))| *owner == device && start + num_bytes <= first + size)
}

/// A copy of memory that [`is_of`] a device.
pub(crate) fn read(start: usize, num_bytes: usize) -> Vec<u8> {
    let mut bytes = vec![0; num_bytes];
    let source: *const u8 = std::ptr::with_exposed_provenance(start);
    // SAFETY: the range is allocated, and whoever issued the transfer leaves it alone.
    unsafe { source.copy_to_nonoverlapping(bytes.as_mut_ptr(), num_bytes) };
    bytes
}

/// Writes memory that [`is_of`] a device.
pub(crate) fn write(start: usize, bytes: &[u8]) {
    let target: *mut u8 = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: the range is allocated, and whoever issued the transfer leaves it alone.
    unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn aclrtMalloc(start: *mut *mut c_void, num_bytes: usize, _: c_int) -> Status {
    let device = match Device::current() {
        Ok(device) => device,
        Err(status) => return status,
    };
    if num_bytes == 0 {
        return fail(PARAM_INVALID, "EH0001: the size is zero");
    }
    if faults::of(device.id).is_out_of_memory {
        return fail(MEMORY_ALLOCATION, "EL0004: Failed to allocate memory.");
    }
    let layout = Layout::from_size_align(num_bytes, ALIGNMENT).expect("sizes are sane");
    // SAFETY: the size is not zero.
    let memory = unsafe { alloc_zeroed(layout) };
    lock(&ALLOCATIONS).insert(memory.expose_provenance(), (num_bytes, device.id));
    device.num_live.fetch_add(1, Ordering::AcqRel);
    // SAFETY: the caller hands out a pointer to fill.
    unsafe { *start = memory.cast() };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn aclrtFree(start: *mut c_void) -> Status {
    let Some((num_bytes, device)) = lock(&ALLOCATIONS).remove(&start.addr()) else {
        return fail(PARAM_INVALID, "EE1001: that was not allocated");
    };
    let layout = Layout::from_size_align(num_bytes, ALIGNMENT).expect("it was allocated so");
    // SAFETY: it was allocated so, and is forgotten.
    unsafe { dealloc(start.cast(), layout) };
    Device::numbered(device).num_live.fetch_sub(1, Ordering::AcqRel);
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn aclrtMemcpy(
    target: *mut c_void,
    room: usize,
    source: *const c_void,
    num_bytes: usize,
    kind: c_int,
) -> Status {
    let device = match Device::current() {
        Ok(device) => device,
        Err(status) => return status,
    };
    let on_device = match kind {
        HOST_TO_DEVICE => target.addr(),
        DEVICE_TO_HOST => source.addr(),
        _ => return fail(PARAM_INVALID, "EE1001: an unknown direction"),
    };
    if num_bytes == 0 || num_bytes > room || !is_of(device.id, on_device, num_bytes) {
        return fail(PARAM_INVALID, "EE1001: the range is not memory of this device");
    }
    // SAFETY: the range on the device was looked up; the caller answers for the other.
    unsafe { source.cast::<u8>().copy_to_nonoverlapping(target.cast(), num_bytes) };
    SUCCESS
}
