//! One rank's communicator: what is in progress on it, and how that gets on.

use crate::{
    clique::Clique,
    memory::Span,
    operation::Operation,
    stream::{Stream, Task},
};
use std::{
    collections::HashMap,
    ffi::{CString, c_int, c_void},
    mem,
    ptr::with_exposed_provenance_mut,
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

pub(crate) type Status = c_int;

pub(crate) const SUCCESS: Status = 0;
pub(crate) const UNHANDLED_CUDA_ERROR: Status = 1;
pub(crate) const INVALID_ARGUMENT: Status = 4;
pub(crate) const INVALID_USAGE: Status = 5;
pub(crate) const REMOTE_ERROR: Status = 6;
pub(crate) const IN_PROGRESS: Status = 7;

/// How often a call is found in progress, at least.
const NUM_LOOKS: u32 = 3;

/// Living communicators, by handle.
static COMMS: LazyLock<Mutex<HashMap<usize, Arc<Comm>>>> = LazyLock::new(Mutex::default);
static NUM_COMMS: AtomicUsize = AtomicUsize::new(0);

/// The last complaint.
static COMPLAINT: AtomicPtr<std::ffi::c_char> = AtomicPtr::new(std::ptr::null_mut());

#[derive(Debug)]
pub(crate) struct Comm {
    pub(crate) clique: Arc<Clique>,
    pub(crate) rank: usize,
    pub(crate) device: i32,
    state: Mutex<State>,
    is_aborted: AtomicBool,
    /// What streams are at.
    num_running: AtomicUsize,
}

#[derive(Debug)]
struct State {
    pending: Option<Pending>,
    looks_left: u32,
    error: Status,
    num_operations: u64,
    num_splits: u64,
}

/// What a call has left to do.
pub(crate) enum Pending {
    /// Waits for the other ranks.
    Init,
    /// Puts something on a stream.
    Launch(Vec<(Stream, Task)>),
    /// Waits for the other ranks' choices, then writes the new handle to this address.
    Split { number: u64, slot: usize },
    /// Waits for the other ranks to be done with it, too.
    Finalize,
    /// Comes to nothing.
    Fail(Status),
}

/// One message each way is all that dmuon sends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Message {
    Send { to: usize, bytes: Span },
    Receive { from: usize, bytes: Span },
}

/// Notes a complaint, as the reason of a status.
pub(crate) fn complain(status: Status, text: &str) -> Status {
    let text = CString::new(text).unwrap_or_default();
    COMPLAINT.store(text.into_raw(), Ordering::Release);
    status
}

/// The last complaint, or null.
pub(crate) fn complaint() -> *const std::ffi::c_char {
    COMPLAINT.load(Ordering::Acquire)
}

impl Comm {
    /// A new communicator with something to do, and its handle.
    pub(crate) fn register(
        (clique, rank): (Arc<Clique>, usize),
        device: i32,
        pending: Option<Pending>,
    ) -> *mut c_void {
        let looks_left = if pending.is_some() { NUM_LOOKS } else { 0 };
        let (error, num_operations, num_splits) = (SUCCESS, 0, 0);
        let state = State { pending, looks_left, error, num_operations, num_splits };
        let comm = Self {
            clique,
            rank,
            device,
            state: Mutex::new(state),
            is_aborted: AtomicBool::new(false),
            num_running: AtomicUsize::new(0),
        };
        let handle = NUM_COMMS.fetch_add(1, Ordering::Relaxed) + 1;
        comms().insert(handle, Arc::new(comm));
        with_exposed_provenance_mut(handle)
    }

    /// The communicator of a handle.
    pub(crate) fn find(handle: *mut c_void) -> Result<Arc<Self>, Status> {
        let found = comms().get(&handle.expose_provenance()).cloned();
        found.ok_or_else(|| complain(INVALID_ARGUMENT, "no such communicator"))
    }

    /// Forgets it.
    pub(crate) fn remove(handle: *mut c_void) {
        comms().remove(&handle.expose_provenance());
    }

