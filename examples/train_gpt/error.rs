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
    #[error(
        "--device {name} needs the feature `{name}`: \
         cargo run --release --features {name} --example train_gpt -- --device {name}"
    )]
    #[cfg_attr(
        all(feature = "wgpu", feature = "cuda"),
        expect(dead_code, reason = "all are there")
    )]
    DeviceFeature { name: &'static str },
    #[error("--device {name}: {cause}")]
    #[cfg_attr(not(feature = "wgpu"), expect(dead_code, reason = "Flex is always there"))]
    Device { name: &'static str, cause: String },
    #[error(transparent)]
    Dmuon(#[from] dmuon::Error),
    #[error(transparent)]
    Ranks(#[from] dmuon::runtime::Error),
    #[error("step {step}: the loss is {loss}; try a smaller --muon-lr or --adamw-lr")]
    Diverged { step: usize, loss: f64 },
}
