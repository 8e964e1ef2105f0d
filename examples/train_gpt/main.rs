//! Trains a byte-level GPT on real text over several ranks, and shows what it learned.
//!
//! `cargo run --release --example train_gpt -- --help` explains the options.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it talks to whoever runs it")]

mod cli;
#[path = "../common/mod.rs"]
mod common;
mod device;
mod error;
mod figure;
mod report;
mod run;
mod sample;
mod stepper;
mod traffic;
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
