//! What can go wrong in the example, each with one clear line.

use crate::common::error::Error as Common;

/// Why the example stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    #[error(transparent)]
    Common(#[from] Common),
    #[error("step {step}: {} had no gradient and so no Muon update", parameters.join(", "))]
    NotUpdated { step: usize, parameters: Vec<String> },
    #[error("step {step}: {found} matrices were orthogonalized where the plan has {planned}")]
    Orthogonalized { step: usize, found: u64, planned: usize },
    #[error("the learning rates have no schedule: {0}")]
    Schedule(String),
    #[error(transparent)]
    Dmuon(#[from] dmuon::Error),
    #[error(transparent)]
    Ranks(#[from] dmuon::runtime::Error),
    #[error("step {step}: the loss is {loss}; try a smaller --muon-lr or --adamw-lr")]
    Diverged { step: usize, loss: f64 },
}
