//! The suite on threads that each receive into memory of their own.

use crate::{canonical, cases, suite::Engine, threads::on_threads};
use dmuon_core::{EngineOptions, Result, Sharing, World};

struct Copying;

impl Engine for Copying {
    fn run(num_ranks: usize, body: fn(World) -> Result<()>) -> Vec<Result<()>> {
        on_threads(num_ranks, EngineOptions::default().with_sharing(Sharing::Copy), body)
    }
}

cases::for_engine!(Copying);
canonical::for_engine!(Copying);
