//! Shared libraries that are found at run time, and tables of their functions. They are never
//! unloaded: their threads may still run at exit.

use libloading::os::unix::Library;
use std::{
    ffi::c_int,
    path::{Path, PathBuf},
};

/// Declares a table of functions and how to find them.
macro_rules! table {
    ($(#[$doc:meta])* $table:ident { $(fn $name:ident($($type:ty),* $(,)?) -> $output:ty;)* }) => {
        $(#[$doc])*
        #[expect(non_snake_case, reason = "the library's names")]
        #[derive(Debug)]
        pub(super) struct $table {
            $(pub(super) $name: unsafe extern "C" fn($($type),*) -> $output,)*
        }

        impl $table {
            /// Looks every function up in the first of `libraries` that has it.
            ///
            /// # Errors
            /// The name of the first that none has.
            ///
            /// # Safety
            /// `libraries` have these signatures for these names, and are never unloaded.
            pub(super) unsafe fn load(
                libraries: &[libloading::os::unix::Library],
            ) -> Result<Self, &'static str> {
                Ok(Self {
                    $($name: {
                        let name = stringify!($name);
                        let found = libraries.iter().find_map(|library| {
                            // SAFETY: the caller promises the signature.
                            unsafe { library.get(name.as_bytes()) }.ok()
                        });
                        *found.ok_or(name)?
                    },)*
                })
            }
        }
    };
}
pub(crate) use table;

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
