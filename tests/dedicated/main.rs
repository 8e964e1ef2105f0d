//! Dedicated training end to end, on real Burn models with ranks as threads.

mod gradients;
mod support;
