//! What can go wrong in the example, each with one clear line.

use std::io;
use std::path::{Path, PathBuf};

/// Why the example stopped.
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
    #[error("step {step}: {} had no gradient and so no Muon update", parameters.join(", "))]
    NotUpdated { step: usize, parameters: Vec<String> },
    #[error("step {step}: {found} matrices were orthogonalized where the plan has {planned}")]
    Orthogonalized { step: usize, found: u64, planned: usize },
    #[error(transparent)]
    Dmuon(#[from] dmuon::Error),
    #[error(transparent)]
    Ranks(#[from] dmuon::core::Error),
    #[error("step {step}: the loss is {loss}; try a smaller --muon-lr or --adamw-lr")]
    Diverged { step: usize, loss: f64 },
}

impl Error {
    /// For `map_err`: names what was being done, and to which path.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }
}
