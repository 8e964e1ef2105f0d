//! The library: found and checked.

use super::UniqueId;
use crate::{
    EngineLoadError, LibraryError, dylib,
    nccl::sys::{self, Table},
};
use libloading::os::unix::{Library as Dylib, RTLD_LOCAL, RTLD_NOW};
use std::{ffi::c_int, mem, path::PathBuf, slice, sync::Arc};

/// Overrides the search.
const VARIABLE: &str = "DMUON_NCCL_LIB";

/// Names of the library, as the dynamic loader finds them. The first is the only one in NVIDIA's
/// wheels.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// A loaded NCCL; clones share it.
#[derive(Clone, Debug)]
pub(in crate::nccl) struct Library {
    pub(super) table: Arc<Table>,
}

impl Library {
    /// Finds and loads NCCL 2.
    ///
    /// # Errors
    /// None is found, or what is found is none or too old.
    pub(in crate::nccl) fn open() -> Result<Self, EngineLoadError> {
        let candidates = dylib::candidates(VARIABLE, &NAMES);
        // SAFETY: a library with NCCL's name, or one that the user has named, is trusted.
        let found = unsafe { dylib::open(candidates, RTLD_NOW | RTLD_LOCAL) };
        let (dylib, path) = found.map_err(|tried| EngineLoadError::NotFound {
            engine: "NCCL",
            tried,
            variable: VARIABLE,
        })?;
        Self::checked(dylib, path)
    }

    fn checked(dylib: Dylib, path: PathBuf) -> Result<Self, EngineLoadError> {
        // SAFETY: the version is checked below before any function is called whose signature could
        // depend on it, and the library is forgotten, so never unloaded.
        let table = unsafe { Table::load(slice::from_ref(&dylib)) };
        mem::forget(dylib);
        let (engine, variable) = ("NCCL", VARIABLE);
        let table = table.map_err(|symbol| {
            let path = path.clone();
            EngineLoadError::MissingSymbol { engine, path, symbol, variable }
        })?;
        let mut version: c_int = 0;
        // SAFETY: the function takes an integer to fill, in every version.
        let status = unsafe { (table.ncclGetVersion)(&mut version) };
        let known = sys::CONFIG_VERSION.cast_signed()..sys::NEXT_VERSION.cast_signed();
        if status != sys::SUCCESS || !known.contains(&version) {
            let (found, needed) = (text_of(version), "version 2.18.1 or newer, and not 3");
            return Err(EngineLoadError::WrongAbi { engine, path, found, needed, variable });
        }
        tracing::debug!(path = %path.display(), version = text_of(version), "found NCCL");
        Ok(Self { table: Arc::new(table) })
    }

    /// Something that the ranks of a new world can have in common: the library listens for them.
    pub(in crate::nccl) fn unique_id(&self) -> Result<UniqueId, LibraryError> {
        let mut id = sys::UniqueId([0; sys::UNIQUE_ID_BYTES]);
        // SAFETY: the id is ours to fill.
        let status = unsafe { (self.table.ncclGetUniqueId)(&mut id) };
        self.table.check("ncclGetUniqueId", status)?;
        Ok(UniqueId(id))
    }
}

/// 23203 is 2.32.3.
fn text_of(version: c_int) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "needs NVIDIA's library, as docs/launch.md gets it"]
    fn the_real_library_is_as_we_think() {
        let library = Library::open().expect("a library was installed");
        let [one, other] = [(); 2].map(|()| library.unique_id().expect("a network, or loopback"));
        assert_ne!(one, other);
        let (mut comm, mut config) = (sys::Comm::NULL, sys::Config::NONBLOCKING);
        let init = library.table.ncclCommInitRankConfig;
        // SAFETY: both places are ours, and the configuration has the layout that it claims.
        let status = unsafe { init(&mut comm, 1, one.0, 0, &mut config) };
        // Without a GPU it gets as far as to miss it.
        if let Err(error) = library.table.check("ncclCommInitRankConfig", status) {
            assert_eq!((error.code, comm), (1, sys::Comm::NULL));
            assert!(error.text.contains("unhandled cuda error"), "{error}");
            assert!(error.text.contains("Cuda failure"), "{error}");
        }
    }

    #[test]
    fn versions_read_as_they_are_written() {
        assert_eq!([text_of(21_801), text_of(23_203)], ["2.18.1", "2.32.3"]);
    }
}
