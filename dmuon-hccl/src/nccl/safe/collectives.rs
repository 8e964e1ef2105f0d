//! NCCL's collectives on scratch memory, or on what is lent in its place: from what goes out to what
//! comes in, in the order of the stream. They return when they are asked for, not when they are done.

use super::{Comm, Scratch, comm::int};
use crate::{LibraryError, nccl::sys};
use std::ffi::c_void;

/// What the library sums here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::nccl) enum Summand {
    F32,
    F64,
}

impl Summand {
    fn datatype(self) -> sys::Datatype {
        match self {
            Self::F32 => sys::FLOAT32,
            Self::F64 => sys::FLOAT64,
        }
    }

    fn num_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }
}

impl Comm {
    /// Every rank gets the root's `num_bytes`.
    pub(in crate::nccl) fn broadcast(
        &self,
        scratch: &mut Scratch,
        num_bytes: usize,
        root: usize,
    ) -> Result<(), LibraryError> {
        let from = scratch.outgoing(if self.rank() == root { num_bytes } else { 0 })?;
        let (to, stream) = (scratch.incoming(num_bytes)?, scratch.stream());
        let (broadcast, root) = (self.library.table.ncclBroadcast, int(root));
        // SAFETY: only the root's outgoing bytes are read, and everybody's incoming bytes written,
        // the root's unless they are the same; scratch memory lives until the stream is past that.
        // The handle is alive while locked.
        self.start("ncclBroadcast", |comm| unsafe {
            broadcast(from, to, num_bytes, sys::UINT8, root, comm, stream)
        })
    }

    /// The root gets the sum of everybody's `num` elements.
    pub(in crate::nccl) fn reduce(
        &self,
        scratch: &mut Scratch,
        (num, summand): (usize, Summand),
        root: usize,
    ) -> Result<(), LibraryError> {
        let num_bytes = num * summand.num_bytes();
        let from = scratch.outgoing(num_bytes)?;
        let to = scratch.incoming(if self.rank() == root { num_bytes } else { 0 })?;
        let (reduce, root, stream) = (self.library.table.ncclReduce, int(root), scratch.stream());
        // SAFETY: outgoing elements are read, and only the root's incoming ones written; scratch
        // memory lives until the stream is past that. The handle is alive while locked.
        self.start("ncclReduce", |comm| unsafe {
            reduce(from, to, num, summand.datatype(), sys::SUM, root, comm, stream)
        })
    }

    /// Every rank gets the sum of everybody's `num` elements.
    pub(in crate::nccl) fn all_reduce(
        &self,
        scratch: &mut Scratch,
        (num, summand): (usize, Summand),
    ) -> Result<(), LibraryError> {
        let num_bytes = num * summand.num_bytes();
        let (from, to) = (scratch.outgoing(num_bytes)?, scratch.incoming(num_bytes)?);
        let (all_reduce, stream) = (self.library.table.ncclAllReduce, scratch.stream());
        // SAFETY: both rooms have `num` elements; scratch memory lives until the stream is past the
        // call. The handle is alive while locked.
        self.start("ncclAllReduce", |comm| unsafe {
            all_reduce(from, to, num, summand.datatype(), sys::SUM, comm, stream)
        })
    }

    /// Every rank gets everybody's `num_bytes`, in order.
    pub(in crate::nccl) fn all_gather(
        &self,
        scratch: &mut Scratch,
        num_bytes: usize,
    ) -> Result<(), LibraryError> {
        let (from, to) = (scratch.outgoing(num_bytes)?, scratch.incoming(self.size() * num_bytes)?);
        let (all_gather, stream) = (self.library.table.ncclAllGather, scratch.stream());
        // SAFETY: there is room for `num_bytes` of each rank; scratch memory lives until the stream
        // is past the call. The handle is alive while locked.
        self.start("ncclAllGather", |comm| unsafe {
            all_gather(from, to, num_bytes, sys::UINT8, comm, stream)
        })
    }

    /// Every rank gets the sum of everybody's part for it, of `num` elements.
    pub(in crate::nccl) fn reduce_scatter(
        &self,
        scratch: &mut Scratch,
        (num, summand): (usize, Summand),
    ) -> Result<(), LibraryError> {
        let num_bytes = num * summand.num_bytes();
        let (from, to) = (scratch.outgoing(self.size() * num_bytes)?, scratch.incoming(num_bytes)?);
        let (reduce_scatter, stream) = (self.library.table.ncclReduceScatter, scratch.stream());
        // SAFETY: a part of `num` elements for each rank goes out, and one comes in; scratch memory
        // lives until the stream is past the call. The handle is alive while locked.
        self.start("ncclReduceScatter", |comm| unsafe {
            reduce_scatter(from, to, num, summand.datatype(), sys::SUM, comm, stream)
        })
    }

    /// Every rank gets everybody's part for it, of `num_bytes`, in order. NCCL has no such call in
    /// all versions: ranks send to all and receive from all, as one.
    pub(in crate::nccl) fn all_to_all(
        &self,
        scratch: &mut Scratch,
        num_bytes: usize,
    ) -> Result<(), LibraryError> {
        let room = self.size() * num_bytes;
        let (from, to) = (scratch.outgoing(room)?, scratch.incoming(room)?);
        let table = &self.library.table;
        self.device.bind()?;
        // SAFETY: takes nothing; the group is this thread's, and ended below.
        table.check("ncclGroupStart", unsafe { (table.ncclGroupStart)() })?;
        let queued = (0..self.size()).try_for_each(|peer| {
            let part =
                (from.wrapping_byte_add(peer * num_bytes), to.wrapping_byte_add(peer * num_bytes));
            self.exchange(part, num_bytes, peer, scratch.stream())
        });
        // SAFETY: takes nothing. Ended whatever happened: later calls of this thread would join it.
        let ended = table.check("ncclGroupEnd", unsafe { (table.ncclGroupEnd)() });
        queued.and(ended)
    }

    /// Queues one rank's part each way.
    fn exchange(
        &self,
        (from, to): (*const c_void, *mut c_void),
        num_bytes: usize,
        peer: usize,
        stream: sys::Stream,
    ) -> Result<(), LibraryError> {
        let (send, receive) = (self.library.table.ncclSend, self.library.table.ncclRecv);
        let peer = int(peer);
        // SAFETY: scratch memory has room for a part of each peer, and lives until the stream is
        // past the call. The handle is alive while locked.
        self.start("ncclSend", |comm| unsafe {
            send(from, num_bytes, sys::UINT8, peer, comm, stream)
        })?;
        // SAFETY: as above.
        self.start("ncclRecv", |comm| unsafe {
            receive(to, num_bytes, sys::UINT8, peer, comm, stream)
        })
    }

    /// Calls the library on the communicator's device.
    fn start(
        &self,
        name: &'static str,
        body: impl FnOnce(sys::Comm) -> sys::Status,
    ) -> Result<(), LibraryError> {
        self.device.bind()?;
        self.handle.call(&self.library.table, name, body)
    }
}
