//! Shared libraries that are found at run time. They are never unloaded: their threads may still run
//! at exit.

use libloading::os::unix::Library;
use std::{
    ffi::c_int,
    path::{Path, PathBuf},
};

/// What to try, in order: what the user's `variable` says, alone, or else `names`.
#[cfg(any(feature = "mpi", feature = "cuda"))]
pub(crate) fn candidates(variable: &str, names: &[&str]) -> Vec<PathBuf> {
    match std::env::var_os(variable) {
        Some(chosen) => vec![chosen.into()],
        None => names.iter().map(PathBuf::from).collect(),
    }
}

/// The first of `candidates` that loads, or every one with the loader's complaint.
///
/// # Safety
/// Loading runs the libraries' initializers: the candidates' names, or whoever named them, must be
/// worth that trust.
pub(crate) unsafe fn open(
    candidates: Vec<PathBuf>,
    flags: c_int,
) -> Result<(Library, PathBuf), Vec<String>> {
    let mut tried = Vec::new();
    for path in candidates {
        // SAFETY: the caller trusts it.
        match unsafe { Library::open(Some(&path), flags) } {
            Ok(library) => return Ok((library, path)),
            Err(error) => tried.push(format!("{} ({})", path.display(), cause_of(&error))),
        }
    }
    Err(tried)
}

/// The loader's complaint without the path, which it repeats.
fn cause_of(error: &libloading::Error) -> String {
    let source = std::error::Error::source(error).map(ToString::to_string);
    let text = source.unwrap_or_else(|| error.to_string());
    match text.split_once(": ") {
        Some((path, complaint)) if Path::new(path).extension().is_some() => complaint.to_owned(),
        _ => text,
    }
}
