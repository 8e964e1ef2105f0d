//! Streams: threads that do one thing after the other, until one fails or they are stopped.

use crate::{
    SUCCESS, Status,
    acl_status::{PARAM_INVALID, STREAM_CONTEXT, STREAM_SYNC_TIMEOUT},
    device::{Device, lock},
    messages::fail,
};
use std::{
    ffi::{c_int, c_void},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

const COMPLETE: c_int = 0;
const NOT_READY: c_int = 1;

/// What a stream does: nothing, or why it fails.
pub(crate) type Task = Box<dyn FnOnce(&Progress) -> Result<(), (Status, String)> + Send>;

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) device: Arc<Device>,
    tasks: mpsc::Sender<Task>,
    progress: Arc<Progress>,
}

/// How far a stream is.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    state: Mutex<State>,
    changed: Condvar,
    is_stopped: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    num_left: usize,
    failure: Option<(Status, String)>,
}

impl Stream {
    /// The stream behind a handle, if it is one of the device this thread has entered.
    ///
    /// # Safety
    /// The handle is null, or of a stream that is not destroyed.
    pub(crate) unsafe fn behind<'a>(handle: *mut c_void) -> Result<&'a Self, Status> {
        // SAFETY: the caller promises it.
        let stream = unsafe { handle.cast::<Self>().as_ref() };
        let stream = stream.ok_or_else(|| fail(PARAM_INVALID, "EE1001: no such stream"))?;
        if Device::current()?.id != stream.device.id {
            return Err(fail(STREAM_CONTEXT, "EE1001: the stream is of another context"));
        }
        Ok(stream)
    }

    /// Puts a task at the end.
    pub(crate) fn enqueue(&self, task: Task) {
        lock(&self.progress.state).num_left += 1;
        self.tasks.send(task).expect("the thread lives as long as the stream");
    }

    fn new(device: Arc<Device>) -> Self {
        let (tasks, queue) = mpsc::channel::<Task>();
        let progress = Arc::<Progress>::default();
        let own = progress.clone();
        thread::spawn(move || queue.into_iter().for_each(|task| own.run(task)));
        Self { device, tasks, progress }
    }
}

impl Progress {
    /// Whether the stream was told to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    fn run(&self, task: Task) {
        let failed = lock(&self.state).failure.is_some();
        let outcome = if failed || self.is_stopped() { Ok(()) } else { task(self) };
        let mut state = lock(&self.state);
        state.num_left -= 1;
        if let Err(failure) = outcome {
            state.failure.get_or_insert(failure);
        }
        self.changed.notify_all();
    }

    /// How the stream ended, once nothing is left on it.
    fn end(&self, millis: i32) -> Status {
        let state = lock(&self.state);
        let patience = Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX));
        let waited = self.changed.wait_timeout_while(state, patience, |state| state.num_left > 0);
        let (state, late) = waited.unwrap_or_else(PoisonError::into_inner);
        match &state.failure {
            _ if late.timed_out() => fail(STREAM_SYNC_TIMEOUT, "EE1002: stream timed out"),
            Some((status, text)) => fail(*status, text),
            None => SUCCESS,
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn aclrtCreateStream(stream: *mut *mut c_void) -> Status {
    let device = match Device::current() {
        Ok(device) => device,
        Err(status) => return status,
    };
    device.num_live.fetch_add(1, Ordering::AcqRel);
    // SAFETY: the caller hands out a handle to fill.
    unsafe { *stream = Box::into_raw(Box::new(Stream::new(device))).cast() };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn aclrtDestroyStream(handle: *mut c_void) -> Status {
    // SAFETY: the caller promises a live stream.
    match unsafe { Stream::behind(handle) } {
        Ok(stream) => stream.device.num_live.fetch_sub(1, Ordering::AcqRel),
        Err(status) => return status,
    };
    // SAFETY: it came from a box, and is given back once.
    drop(unsafe { Box::from_raw(handle.cast::<Stream>()) });
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn aclrtStreamQuery(handle: *mut c_void, status: *mut c_int) -> Status {
    // SAFETY: the caller promises a live stream.
    let stream = match unsafe { Stream::behind(handle) } {
        Ok(stream) => stream,
        Err(status) => return status,
    };
    let num_left = lock(&stream.progress.state).num_left;
    // SAFETY: the caller hands out a number to fill.
    unsafe { *status = if num_left == 0 { COMPLETE } else { NOT_READY } };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn aclrtSynchronizeStreamWithTimeout(handle: *mut c_void, millis: i32) -> Status {
    // SAFETY: the caller promises a live stream.
    match unsafe { Stream::behind(handle) } {
        Ok(stream) => stream.progress.end(millis),
        Err(status) => status,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn aclrtStreamAbort(handle: *mut c_void) -> Status {
    // SAFETY: the caller promises a live stream.
    match unsafe { Stream::behind(handle) } {
        Ok(stream) => stream.progress.is_stopped.store(true, Ordering::Release),
        Err(status) => return status,
    }
    SUCCESS
}
