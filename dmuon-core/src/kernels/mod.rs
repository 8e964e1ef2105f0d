//! Where the arithmetic meets the CPU: products and passes, and the only room that runs `unsafe` code.
//!
//! Every kernel is chosen at run time by what the CPU has; [`portable`] runs everywhere.

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "vector loads and calls across CPU features, each justified")]
mod avx512;
#[cfg(not(target_arch = "x86_64"))]
#[path = "no_avx512.rs"]
mod avx512;
#[cfg(test)]
mod conformance;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "faer reads whole matrices, not operands piece by piece")
)]
mod operand;
mod portable;
mod precision;
mod products;
mod team;
mod turn;
mod view;
#[allow(unsafe_code, reason = "a call across CPU features, justified")]
mod widest;

pub(crate) use avx512::{Avx512, Panels};
pub(crate) use operand::Operand;
pub use precision::Precision;
pub use products::Kernel;
pub(crate) use products::{Engine, Products};
pub(crate) use team::Team;
pub(crate) use turn::turn;
pub(crate) use view::View;
pub(crate) use widest::{Pass, Squares, sum_of_squares, widest};
