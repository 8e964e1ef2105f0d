//! A communicator at work: its stream, its memory on the device, and at most one transfer on the way.

use super::{Comm, comm::number, memory::Memory};
use crate::{LibraryError, hccl::sys};
use std::sync::Arc;

/// How long the library may take to say how a stream ended, in milliseconds.
const SETTLE_MILLIS: i32 = 10_000;

/// What travels between the ranks of a communicator; roots are ranks in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hccl) enum Transfer {
    /// The root's outgoing bytes to everybody's incoming memory.
    Broadcast { root: usize, num_bytes: usize },
    /// Everybody's outgoing bytes to everybody's incoming memory, by rank.
    AllGather { part_bytes: usize },
    /// To each rank one part of all outgoing bytes, by rank.
    AllToAll { part_bytes: usize },
    /// A sum of outgoing `f32`.
    Sum(Sum),
}

/// Whose incoming memory a sum reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hccl) enum Sum {
    /// The root's.
    Reduce { root: usize, num_elems: usize },
    /// Everybody's.
    AllReduce { num_elems: usize },
    /// Each rank's, one part each.
    ReduceScatter { part_elems: usize },
}

/// A communicator with a stream and memory of its own.
///
/// Invariant: while `is_under_way`, the library may read `outgoing` and write `incoming`, and nobody
/// else touches either; a channel that is dropped then keeps both for ever.
#[derive(Debug)]
pub(in crate::hccl) struct Channel {
    comm: Arc<Comm>,
    stream: sys::Stream,
    outgoing: Memory,
    incoming: Memory,
    is_under_way: bool,
}

impl Channel {
    /// A channel of a communicator whose device this thread has entered.
    pub(in crate::hccl) fn new(comm: Arc<Comm>) -> Result<Self, LibraryError> {
        let (device, mut stream) = (comm.device.clone(), sys::Stream::NULL);
        let table = &device.library.table;
        // SAFETY: takes a handle to fill.
        let status = unsafe { (table.acl.aclrtCreateStream)(&mut stream) };
        table.check_acl("aclrtCreateStream", status)?;
        let (outgoing, incoming) = (Memory::new(device.clone()), Memory::new(device.clone()));
        Ok(Self { comm, stream, outgoing, incoming, is_under_way: false })
    }

    /// Lets this thread use the channel.
    pub(in crate::hccl) fn enter(&self) -> Result<(), LibraryError> {
        self.comm.device.enter()
    }

    /// Makes room for what goes out and comes in.
    pub(in crate::hccl) fn reserve(
        &mut self,
        outgoing: usize,
        incoming: usize,
    ) -> Result<(), LibraryError> {
        self.assert_at_rest();
        self.outgoing.reserve(outgoing)?;
        self.incoming.reserve(incoming)
    }

    /// Copies host bytes to where they go out from.
    pub(in crate::hccl) fn upload(
        &mut self,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), LibraryError> {
        self.assert_at_rest();
        self.outgoing.upload(offset, bytes)
    }

    /// Copies what came in to the host.
    pub(in crate::hccl) fn download(
        &self,
        offset: usize,
        bytes: &mut [u8],
    ) -> Result<(), LibraryError> {
        self.assert_at_rest();
        self.incoming.download(offset, bytes)
    }

    /// Copies what went out back to the host.
    pub(in crate::hccl) fn download_own(
        &self,
        offset: usize,
        bytes: &mut [u8],
    ) -> Result<(), LibraryError> {
        self.assert_at_rest();
        self.outgoing.download(offset, bytes)
    }

    /// Puts a transfer on the stream. The library may connect ranks first, and wait for them.
    ///
    /// # Collective
    /// Every rank of the communicator, with the same transfer.
    pub(in crate::hccl) fn issue(&mut self, transfer: Transfer) -> Result<(), LibraryError> {
        self.assert_at_rest();
        let (outgoing, incoming) = transfer.room(self.comm.size);
        assert!(outgoing <= self.outgoing.num_bytes(), "there is room for what goes out");
        assert!(incoming <= self.incoming.num_bytes(), "there is room for what comes in");
        let device = self.comm.device.clone();
        let _alone = device.alone();
        // What earlier calls left is not this one's fault.
        device.library.table.recent_message();
        // Also if the call is refused: it may have put something on the stream before.
        self.is_under_way = true;
        let (call, status) = self.call(transfer);
        device.library.table.check_hccl(call, status)
    }

