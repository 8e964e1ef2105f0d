//! The conformance suite, run on the in-process engine with shared and with copied memory.

mod cases;
mod copying;
mod in_process;
mod order;
mod suite;
mod threads;
