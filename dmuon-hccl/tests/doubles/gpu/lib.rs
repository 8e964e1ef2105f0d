//! A test double of NVIDIA's driver (`libcuda.so.1`) and of NCCL (`libnccl.so.2`), as far as dmuon
//! calls them: ranks are threads of one process, device memory is host memory of each device's own,
//! a stream is a thread, and collectives sum in rank order. It computes nothing on a GPU and says
//! nothing about speed.
//!
//! It is stricter than the real ones: a communicator is in progress for a few looks after every call
//! and refuses others meanwhile, and pointers must lie in the memory of the right device.
//! [`settings`] tells what the environment may ask for, [`owner`] what tests do as whoever else has
//! memory and work on the device.

#![expect(unsafe_code, reason = "its callers speak C")]

mod clique;
mod comm;
mod driver;
mod journal;
mod live;
mod memory;
mod nccl;
mod operation;
mod owner;
mod settings;
mod stream;
