//! The conformance suite of `dmuon-core` and NCCL's own failures, on a test double of driver and
//! library; see `doubles`.

#[macro_use]
#[path = "../doubles/functions.rs"]
mod functions;

#[path = "../again/mod.rs"]
mod again;
mod by_address;
#[path = "../../../dmuon-core/tests/conformance/cases/mod.rs"]
mod cases;
mod conformance;
mod device;
mod doubles;
mod failures;
mod fences;
mod joining;
mod large;
mod loans;
mod protocol;
#[path = "../../../dmuon-core/tests/conformance/suite.rs"]
mod suite;
