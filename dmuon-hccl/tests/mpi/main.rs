//! The conformance suite of `dmuon-core` on processes that `mpiexec` starts; see `processes`.

#[path = "../again/mod.rs"]
mod again;
#[path = "../../../dmuon-core/tests/conformance/canonical.rs"]
mod canonical;
#[path = "../../../dmuon-core/tests/conformance/cases/mod.rs"]
mod cases;
mod host_only;
mod large;
mod library;
mod ordered;
mod processes;
#[path = "../../../dmuon-core/tests/conformance/suite.rs"]
mod suite;
