//! Devices, and which one a thread has entered.

use crate::{
    Status,
    acl_status::{CONTEXT_NULL, INVALID_DEVICE},
    hccl_status::INTERNAL,
    messages::fail,
};
use std::{
    cell::Cell,
    collections::HashMap,
    ffi::c_void,
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
};

/// How many devices there seem to be.
pub(crate) const NUM_DEVICES: i32 = 1 << 16;

static DEVICES: LazyLock<Mutex<HashMap<i32, Arc<Device>>>> = LazyLock::new(Mutex::default);

thread_local! {
    /// The device this thread has entered, if any.
    static CURRENT: Cell<Option<i32>> = const { Cell::new(None) };
}

/// A device.
#[derive(Debug, Default)]
pub(crate) struct Device {
    pub(crate) id: i32,
    /// Whether a thread is inside HCCL.
    is_busy: AtomicBool,
    /// Communicators, streams and pieces of memory that were made and not given back.
    pub(crate) num_live: AtomicI64,
    /// How often each function was called.
    calls: Mutex<HashMap<&'static str, u64>>,
    /// Collectives in the order in which they were issued: their group, and which of its calls.
    pub(crate) issued: Mutex<Vec<u64>>,
}

/// A thread's stay inside HCCL.
#[derive(Debug)]
pub(crate) struct Stay(Arc<Device>);

impl Device {
    /// The device with this number.
    pub(crate) fn numbered(id: i32) -> Arc<Self> {
        let new = || Arc::new(Self { id, ..Self::default() });
        lock(&DEVICES).entry(id).or_insert_with(new).clone()
    }

    /// The device this thread has entered.
    pub(crate) fn current() -> Result<Arc<Self>, Status> {
        let id = CURRENT.get();
        id.map(Self::numbered)
            .ok_or_else(|| fail(CONTEXT_NULL, "EE1001: this thread has not entered a device"))
    }

    /// Counts a call.
    pub(crate) fn count(&self, call: &'static str) {
        *lock(&self.calls).entry(call).or_default() += 1;
    }

    pub(crate) fn num_calls(&self, call: &str) -> u64 {
        lock(&self.calls).get(call).copied().unwrap_or_default()
    }

    /// Enters HCCL, which takes one thread at a time.
    pub(crate) fn enter_hccl(self: Arc<Self>) -> Result<Stay, Status> {
        if self.is_busy.swap(true, Ordering::AcqRel) {
            return Err(fail(INTERNAL, "EI9999: two threads are in HCCL at once"));
        }
        Ok(Stay(self))
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        self.0.is_busy.store(false, Ordering::Release);
    }
}

/// Whatever is in there is whole at every step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets the current thread enter a device; a context is its number, plus one.
pub(crate) fn set_current(id: i32) -> Status {
    if !(0..NUM_DEVICES).contains(&id) {
        return fail(INVALID_DEVICE, format!("EE1001: there is no device {id}"));
    }
    CURRENT.set(Some(id));
    crate::SUCCESS
}

/// The current thread's context; null if there is none.
pub(crate) fn current_context() -> *mut c_void {
    let number = CURRENT.get().map_or(0, |id| id as usize + 1);
    std::ptr::without_provenance_mut(number)
}
