//! The suite, less the order of sums.

use crate::{cases, ranks::Ranks, suite::Engine};
use dmuon_core::{Result, World};

struct Hccl;

impl Engine for Hccl {
    fn run(num_ranks: usize, body: fn(World) -> Result<()>) -> Vec<Result<()>> {
        Ranks::new(num_ranks).run(body)
    }
}

cases::for_engine!(Hccl);
