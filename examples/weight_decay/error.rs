//! What can go wrong in the example, each with one clear line.

use crate::common::error::Error as Common;

/// Why the example stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    #[error(transparent)]
    Common(#[from] Common),
    #[error(transparent)]
    Dmuon(#[from] dmuon::Error),
    #[error(transparent)]
    Ranks(#[from] dmuon::runtime::Error),
    #[error(
        "--slice {slice} and as many bytes to judge by are more than the {found} bytes of the text; \
         give more --data or a smaller --slice"
    )]
    SliceTooLong { found: usize, slice: usize },
    #[error(
        "decay {decay}, step {step}: the loss is {loss}; try a smaller --muon-lr or --adamw-lr"
    )]
    Diverged { decay: f64, step: usize, loss: f64 },
}
