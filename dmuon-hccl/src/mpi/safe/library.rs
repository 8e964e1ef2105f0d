//! The library: found, checked, initialized, finalized.

use crate::{
    EngineLoadError, LibraryError, dylib,
    mpi::{
        result::c_text,
        sys::{self, Table},
    },
};
use libloading::os::unix::{Library as Dylib, RTLD_GLOBAL, RTLD_NOW};
use std::{
    env,
    ffi::{c_char, c_int},
    mem,
    path::PathBuf,
    ptr::null_mut,
    slice,
    sync::Arc,
};

/// Overrides the search.
const VARIABLE: &str = "DMUON_MPI_LIB";

/// Names of the standard ABI, as the dynamic loader finds them.
const NAMES: [&str; 2] = ["libmpi_abi.so.1", "libmpi_abi.so"];

/// A loaded MPI library; clones share it. Never unloaded: its threads may still run at exit.
#[derive(Clone, Debug)]
pub(in crate::mpi) struct Library {
    pub(super) table: Arc<Table>,
}

impl Library {
    /// Finds and loads a library of the standard ABI.
    ///
    /// # Errors
    /// None is found, or what is found has another ABI.
    pub(in crate::mpi) fn open() -> Result<Self, EngineLoadError> {
        // SAFETY: a library with the name of MPI's standard ABI, or one that the user has named, is
        // trusted.
        let found = unsafe { dylib::open(candidates(), RTLD_NOW | RTLD_GLOBAL) };
        let (dylib, path) = found.map_err(|tried| EngineLoadError::NotFound {
            engine: "MPI",
            tried,
            variable: VARIABLE,
        })?;
        Self::checked(dylib, path)
    }

    fn checked(dylib: Dylib, path: PathBuf) -> Result<Self, EngineLoadError> {
        // SAFETY: the ABI is checked below before any function that depends on it is called, and
        // the library is forgotten, so never unloaded.
        let table = unsafe { Table::load(slice::from_ref(&dylib)) };
        mem::forget(dylib);
        let table = table.map_err(|symbol| {
            let (engine, variable, path) = ("MPI", VARIABLE, path.clone());
            EngineLoadError::MissingSymbol { engine, path, symbol, variable }
        })?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the function takes two integers to fill, in every ABI and before initialization.
        let status = unsafe { (table.MPI_Abi_get_version)(&mut major, &mut minor) };
        if status != sys::SUCCESS || major != sys::ABI_MAJOR {
            return Err(EngineLoadError::WrongAbi {
                engine: "MPI",
                path,
                found: format!("{major}.{minor}"),
                needed: "1 (the MPI-5 standard ABI)",
                variable: VARIABLE,
            });
        }
        Ok(Self { table: Arc::new(table) })
    }

    /// Whether somebody in this process has initialized MPI already.
    pub(in crate::mpi) fn is_initialized(&self) -> Result<bool, LibraryError> {
        let mut flag = 0;
        // SAFETY: may be called at any time, with an integer to fill.
        let status = unsafe { (self.table.MPI_Initialized)(&mut flag) };
        self.table.check("MPI_Initialized", status)?;
        Ok(flag != 0)
    }

    /// Initializes MPI and returns whether every thread may call it.
    ///
    /// # Collective
    /// Every process that the launcher started.
    pub(in crate::mpi) fn initialize(&self) -> Result<bool, LibraryError> {
        let mut granted: c_int = 0;
        let needed = sys::THREAD_MULTIPLE;
        // SAFETY: null stands for no arguments; the level is an integer to fill.
        let status =
            unsafe { (self.table.MPI_Init_thread)(null_mut(), null_mut(), needed, &mut granted) };
        self.table.check("MPI_Init_thread", status)?;
        Ok(granted >= needed)
    }

    /// Finalizes MPI. Nothing may be in flight, and nothing may be called afterwards.
    ///
    /// # Collective
    /// Every process, on the thread that initialized.
    pub(in crate::mpi) fn finalize(&self) -> Result<(), LibraryError> {
        // SAFETY: takes nothing; that the world is at rest is a matter of protocol, not of memory.
        let status = unsafe { (self.table.MPI_Finalize)() };
        self.table.check("MPI_Finalize", status)
    }

    /// The name of this machine.
    pub(in crate::mpi) fn processor_name(&self) -> Result<String, LibraryError> {
        let mut name = [0 as c_char; sys::MAX_PROCESSOR_NAME + 1];
        let mut length = 0;
        // SAFETY: the buffer has room for the longest name and a terminator.
        let status = unsafe { (self.table.MPI_Get_processor_name)(name.as_mut_ptr(), &mut length) };
        self.table.check("MPI_Get_processor_name", status)?;
        Ok(c_text(&name).to_string())
    }
}

/// What to try: after the loader's, the one that belongs to the `mpiexec` on the path, so that a
/// virtual environment of Python's needs no configuration.
fn candidates() -> Vec<PathBuf> {
    let mut candidates = dylib::candidates(VARIABLE, &NAMES);
    let beside_mpiexec = env::var_os("PATH").and_then(|path| {
        let bin = env::split_paths(&path).find(|folder| folder.join("mpiexec").is_file())?;
        Some(bin.parent()?.join("lib").join(NAMES[0]))
    });
    if env::var_os(VARIABLE).is_none() {
        candidates.extend(beside_mpiexec);
    }
    candidates
}
