//! What the suite asks for, less the order of sums, on the test double.

use crate::{
    cases, doubles,
    suite::{Engine, PATIENCE},
};
use dmuon_core::{EngineOptions, Result, Verify, World};

pub(crate) struct Nccl;

impl Engine for Nccl {
    fn run(num_ranks: usize, body: fn(World) -> Result<()>) -> Vec<Result<()>> {
        let options = EngineOptions::default().with_deadline(PATIENCE).with_verify(Verify::Always);
        doubles::run(num_ranks, &options, &[], body)
    }
}

cases::for_engine!(Nccl);
