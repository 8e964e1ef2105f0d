//! This process's MPI: initialized once, on a thread of its own, and finalized when the process exits.
//!
//! MPI wants to be finalized by the thread that initialized it, and both may block for as long as
//! another process does not come; nobody else should hang because of that.

use super::{error::MpiJoinError, safe::Library, sys::atexit};
use crate::processes::Release;
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

/// How long the exit of a process waits for the others to finalize.
const FINALIZE_TIME: Duration = Duration::from_secs(10);

/// The one MPI of this process, once it is initialized.
static RUNTIME: Mutex<Option<Arc<Runtime>>> = Mutex::new(None);

/// A handle to the thread that owns MPI.
#[derive(Debug)]
pub(super) struct Runtime {
    jobs: mpsc::Sender<Job>,
    /// Whether a world is open, or was left open by a failure.
    is_busy: AtomicBool,
}

type Job = Box<dyn FnOnce(&Library) + Send>;

impl Runtime {
    /// This process's MPI, initialized on the first call.
    ///
    /// # Collective
    /// Every process.
    ///
    /// # Errors
    /// There is no library, it refuses, or another process does not come within `deadline`.
    pub(super) fn acquire(deadline: Duration) -> Result<Arc<Self>, MpiJoinError> {
        let mut slot = lock();
        let runtime = match &*slot {
            Some(runtime) => runtime.clone(),
            None => slot.insert(Arc::new(Self::initialize(deadline)?)).clone(),
        };
        if runtime.is_busy.swap(true, Ordering::AcqRel) {
            return Err(MpiJoinError::Busy);
        }
        Ok(runtime)
    }

    /// Runs `work` on the thread that owns MPI.
    ///
    /// # Errors
    /// It takes longer than `deadline`, since another process does not come.
    pub(super) fn run<T: Send + 'static>(
        &self,
        deadline: Duration,
        work: impl FnOnce(&Library) -> T + Send + 'static,
    ) -> Result<T, MpiJoinError> {
        let (sender, receiver) = mpsc::channel();
        let job: Job = Box::new(move |library| drop(sender.send(work(library))));
        let late = |_| MpiJoinError::Late { waited: deadline };
        self.jobs.send(job).map_err(|_| MpiJoinError::Busy)?;
        receiver.recv_timeout(deadline).map_err(late)
    }

    fn initialize(deadline: Duration) -> Result<Self, MpiJoinError> {
        let library = Library::open()?;
        if library.is_initialized()? {
            return Err(MpiJoinError::Initialized);
        }
        let (jobs, to_do) = mpsc::channel::<Job>();
        let body = move || to_do.into_iter().for_each(|job| job(&library));
        let thread = thread::Builder::new().name("dmuon-mpi".into()).spawn(body);
        thread.map_err(|source| MpiJoinError::Thread { source })?;
        let runtime = Self { jobs, is_busy: AtomicBool::new(false) };
        if !runtime.run(deadline, Library::initialize)?? {
            return Err(MpiJoinError::Threads);
        }
        if atexit(finalize) != 0 {
            tracing::warn!("MPI will not be finalized: no room for an exit handler");
        }
        Ok(runtime)
    }
}

impl Release for Runtime {
    /// Another world may be opened.
    fn release(&self) {
        self.is_busy.store(false, Ordering::Release);
    }

    /// Stays busy, so that it is not finalized.
    fn give_up(&self) {}
}

/// Finalizes at exit, unless a world was left open: then others may never come.
extern "C" fn finalize() {
    // Held while another thread starts MPI, which may take for ever.
    let runtime = RUNTIME.try_lock().ok().and_then(|mut slot| slot.take());
    let Some(runtime) = runtime else { return };
    if runtime.is_busy.load(Ordering::Acquire) {
        return;
    }
    let outcome = runtime.run(FINALIZE_TIME, |library| library.finalize());
    if let Ok(Err(error)) = outcome {
        tracing::warn!(%error, "MPI did not finalize");
    }
}

/// A whole runtime or none, so a panic elsewhere does no harm.
fn lock() -> MutexGuard<'static, Option<Arc<Runtime>>> {
    RUNTIME.lock().unwrap_or_else(PoisonError::into_inner)
}
