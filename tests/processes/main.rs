//! Programs of four processes under `mpiexec`: alike with threads, and what survivors say when one
//! of them fails. Needs an MPI library and `mpiexec`; `.ci/run` shows how to get them.

#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod faults;
mod launchers;
mod program;
mod run;