    /// Calls the library for a transfer.
    fn call(&self, transfer: Transfer) -> (&'static str, sys::Status) {
        let hccl = &self.comm.device.library.table.hccl;
        let (comm, stream) = (self.comm.handle, self.stream);
        let (from, to, byte) = (self.outgoing.start(), self.incoming.start(), sys::INT8);
        match transfer {
            Transfer::Broadcast { root, num_bytes } => {
                let buffer = if self.comm.rank == root { from } else { to };
                let (count, root) = (num_bytes as u64, number(root));
                // SAFETY: the buffer has room, as asserted, and is left alone until the stream is
                // past it, by the invariant.
                ("HcclBroadcast", unsafe {
                    (hccl.HcclBroadcast)(buffer, count, byte, root, comm, stream)
                })
            }
            // SAFETY: as above, for both buffers.
            Transfer::AllGather { part_bytes } => ("HcclAllGather", unsafe {
                (hccl.HcclAllGather)(from, to, part_bytes as u64, byte, comm, stream)
            }),
            Transfer::AllToAll { part_bytes } => {
                let count = part_bytes as u64;
                // SAFETY: as above.
                ("HcclAlltoAll", unsafe {
                    (hccl.HcclAlltoAll)(from, count, byte, to, count, byte, comm, stream)
                })
            }
            Transfer::Sum(sum) => self.call_sum(sum),
        }
    }

    /// Calls the library for a sum.
    fn call_sum(&self, sum: Sum) -> (&'static str, sys::Status) {
        let hccl = &self.comm.device.library.table.hccl;
        let (comm, stream, op, single) = (self.comm.handle, self.stream, sys::SUM, sys::FP32);
        let (from, to) = (self.outgoing.start(), self.incoming.start());
        match sum {
            Sum::Reduce { root, num_elems } => {
                let (count, root) = (num_elems as u64, number(root));
                // SAFETY: as in `call`.
                ("HcclReduce", unsafe {
                    (hccl.HcclReduce)(from, to, count, single, op, root, comm, stream)
                })
            }
            // SAFETY: as in `call`.
            Sum::AllReduce { num_elems } => ("HcclAllReduce", unsafe {
                (hccl.HcclAllReduce)(from, to, num_elems as u64, single, op, comm, stream)
            }),
            // SAFETY: as in `call`.
            Sum::ReduceScatter { part_elems } => ("HcclReduceScatter", unsafe {
                (hccl.HcclReduceScatter)(from, to, part_elems as u64, single, op, comm, stream)
            }),
        }
    }

    /// Whether the stream is past the transfer, and how it ended; or what the communicator noticed.
    pub(in crate::hccl) fn poll(&mut self) -> Result<bool, LibraryError> {
        let table = &self.comm.device.library.table;
        let mut status_of_stream = sys::STREAM_COMPLETE;
        // SAFETY: the stream is alive, and the status ours to fill.
        let status = unsafe { (table.acl.aclrtStreamQuery)(self.stream, &mut status_of_stream) };
        table.check_acl("aclrtStreamQuery", status)?;
        if status_of_stream != sys::STREAM_COMPLETE {
            self.comm.look()?;
            return Ok(false);
        }
        let settle = table.acl.aclrtSynchronizeStreamWithTimeout;
        // SAFETY: the stream is alive; nothing is left on it, so this only asks how it went.
        let status = unsafe { settle(self.stream, SETTLE_MILLIS) };
        table.check_acl("aclrtSynchronizeStreamWithTimeout", status)?;
        self.is_under_way = false;
        Ok(true)
    }

    /// Stops what is on the stream, where the library can, and leaves it there. Nothing of the device
    /// is returned afterwards.
    pub(in crate::hccl) fn abort(&mut self) {
        self.comm.device.abandon();
        let table = &self.comm.device.library.table;
        let Some(abort) = &table.abort else { return };
        // SAFETY: the stream is alive.
        let status = unsafe { (abort.aclrtStreamAbort)(self.stream) };
        if let Err(error) = table.check_acl("aclrtStreamAbort", status) {
            tracing::debug!(%error, "a stream was not stopped");
        }
    }

    fn assert_at_rest(&self) {
        assert!(!self.is_under_way, "a transfer is under way");
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.is_under_way {
            self.comm.device.abandon();
            self.outgoing.forget();
            self.incoming.forget();
            return;
        }
        if self.comm.device.is_abandoned() {
            return;
        }
        let destroyed = self.enter().and_then(|()| {
            let table = &self.comm.device.library.table;
            // SAFETY: nothing is on the stream, and the handle is not used again.
            let status = unsafe { (table.acl.aclrtDestroyStream)(self.stream) };
            table.check_acl("aclrtDestroyStream", status)
        });
        if let Err(error) = destroyed {
            tracing::debug!(%error, "a stream was not returned");
        }
    }
}

impl Transfer {
    /// Bytes that go out and come in on a rank, at most, of `size` ranks.
    pub(in crate::hccl) fn room(self, size: usize) -> (usize, usize) {
        let single = size_of::<f32>();
        match self {
            Self::Broadcast { num_bytes, .. } => (num_bytes, num_bytes),
            Self::AllGather { part_bytes } => (part_bytes, size * part_bytes),
            Self::AllToAll { part_bytes } => (size * part_bytes, size * part_bytes),
            Self::Sum(Sum::Reduce { num_elems, .. } | Sum::AllReduce { num_elems }) => {
                (num_elems * single, num_elems * single)
            }
            Self::Sum(Sum::ReduceScatter { part_elems }) => {
                (size * part_elems * single, part_elems * single)
            }
        }
    }
}
