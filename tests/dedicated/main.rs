//! Dedicated training end to end, on real Burn models with ranks as threads.

mod gradients;
mod memory;
mod steps;
mod support;
mod traffic;
