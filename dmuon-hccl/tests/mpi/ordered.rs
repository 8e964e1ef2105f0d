//! The suite on processes, with collectives in the canonical order.

use crate::{
    canonical, cases,
    processes::run,
    suite::{Engine, PATIENCE},
};
use dmuon_core::{Collectives, EngineOptions, Result, Verify, World};

struct Ordered;

impl Engine for Ordered {
    fn run(num_ranks: usize, body: fn(World) -> Result<()>) -> Vec<Result<()>> {
        let options = EngineOptions::default()
            .with_deadline(PATIENCE)
            .with_verify(Verify::Always)
            .with_collectives(Collectives::Ordered);
        run(num_ranks, &options, body)
    }
}

cases::for_engine!(Ordered);
canonical::for_engine!(Ordered);
