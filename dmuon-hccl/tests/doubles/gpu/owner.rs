//! For tests, which the real libraries do not have: what somebody else in the process does with a
//! device, such as a backend with its tensors.

use crate::{
    journal,
    memory::{self, Span},
    stream::Stream,
};
use std::{
    collections::HashSet,
    ffi::c_void,
    sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError},
};

/// Devices whose owner's work does not get on.
static HELD: LazyLock<Mutex<HashSet<i32>>> = LazyLock::new(Mutex::default);
static CHANGED: Condvar = Condvar::new();

/// Some bytes of a device, all zero.
#[unsafe(no_mangle)]
extern "C" fn testdouble_allocate(device: i32, num_bytes: usize) -> u64 {
    memory::allocate(num_bytes, device) as u64
}

/// Frees them, whatever may still use them.
#[unsafe(no_mangle)]
extern "C" fn testdouble_free(device: i32, start: u64) {
    journal::note_on(device, "testdouble_free");
    assert!(memory::free(start as usize), "a test frees what it has allocated");
}

/// Copies bytes from the host to a device, or back, at once.
///
/// # Safety
/// Both have so many bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn testdouble_copy(to: *mut c_void, from: *const c_void, num_bytes: usize) {
    let bytes = Span { start: from.expose_provenance(), num_bytes }.read();
    Span { start: to.expose_provenance(), num_bytes }.write(&bytes);
}

/// Puts work on a stream of the device's own that sets bytes.
#[unsafe(no_mangle)]
extern "C" fn testdouble_set(device: i32, start: u64, byte: u8, num_bytes: usize) {
    let stream = Stream::of(device);
    stream.push(move || {
        let waited = CHANGED.wait_while(held(), |held| held.contains(&device));
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        Span { start: start as usize, num_bytes }.write(&vec![byte; num_bytes]);
    });
    stream.end();
}

/// Lets such work wait until it is released.
#[unsafe(no_mangle)]
extern "C" fn testdouble_hold(device: i32) {
    held().insert(device);
}

#[unsafe(no_mangle)]
extern "C" fn testdouble_release(device: i32) {
    held().remove(&device);
    CHANGED.notify_all();
}

fn held() -> MutexGuard<'static, HashSet<i32>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}
