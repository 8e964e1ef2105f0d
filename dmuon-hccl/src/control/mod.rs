//! What ranks in several processes tell each other beside the data: who is here, who failed first,
//! who is missing, and small ids. Never tensors.
//!
//! Rank 0 hosts; every rank, rank 0 too, keeps one TCP connection to it. The connection proves that
//! a process lives: the kernel closes it when the process is killed, and a heartbeat tells when a
//! machine is gone. The first failure the host hears of is everybody's.

mod board;
mod docket;
mod error;
mod frame;
mod host;
mod log;
mod member;
mod message;
mod muster;
mod watch;

pub use board::Board;
pub use error::{Refusal, RendezvousError};
pub use host::Host;
pub use log::{GroupId, Place};
pub(crate) use member::connect;
pub use member::{Credentials, Member};
pub use watch::Watch;

use std::{
    io,
    thread::{self, JoinHandle},
};

/// Starts a thread that ends by itself.
fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.into()).spawn(body)
}
