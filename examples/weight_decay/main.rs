//! Trains a small GPT far past the point of use, with and without weight decay, and shows what
//! becomes of its weights, its activations and its arithmetic in bf16.
//!
//! `cargo run --release --example weight_decay -- --help` explains the options.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it talks to whoever runs it")]

mod bf16;
mod cli;
#[path = "../common/mod.rs"]
mod common;
mod error;
mod figure;
mod plot;
mod probe;
mod report;
mod run;
mod theory;
mod train;

use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let args = cli::Args::from_command_line();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match run::run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
