//! placeholder

pub mod newton_schulz;
pub mod update;
