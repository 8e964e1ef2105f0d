//! What engines share whose collectives run on a device's stream. Buffers in host memory go up to the
//! device, around, and down again; those that are on the device stay there.

mod lane;
mod staged;
mod turns;

pub(crate) use lane::Lane;
pub(crate) use staged::Staged;
pub(crate) use turns::{Turn, Turns};

use dmuon_core::{Collectives, EngineOptions, Result};
use std::env;

/// Whether somebody has asked for sums in the canonical order, which is not that of any library
/// here.
pub(crate) fn is_order_asked(options: &EngineOptions) -> Result<bool> {
    let is_chosen = options.collectives != Collectives::FromEnvironment
        || env::var_os("DMUON_COLLECTIVES").is_some();
    Ok(is_chosen && options.resolved_collectives()? == Collectives::Ordered)
}
