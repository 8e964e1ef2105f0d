//! AscendCL: starting, devices and contexts.

use crate::{
    SUCCESS, Status,
    acl_status::{CONTEXT_NULL, PARAM_INVALID, REPEAT_INITIALIZE},
    device::{NUM_DEVICES, current_context, set_current},
    faults,
    messages::fail,
};
use std::{
    ffi::{c_char, c_void},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

static IS_INITIALIZED: AtomicBool = AtomicBool::new(false);

/// Threads that are opening a device.
static NUM_OPENING: AtomicUsize = AtomicUsize::new(0);

#[unsafe(no_mangle)]
extern "C" fn aclInit(_config: *const c_char) -> Status {
    if IS_INITIALIZED.swap(true, Ordering::AcqRel) {
        return fail(REPEAT_INITIALIZE, "EH0001: initialized already");
    }
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn aclFinalize() -> Status {
    // Nobody reads a status at exit; a panic ends the process, as it cannot leave C's function.
    let num_opening = NUM_OPENING.load(Ordering::Acquire);
    assert_eq!(num_opening, 0, "AscendCL is finalized while a thread opens a device");
    IS_INITIALIZED.store(false, Ordering::Release);
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn aclrtGetDeviceCount(count: *mut u32) -> Status {
    // SAFETY: the caller hands out a number to fill.
    unsafe { *count = NUM_DEVICES as u32 };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn aclrtSetDevice(device: i32) -> Status {
    if !IS_INITIALIZED.load(Ordering::Acquire) {
        return fail(PARAM_INVALID, "EH0002: not initialized");
    }
    NUM_OPENING.fetch_add(1, Ordering::AcqRel);
    while faults::of(device).never_opens {
        thread::sleep(Duration::from_millis(10));
    }
    NUM_OPENING.fetch_sub(1, Ordering::AcqRel);
    set_current(device)
}

#[unsafe(no_mangle)]
extern "C" fn aclrtResetDevice(_device: i32) -> Status {
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn aclrtGetCurrentContext(context: *mut *mut c_void) -> Status {
    let current = current_context();
    if current.is_null() {
        return fail(CONTEXT_NULL, "EE1001: this thread has not entered a device");
    }
    // SAFETY: the caller hands out a handle to fill.
    unsafe { *context = current };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn aclrtSetCurrentContext(context: *mut c_void) -> Status {
    match context.addr() {
        0 => fail(CONTEXT_NULL, "EE1001: there is no such context"),
        number => set_current((number - 1) as i32),
    }
}
