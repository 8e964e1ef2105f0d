//! Dedicated training end to end, on real Burn models with ranks as threads.

#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod agreement;
mod cases;
mod diverging;
mod errors;
mod gradients;
mod hsdp;
mod layers;
mod memory;
mod options;
mod precision;
mod programs;
mod sharded;
mod steps;
mod support;
mod traffic;
