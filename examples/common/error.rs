//! What can go wrong around any example: its text, its files, its figures.

use std::io;
use std::path::{Path, PathBuf};

/// Why an example stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    #[error(
        "--data {}: no such file or folder; give a file, or a folder whose files are to be read",
        path.display()
    )]
    DataMissing { path: PathBuf },
    #[error(
        "{source_name}: {found} bytes found, {needed} needed \
         (for {sequences} sequences of {seq_len} bytes, the last part held out for validation); \
         give more text or a shorter --seq-len"
    )]
    DataTooShort {
        source_name: String,
        found: usize,
        needed: usize,
        sequences: usize,
        seq_len: usize,
    },
    #[error("could not {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("could not write {} as JSON: {source}", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("could not draw {}: {cause}", path.display())]
    Figure { path: PathBuf, cause: String },
}

impl Error {
    /// For `map_err`: names what was being done, and to which path.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }
}
