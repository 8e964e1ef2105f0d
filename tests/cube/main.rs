//! Dedicated training on a device with memory of its own, beside the same training on Flex.
//!
//! Runs on whatever Vulkan driver there is; a software one does (Debian: `mesa-vulkan-drivers`).

#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod device;
mod errors;
mod memory;
#[expect(dead_code, reason = "the tests on Flex use more of it")]
#[path = "../dedicated/support.rs"]
mod support;
mod training;
