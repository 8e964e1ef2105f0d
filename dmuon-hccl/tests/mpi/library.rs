//! What the suite asks for, less the order of sums, on processes with the library's collectives.

use crate::{
    cases,
    processes::run,
    suite::{Engine, PATIENCE},
};
use dmuon_core::{Collectives, EngineOptions, Result, Verify, World};

struct Library;

impl Engine for Library {
    fn run(num_ranks: usize, body: fn(World) -> Result<()>) -> Vec<Result<()>> {
        let options = EngineOptions::default()
            .with_deadline(PATIENCE)
            .with_verify(Verify::Always)
            .with_collectives(Collectives::Library);
        run(num_ranks, &options, body)
    }
}

cases::for_engine!(Library);
