//! The suite on threads that share memory.

use crate::{canonical, cases, suite::Engine, threads::on_threads};
use dmuon_core::{EngineOptions, Result, World};

struct Shared;

impl Engine for Shared {
    fn run(num_ranks: usize, body: fn(World) -> Result<()>) -> Vec<Result<()>> {
        on_threads(num_ranks, EngineOptions::default(), body)
    }
}

cases::for_engine!(Shared);
canonical::for_engine!(Shared);
