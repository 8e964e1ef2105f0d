//! The driver's functions.

use crate::{
    journal, live,
    memory::{self, Span},
    settings::{self, Fault},
    stream::{self, Event, Stream},
};
use std::{
    cell::Cell,
    ffi::{c_char, c_int, c_uint, c_void},
    ptr::with_exposed_provenance_mut,
};

type Status = c_int;

const SUCCESS: Status = 0;
const INVALID_VALUE: Status = 1;
const NO_DEVICE: Status = 100;
const INVALID_DEVICE: Status = 101;
const INVALID_CONTEXT: Status = 201;
const NOT_READY: Status = 600;
const CAPTURE_UNSUPPORTED: Status = 900;

thread_local! {
    /// The calling thread's context: 0 for none, else one more than its device.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The calling thread's device, −1 without a context.
pub(crate) fn current_device() -> i32 {
    CURRENT.get() as i32 - 1
}

/// The stream that a handle stands for.
///
/// # Safety
/// The handle comes from [`cuStreamCreate`] and is not destroyed.
pub(crate) unsafe fn stream(handle: *mut c_void) -> Stream {
    // SAFETY: the caller promises a living stream.
    unsafe { &*handle.cast::<Stream>() }.clone()
}

/// Fills an output of the caller's.
fn fill<T>(place: *mut T, value: T) -> Status {
    // SAFETY: every caller passes a place to fill, as the driver asks for.
    unsafe { place.write(value) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: c_uint) -> Status {
    if settings::num_devices() == 0 { NO_DEVICE } else { SUCCESS }
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Status {
    fill(count, settings::num_devices())
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> Status {
    if (0..settings::num_devices()).contains(&ordinal) {
        fill(device, ordinal)
    } else {
        INVALID_DEVICE
    }
}

/// Every device can do everything that is asked for.
#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    _attribute: c_uint,
    _device: c_int,
) -> Status {
    fill(value, 1)
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) -> Status {
    fill(context, with_exposed_provenance_mut(device as usize + 1))
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> Status {
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(context: *mut *mut c_void) -> Status {
    fill(context, with_exposed_provenance_mut(CURRENT.get()))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: *mut c_void) -> Status {
    CURRENT.set(context.expose_provenance());
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(handle: *mut *mut c_void, _flags: c_uint) -> Status {
    live::make();
    fill(handle, Box::into_raw(Box::new(Stream::of(current_device()))).cast())
}

/// Of all that comes to the stream later, the first waits for what was recorded last.
#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(handle: *mut c_void, event: *mut c_void, _flags: c_uint) -> Status {
    journal::note("cuStreamWaitEvent");
    // SAFETY: the caller's event is alive.
    let mark = unsafe { &*event.cast::<Event>() }.mark();
    // SAFETY: the caller's stream is alive.
    unsafe { stream(handle) }.push(move || mark.wait());
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(handle: *mut c_void) -> Status {
    // SAFETY: the caller's stream is alive.
    unsafe { stream(handle) }.synchronize();
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(handle: *mut c_void) -> Status {
    // SAFETY: from `cuStreamCreate`, and the caller has no more use for it.
    unsafe { Box::from_raw(handle.cast::<Stream>()) }.end();
    live::give_back();
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(handle: *mut *mut c_void, _flags: c_uint) -> Status {
    live::make();
    fill(handle, Box::into_raw(Box::new(Event::default())).cast())
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: *mut c_void, handle: *mut c_void) -> Status {
    journal::note("cuEventRecord");
    // SAFETY: the caller's event is alive.
    let event = unsafe { &*event.cast::<Event>() };
    // SAFETY: the caller's stream is alive.
    event.record(&[unsafe { stream(handle) }]);
    SUCCESS
}

/// Records what is on any stream of the context.
#[unsafe(no_mangle)]
extern "C" fn cuCtxRecordEvent(context: *mut c_void, event: *mut c_void) -> Status {
    let device = context.expose_provenance() as i32 - 1;
    journal::note_on(device, "cuCtxRecordEvent");
    if device == 1 && settings::fault() == Fault::Capture {
        return CAPTURE_UNSUPPORTED;
    }
    // SAFETY: the caller's event is alive.
    let event = unsafe { &*event.cast::<Event>() };
    event.record(&stream::all_of(device));
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: *mut c_void) -> Status {
    // SAFETY: the caller's event is alive.
    let event = unsafe { &*event.cast::<Event>() };
    if event.is_passed() { SUCCESS } else { NOT_READY }
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: *mut c_void) -> Status {
    // SAFETY: from `cuEventCreate`, and the caller has no more use for it.
    drop(unsafe { Box::from_raw(event.cast::<Event>()) });
    live::give_back();
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocAsync(start: *mut u64, num_bytes: usize, _stream: *mut c_void) -> Status {
    journal::note("cuMemAllocAsync");
    match current_device() {
        -1 => INVALID_CONTEXT,
        device => fill(start, memory::allocate(num_bytes, device) as u64),
    }
}

/// Frees when the stream gets there.
#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(start: u64, handle: *mut c_void) -> Status {
    // SAFETY: the caller's stream is alive.
    unsafe { stream(handle) }.push(move || {
        if !memory::free(start as usize) {
            live::abort("memory is freed that is not allocated");
        }
    });
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(
    start: u64,
    byte: u8,
    num_bytes: usize,
    handle: *mut c_void,
) -> Status {
    let span = Span { start: start as usize, num_bytes };
    if !span.is_on(current_device()) {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's stream is alive.
    unsafe { stream(handle) }.push(move || span.write(&vec![byte; span.num_bytes]));
    SUCCESS
}

/// Reads the host's memory as late as the real one may.
#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(
    start: u64,
    from: *const c_void,
    num_bytes: usize,
    handle: *mut c_void,
) -> Status {
    let span = Span { start: start as usize, num_bytes };
    if !span.is_on(current_device()) {
        return INVALID_VALUE;
    }
    let from = from.expose_provenance();
    let host = move || span.write(&Span { start: from, num_bytes }.read());
    // SAFETY: the caller's stream is alive.
    unsafe { stream(handle) }.push(host);
    SUCCESS
}

/// Waits for the stream, as the real one does for memory that is not pinned.
#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    start: u64,
    num_bytes: usize,
    handle: *mut c_void,
) -> Status {
    let span = Span { start: start as usize, num_bytes };
    if !span.is_on(current_device()) {
        return INVALID_VALUE;
    }
    journal::note("cuMemcpyDtoHAsync");
    // SAFETY: the caller's stream is alive.
    unsafe { stream(handle) }.synchronize();
    Span { start: to.expose_provenance(), num_bytes }.write(&span.read());
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(status: Status, text: *mut *const c_char) -> Status {
    let known = match status {
        SUCCESS => c"no error",
        NO_DEVICE => c"no CUDA-capable device is detected",
        INVALID_DEVICE => c"invalid device ordinal",
        INVALID_CONTEXT => c"invalid device context",
        NOT_READY => c"device not ready",
        CAPTURE_UNSUPPORTED => c"operation not permitted when stream is capturing",
        _ => c"invalid argument",
    };
    fill(text, known.as_ptr())
}
