//! Newton–Schulz as a caller sees it: golden values, an `f64` oracle, invariances, refusals.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test by it")]

mod cost;
mod golden;
mod inputs;
mod invariance;
mod oracle;
mod refusals;
