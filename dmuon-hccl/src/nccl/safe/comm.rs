//! A communicator: forming it, asking how it is, ending it.

use super::{Device, Library, UniqueId};
use crate::{
    LibraryError,
    nccl::sys::{self, Table},
};
use std::{
    ffi::c_int,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// How long ranks may take to end a communicator together, when they are all done with it.
const FINALIZE_TIME: Duration = Duration::from_secs(5);

/// Between two looks at a communicator that ends.
const PAUSE: Duration = Duration::from_millis(1);

/// A communicator that does not block. One call at a time: each puts it to work, and the next one
/// is allowed when it is [idle](Self::is_idle) again.
#[derive(Debug)]
pub(in crate::nccl) struct Comm {
    pub(super) library: Library,
    pub(super) device: Device,
    pub(super) handle: Handle,
    rank: usize,
    size: usize,
}

/// The library's own communicator, [`NULL`](sys::Comm::NULL) once it is ended.
#[derive(Clone, Debug)]
pub(super) struct Handle(Arc<Mutex<sys::Comm>>);

impl Comm {
    /// Starts joining the `size` ranks of the world that `id` names.
    ///
    /// # Collective
    /// Every rank, each with a rank of its own.
    pub(in crate::nccl) fn init(
        library: &Library,
        device: &Device,
        id: UniqueId,
        (rank, size): (usize, usize),
    ) -> Result<Self, LibraryError> {
        device.bind()?;
        let (mut handle, mut config) = (sys::Comm::NULL, sys::Config::NONBLOCKING);
        let init = library.table.ncclCommInitRankConfig;
        // SAFETY: the handle is ours to fill, which happens before the call returns; the
        // configuration, which is read meanwhile, has the layout that it claims.
        let status = unsafe { init(&mut handle, int(size), id.0, int(rank), &mut config) };
        let comm = Self::adopt(library, device, handle, (rank, size));
        match library.table.check("ncclCommInitRankConfig", status) {
            Ok(()) => Ok(comm),
            Err(error) => {
                comm.abort();
                Err(error)
            }
        }
    }

    /// Takes over a communicator of the library's.
    pub(super) fn adopt(
        library: &Library,
        device: &Device,
        handle: sys::Comm,
        (rank, size): (usize, usize),
    ) -> Self {
        let (library, device) = (library.clone(), device.clone());
        Self { library, device, handle: Handle(Arc::new(Mutex::new(handle))), rank, size }
    }

    /// This rank in the communicator.
    pub(in crate::nccl) fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks it has.
    pub(in crate::nccl) fn size(&self) -> usize {
        self.size
    }

    /// The device that it is on.
    pub(in crate::nccl) fn device(&self) -> &Device {
        &self.device
    }

    /// Whether the last call's work is done: the ranks are connected, or the collective is on the
    /// stream.
    ///
    /// # Errors
    /// What went wrong since, here or on another rank.
    pub(in crate::nccl) fn is_idle(&self) -> Result<bool, LibraryError> {
        self.handle.is_idle(&self.library.table)
    }

    /// Ends it at once, whatever is under way; collectives on the stream give up. May take long.
    pub(in crate::nccl) fn abort(self) {
        let handle = self.handle.take();
        if handle == sys::Comm::NULL {
            return;
        }
        if let Err(error) = self.device.bind() {
            tracing::debug!(%error, "a communicator is aborted without its device");
        }
        // SAFETY: the handle is alive, as it was taken away from everybody just now.
        let status = unsafe { (self.library.table.ncclCommAbort)(handle) };
        self.note("ncclCommAbort", status);
    }

    /// Ends it in good order.
    ///
    /// # Collective
    /// Every rank. If others do not come in time, it is not freed.
    pub(in crate::nccl) fn destroy(self) {
        if let Err(error) = self.device.bind().and_then(|()| self.finalize()) {
            tracing::warn!(%error, "a communicator is not freed");
            return;
        }
        let handle = self.handle.take();
        // SAFETY: the handle is alive, as it was taken away from everybody just now.
        let status = unsafe { (self.library.table.ncclCommDestroy)(handle) };
        self.note("ncclCommDestroy", status);
    }

    /// Waits until every rank has no more use for it.
    fn finalize(&self) -> Result<(), LibraryError> {
        let finalize = self.library.table.ncclCommFinalize;
        // SAFETY: the handle is alive while it is locked.
        let body = |handle| unsafe { finalize(handle) };
        self.handle.call(&self.library.table, "ncclCommFinalize", body)?;
        let since = Instant::now();
        while !self.is_idle()? {
            if since.elapsed() > FINALIZE_TIME {
                let (code, text) = (sys::IN_PROGRESS.into(), "other ranks still use it".into());
                return Err(LibraryError { call: "ncclCommFinalize", code, text });
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Nothing can be done about an end that fails.
    fn note(&self, call: &'static str, status: sys::Status) {
        if let Err(error) = self.library.table.check(call, status) {
            tracing::debug!(%error, "a communicator did not end well");
        }
    }
}

impl Handle {
    /// Whether nothing is in progress.
    pub(super) fn is_idle(&self, table: &Table) -> Result<bool, LibraryError> {
        let mut state = sys::SUCCESS;
        let ask = table.ncclCommGetAsyncError;
        // SAFETY: the handle is alive while it is locked, and the state is ours to fill.
        self.call(table, "ncclCommGetAsyncError", |handle| unsafe { ask(handle, &mut state) })?;
        table.check("ncclCommGetAsyncError", state)?;
        Ok(state == sys::SUCCESS)
    }

    /// Calls the library with the communicator, which nobody else uses or ends meanwhile.
    ///
    /// # Errors
    /// What the library says, or that the communicator has ended.
    pub(super) fn call(
        &self,
        table: &Table,
        name: &'static str,
        body: impl FnOnce(sys::Comm) -> sys::Status,
    ) -> Result<(), LibraryError> {
        let handle = self.lock();
        if *handle == sys::Comm::NULL {
            let text = "the communicator has been ended here".into();
            return Err(LibraryError { call: name, code: 0, text });
        }
        table.check(name, body(*handle))
    }

    /// Takes it away from everybody.
    fn take(&self) -> sys::Comm {
        std::mem::replace(&mut *self.lock(), sys::Comm::NULL)
    }

    /// A handle or null, so a panic elsewhere does no harm.
    fn lock(&self) -> MutexGuard<'_, sys::Comm> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A rank, color or key as the library takes it; there are never two billion of them.
pub(super) fn int(number: usize) -> c_int {
    c_int::try_from(number).expect("ranks, colors and keys are small")
}