    /// Begins what a call has to do, if it is the call's turn.
    pub(crate) fn begin(&self, pending: impl FnOnce(&Self) -> Pending) -> Status {
        let mut state = self.lock();
        if state.error != SUCCESS {
            return state.error;
        }
        if state.pending.is_some() {
            let text = "Attempt to use communicator before the previous operation was done";
            return complain(INVALID_ARGUMENT, text);
        }
        (state.pending, state.looks_left) = (Some(pending(self)), NUM_LOOKS);
        IN_PROGRESS
    }

    /// Gets on, and tells how it is.
    pub(crate) fn look(&self) -> Status {
        let mut state = self.lock();
        if state.error != SUCCESS || state.pending.is_none() {
            return state.error;
        }
        if state.looks_left > 0 {
            state.looks_left -= 1;
            return IN_PROGRESS;
        }
        let Some(pending) = state.pending.take() else { return SUCCESS };
        match self.finish(pending) {
            Ok(()) => SUCCESS,
            Err(Pending::Fail(error)) => {
                state.error = error;
                error
            }
            Err(pending) => {
                state.pending = Some(pending);
                IN_PROGRESS
            }
        }
    }

    /// Does what is to be done, or gives it back for later.
    fn finish(&self, pending: Pending) -> Result<(), Pending> {
        match pending {
            Pending::Init if self.clique.is_complete() => Ok(()),
            Pending::Finalize if self.clique.is_finalized() => Ok(()),
            Pending::Launch(tasks) => {
                tasks.into_iter().for_each(|(stream, task)| stream.push(task));
                Ok(())
            }
            Pending::Split { number, slot } => match self.clique.child(number, self.rank) {
                Some(child) => {
                    let handle = Self::register(child, self.device, None);
                    let slot: *mut *mut c_void = with_exposed_provenance_mut(slot);
                    // SAFETY: the caller keeps the place until the split is done.
                    unsafe { slot.write(handle) };
                    Ok(())
                }
                None => Err(Pending::Split { number, slot }),
            },
            other => Err(other),
        }
    }

    /// Makes its choice in the next split.
    pub(crate) fn choose(&self, choice: [i32; 2], number: u64) {
        self.clique.choose(number, self.rank, choice);
    }

    /// The collective as something to put on a stream.
    pub(crate) fn task(self: &Arc<Self>, number: u64, operation: Operation) -> Task {
        let comm = self.clone();
        Box::new(move || {
            comm.num_running.fetch_add(1, Ordering::AcqRel);
            let given_up = || comm.is_aborted.load(Ordering::Acquire);
            comm.clique.collective((number, comm.rank), operation, given_up);
            comm.num_running.fetch_sub(1, Ordering::AcqRel);
        })
    }

    /// Messages that go at once, as something to put on a stream.
    pub(crate) fn exchange(self: &Arc<Self>, messages: Vec<Message>) -> Task {
        let comm = self.clone();
        Box::new(move || {
            comm.num_running.fetch_add(1, Ordering::AcqRel);
            for message in &messages {
                if let Message::Send { to, bytes } = *message {
                    comm.clique.send(comm.rank, to, bytes.read());
                }
            }
            let given_up = || comm.is_aborted.load(Ordering::Acquire);
            for message in &messages {
                if let Message::Receive { from, bytes } = *message
                    && let Some(found) = comm.clique.receive(from, comm.rank, given_up)
                {
                    bytes.write(&found);
                }
            }
            comm.num_running.fetch_sub(1, Ordering::AcqRel);
        })
    }

    /// The number of the next collective, and of the next split.
    pub(crate) fn count_operation(&self) -> u64 {
        count(&mut self.lock().num_operations)
    }

    pub(crate) fn count_split(&self) -> u64 {
        count(&mut self.lock().num_splits)
    }

    /// Lets everything on streams give up, and waits for what they are at: not for what is behind
    /// something else there.
    pub(crate) fn abort(&self) {
        self.is_aborted.store(true, Ordering::Release);
        self.lock().pending = None;
        while self.num_running.load(Ordering::Acquire) > 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pending")
    }
}

fn count(number: &mut u64) -> u64 {
    mem::replace(number, *number + 1)
}

fn comms() -> MutexGuard<'static, HashMap<usize, Arc<Comm>>> {
    COMMS.lock().unwrap_or_else(PoisonError::into_inner)
}
