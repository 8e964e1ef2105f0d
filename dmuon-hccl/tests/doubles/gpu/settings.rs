//! What the environment may ask of the double.

use std::env;

/// How many devices there are.
pub(crate) fn num_devices() -> i32 {
    number("DMUON_DOUBLE_DEVICES").unwrap_or(8)
}

/// NCCL's version as a number.
pub(crate) fn version() -> i32 {
    number("DMUON_DOUBLE_VERSION").unwrap_or(22_703)
}

/// Where every call is written down, a line each.
pub(crate) fn journal() -> Option<String> {
    env::var("DMUON_DOUBLE_JOURNAL").ok()
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Nothing,
    /// Device 1 refuses every all-reduce.
    Refusal,
    /// Device 1 loses a peer in every all-reduce.
    LostPeer,
    /// Device 1 records no contexts.
    Capture,
}

pub(crate) fn fault() -> Fault {
    match env::var("DMUON_DOUBLE_FAULT").as_deref() {
        Ok("refusal") => Fault::Refusal,
        Ok("lost-peer") => Fault::LostPeer,
        Ok("capture") => Fault::Capture,
        _ => Fault::Nothing,
    }
}

fn number(name: &str) -> Option<i32> {
    env::var(name).ok()?.parse().ok()
}
