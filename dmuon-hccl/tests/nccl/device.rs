//! Devices of the double as a backend has them: memory that it lends, and work that it puts there.

use dmuon_core::{DeviceBuffer, World};
use libloading::Library;
use std::{
    env,
    ffi::c_void,
    ptr::with_exposed_provenance_mut,
    sync::{Arc, LazyLock},
    thread,
    time::{Duration, Instant},
};

/// Loaded once more, in the process of the ranks, beside the engine's own handle.
static DOUBLE: LazyLock<Library> = LazyLock::new(|| {
    let path = env::var_os("DMUON_NCCL_LIB").expect("ranks are told where the double is");
    // SAFETY: the double runs nothing when it is loaded.
    unsafe { Library::new(path) }.expect("it has been loaded")
});

functions! { of DOUBLE:
    /// How many pieces of memory, streams and events the doubles' devices have.
    fn num_live() -> usize = b"testdouble_num_live";
    /// Lets [`Memory::set`] of a device wait.
    fn hold(device: i32) = b"testdouble_hold";
    /// Ends that.
    fn release(device: i32) = b"testdouble_release";
    fn allocate(device: i32, num_bytes: usize) -> u64 = b"testdouble_allocate";
    fn free(device: i32, address: u64) = b"testdouble_free";
    fn copy(to: *mut c_void, from: *const c_void, num_bytes: usize) = b"testdouble_copy";
    fn set(device: i32, address: u64, byte: u8, num_bytes: usize) = b"testdouble_set";
}

/// Memory of a device; freed with the last handle, whoever has it.
#[derive(Debug)]
pub(crate) struct Memory {
    device: i32,
    address: u64,
    num_bytes: usize,
}

/// The device of a rank.
pub(crate) fn of(world: &World) -> i32 {
    world.rank().0 as i32
}

/// Waits for something that is sure to come.
pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < crate::suite::PATIENCE, "in vain: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

impl Memory {
    /// So many bytes, all zero.
    pub(crate) fn zeroed(device: i32, num_bytes: usize) -> Arc<Self> {
        Arc::new(Self { device, address: allocate(device, num_bytes), num_bytes })
    }

    pub(crate) fn of(device: i32, bytes: &[u8]) -> Arc<Self> {
        let memory = Self::zeroed(device, bytes.len());
        copy(memory.place(), bytes.as_ptr().cast(), bytes.len());
        memory
    }

    pub(crate) fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.num_bytes];
        copy(bytes.as_mut_ptr().cast(), self.place(), bytes.len());
        bytes
    }

    /// Puts work on the device that sets every byte.
    pub(crate) fn set(&self, byte: u8) {
        set(self.device, self.address, byte, self.num_bytes);
    }

    /// All of it, as a backend lends it.
    pub(crate) fn lend(self: &Arc<Self>) -> DeviceBuffer {
        // SAFETY: it is this device's until the last handle goes, and tests let it be meanwhile.
        unsafe { DeviceBuffer::new(self.address, self.num_bytes, self.clone()) }
    }

    fn place(&self) -> *mut c_void {
        with_exposed_provenance_mut(self.address as usize)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        free(self.device, self.address);
    }
}
