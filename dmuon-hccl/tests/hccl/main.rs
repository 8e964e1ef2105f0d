//! HCCL's engine on a test double of CANN's libraries; nobody here has the hardware. Ranks are threads
//! of this process, which meet and are connected as processes are.

#[macro_use]
#[path = "../doubles/functions.rs"]
mod functions;

#[path = "../again/mod.rs"]
mod again;
#[path = "../../../dmuon-core/tests/conformance/cases/mod.rs"]
mod cases;
mod conformance;
mod double;
mod faults;
mod groups;
mod launching;
mod ranks;
mod resources;
#[path = "../../../dmuon-core/tests/conformance/suite.rs"]
mod suite;
