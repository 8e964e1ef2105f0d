//! Faults, and what tests may look at: `testdouble_*`, which the real libraries do not have.

use crate::device::{Device, lock};
use std::{
    collections::HashMap,
    ffi::{CStr, c_char},
    sync::{LazyLock, Mutex, atomic::Ordering},
    time::Duration,
};

static FAULTS: LazyLock<Mutex<HashMap<i32, Faults>>> = LazyLock::new(Mutex::default);

/// What goes wrong on a device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// The number behind `EI` with which an all-to-all is refused; 0 for not at all.
    pub(crate) all_to_all: u32,
    /// What its communicators notice by themselves; 0 for nothing.
    pub(crate) noticed: i32,
    /// Whether it never opens.
    pub(crate) never_opens: bool,
    /// Whether initialization never comes to an end.
    pub(crate) never_starts: bool,
    /// Whether its streams never get to a collective.
    pub(crate) is_stalled: bool,
    /// How long its streams wait for other ranks.
    pub(crate) patience: Option<Duration>,
    pub(crate) is_out_of_memory: bool,
}

/// What goes wrong on a device now.
pub(crate) fn of(device: i32) -> Faults {
    lock(&FAULTS).get(&device).copied().unwrap_or_default()
}

fn change(device: i32, change: impl FnOnce(&mut Faults)) {
    change(lock(&FAULTS).entry(device).or_default());
}

#[unsafe(no_mangle)]
extern "C" fn testdouble_refuse_all_to_all(device: i32, number: u32) {
    change(device, |faults| faults.all_to_all = number);
}

#[unsafe(no_mangle)]
extern "C" fn testdouble_notice(device: i32, status: i32) {
    change(device, |faults| faults.noticed = status);
}

#[unsafe(no_mangle)]
extern "C" fn testdouble_never_open(device: i32) {
    change(device, |faults| faults.never_opens = true);
}

#[unsafe(no_mangle)]
extern "C" fn testdouble_never_start(device: i32) {
    change(device, |faults| faults.never_starts = true);
}

#[unsafe(no_mangle)]
extern "C" fn testdouble_stall(device: i32) {
    change(device, |faults| faults.is_stalled = true);
}

#[unsafe(no_mangle)]
extern "C" fn testdouble_lose_patience(device: i32, millis: u64) {
    change(device, |faults| faults.patience = Some(Duration::from_millis(millis)));
}

#[unsafe(no_mangle)]
extern "C" fn testdouble_run_out_of_memory(device: i32) {
    change(device, |faults| faults.is_out_of_memory = true);
}

/// How often a function of HCCL was called on a device.
///
/// # Safety
/// `call` ends in a zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn testdouble_num_calls(device: i32, call: *const c_char) -> u64 {
    // SAFETY: the caller promises a string.
    let call = unsafe { CStr::from_ptr(call) };
    Device::numbered(device).num_calls(&call.to_string_lossy())
}

/// How many communicators, streams and pieces of memory a device has.
#[unsafe(no_mangle)]
extern "C" fn testdouble_num_live(device: i32) -> i64 {
    Device::numbered(device).num_live.load(Ordering::Acquire)
}

/// The collectives that were issued on a device, in order: a number for each, alike on all ranks.
/// Fills at most `capacity` of them and returns how many there are.
///
/// # Safety
/// There is room for `capacity` numbers.
#[unsafe(no_mangle)]
unsafe extern "C" fn testdouble_issued(device: i32, room: *mut u64, capacity: usize) -> usize {
    let device = Device::numbered(device);
    let issued = lock(&device.issued);
    let count = issued.len().min(capacity);
    // SAFETY: the caller promises the room.
    unsafe { room.copy_from_nonoverlapping(issued.as_ptr(), count) };
    issued.len()
}
