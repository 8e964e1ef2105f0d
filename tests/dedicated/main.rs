//! Dedicated training end to end, on real Burn models with ranks as threads.

#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod cases;
mod gradients;
mod memory;
mod steps;
mod support;
mod traffic;
