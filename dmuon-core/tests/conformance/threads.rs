//! How the suite runs ranks as threads.

use crate::suite::PATIENCE;
use dmuon_core::{EngineOptions, Result, World, launch_each};

/// Runs on threads with the given options.
pub(crate) fn on_threads(
    num_ranks: usize,
    options: EngineOptions,
    body: fn(World) -> Result<()>,
) -> Vec<Result<()>> {
    let options = options.with_deadline(PATIENCE);
    launch_each(num_ranks, &options, body).expect("threads start")
}
