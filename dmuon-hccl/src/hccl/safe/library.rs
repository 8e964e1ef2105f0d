//! The libraries: found, initialized once a process, finalized when it exits.

use crate::{
    EngineLoadError, LibraryError, dylib,
    hccl::{
        libraries::{ACL_VARIABLE, HCCL_VARIABLE, Libraries},
        result::Table,
        sys::{self, atexit},
    },
};
use libloading::os::unix::{Library as Dylib, RTLD_GLOBAL, RTLD_LAZY};
use std::{
    mem,
    path::PathBuf,
    ptr::null,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// AscendCL, once this process has initialized it through here.
static INITIALIZED: Mutex<Option<Library>> = Mutex::new(None);

/// Devices that are in use or being opened, and whether one was left in use by a failure.
static NUM_DEVICES: AtomicUsize = AtomicUsize::new(0);
static IS_ABANDONED: AtomicBool = AtomicBool::new(false);

/// How long the exit of a process waits for threads that are about to return their devices.
const RETURN_TIME: Duration = Duration::from_secs(2);

/// Both loaded libraries; clones share them. Never unloaded: their threads may still run at exit.
#[derive(Clone, Debug)]
pub(in crate::hccl) struct Library {
    pub(super) table: Arc<Table>,
}

impl Library {
    /// Finds, loads and initializes the libraries.
    ///
    /// # Errors
    /// One is not found or lacks a function, as [`EngineLoadError`], or does not start.
    pub(in crate::hccl) fn open<E>(libraries: &Libraries) -> Result<Self, E>
    where
        E: From<EngineLoadError> + From<LibraryError>,
    {
        let library = Self { table: Arc::new(load(libraries)?) };
        library.initialize()?;
        Ok(library)
    }

    /// Initializes AscendCL, unless somebody in this process has.
    fn initialize(&self) -> Result<(), LibraryError> {
        let mut initialized = lock();
        // SAFETY: null stands for no configuration file.
        let status = unsafe { (self.table.acl.aclInit)(null()) };
        if status == sys::REPEAT_INITIALIZE {
            self.table.recent_message();
            return Ok(());
        }
        self.table.check_acl("aclInit", status)?;
        *initialized = Some(self.clone());
        if atexit(finalize) != 0 {
            tracing::warn!("AscendCL will not be finalized: no room for an exit handler");
        }
        Ok(())
    }

    /// How many devices this process may use.
    pub(in crate::hccl) fn num_devices(&self) -> Result<usize, LibraryError> {
        let mut count = 0;
        // SAFETY: takes a number to fill.
        let status = unsafe { (self.table.acl.aclrtGetDeviceCount)(&mut count) };
        self.table.check_acl("aclrtGetDeviceCount", status)?;
        Ok(count as usize)
    }

    /// Counts a device that is about to be taken into use.
    pub(super) fn hold(&self) {
        NUM_DEVICES.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts a device that is returned in good order, or was not taken after all.
    pub(super) fn release(&self) {
        NUM_DEVICES.fetch_sub(1, Ordering::AcqRel);
    }

    /// Notes that a device will never be returned.
    pub(super) fn abandon(&self) {
        IS_ABANDONED.store(true, Ordering::Release);
    }
}

fn load(libraries: &Libraries) -> Result<Table, EngineLoadError> {
    let (acl, acl_path) = open("AscendCL", &libraries.acl, ACL_VARIABLE)?;
    // Only newer versions have it; its functions are missed if it is needed.
    let hcomm = open("HCCL", &libraries.hcomm, HCCL_VARIABLE).ok();
    let (hccl, hccl_path) = open("HCCL", &libraries.hccl, HCCL_VARIABLE)?;
    let missing = |engine, path: PathBuf, variable| {
        move |symbol| EngineLoadError::MissingSymbol { engine, path, symbol, variable }
    };
    let acl = [acl];
    let hccl: Vec<Dylib> = [hccl].into_iter().chain(hcomm.map(|(hcomm, _)| hcomm)).collect();
    // SAFETY: the names are CANN's, or the user's word for it; the libraries are forgotten below.
    let abort = unsafe { sys::StreamAbort::load(&acl) };
    // SAFETY: as above.
    let acl_table = unsafe { sys::Acl::load(&acl) };
    // SAFETY: as above.
    let hccl_table = unsafe { sys::Hccl::load(&hccl) };
    mem::forget((acl, hccl));
    Ok(Table {
        acl: acl_table.map_err(missing("AscendCL", acl_path, ACL_VARIABLE))?,
        hccl: hccl_table.map_err(missing("HCCL", hccl_path, HCCL_VARIABLE))?,
        abort: abort.ok(),
    })
}

fn open(
    engine: &'static str,
    candidates: &[PathBuf],
    variable: &'static str,
) -> Result<(Dylib, PathBuf), EngineLoadError> {
    // SAFETY: loading runs the library's initializers; a library with CANN's name, or one the user
    // has named, is trusted with that.
    let found = unsafe { dylib::open(candidates.to_vec(), RTLD_LAZY | RTLD_GLOBAL) };
    found.map_err(|tried| EngineLoadError::NotFound { engine, tried, variable })
}

/// Finalizes at exit, once all devices are returned; never if one was left in use, as that might not
/// end.
extern "C" fn finalize() {
    let start = Instant::now();
    while NUM_DEVICES.load(Ordering::Acquire) > 0 {
        if IS_ABANDONED.load(Ordering::Acquire) || start.elapsed() > RETURN_TIME {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    if let Some(library) = lock().take() {
        // SAFETY: no device is in use, and nothing of it is called afterwards.
        let status = unsafe { (library.table.acl.aclFinalize)() };
        if let Err(error) = library.table.check_acl("aclFinalize", status) {
            tracing::warn!(%error, "AscendCL did not finalize");
        }
    }
}

/// A library or none, so a panic elsewhere does no harm.
fn lock() -> MutexGuard<'static, Option<Library>> {
    INITIALIZED.lock().unwrap_or_else(PoisonError::into_inner)
}
