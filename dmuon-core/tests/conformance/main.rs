//! The conformance suite, run on the in-process engine with shared and with copied memory.

mod canonical;
mod cases;
mod copying;
mod in_process;
mod suite;
mod threads;
