//! Messages in flight, which own the memory that the library reads or writes until they are done.
//!
//! A transfer that is dropped while in flight keeps its memory for ever: the library may still
//! touch it, and nothing can take that back when a peer is gone.

use super::{Comm, comm::int};
use crate::{LibraryError, mpi::sys};
use dmuon_core::{Buffer, SharedBuffer};
use std::{
    collections::VecDeque,
    ffi::c_int,
    mem::{self, ManuallyDrop},
    ops::Range,
};

/// What a message is matched by, beside its sender: below 2¹⁵, which every library allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::mpi) struct Tag(u16);

/// Bytes on their way to another rank.
#[derive(Debug)]
#[must_use = "a message that nobody waits for keeps its memory for ever"]
pub(in crate::mpi) struct Sending<'a> {
    request: Request<'a>,
    /// Keeps what is being sent alive; immutable while there is a handle to it.
    source: ManuallyDrop<SharedBuffer>,
}

/// A buffer that messages arrive in piece by piece, and may be passed on from.
///
/// Invariant: bytes before `filled` are written and only read; bytes from `filled` to `posted` are
/// the library's; nobody forms a reference to those.
#[derive(Debug)]
pub(in crate::mpi) struct Landing<'a> {
    comm: &'a Comm,
    buffer: ManuallyDrop<Buffer>,
    start: *mut u8,
    num_bytes: usize,
    filled: usize,
    posted: usize,
    incoming: VecDeque<(Range<usize>, Request<'a>)>,
    outgoing: VecDeque<Request<'a>>,
}

/// An operation that the library has been asked for.
#[derive(Debug)]
struct Request<'a> {
    comm: &'a Comm,
    handle: sys::Request,
}

impl Tag {
    /// A tag from any number; numbers that differ have different tags, most likely.
    pub(in crate::mpi) fn new(number: u64) -> Self {
        Self((number % (1 << 15)) as u16)
    }
}

impl Comm {
    /// Starts sending a range of `source` to rank `to`.
    pub(in crate::mpi) fn send(
        &self,
        source: &SharedBuffer,
        range: Range<usize>,
        to: usize,
        tag: Tag,
    ) -> Result<Sending<'_>, LibraryError> {
        let bytes: *const [u8] = &source.as_slice()[range];
        // SAFETY: the handle below keeps the bytes alive and unchanged until the request is done,
        // or for ever.
        let request = unsafe { self.post_send(bytes, to, tag) }?;
        Ok(Sending { request, source: ManuallyDrop::new(source.clone()) })
    }

    /// # Safety
    /// `bytes` stay readable and unchanged until the request is done.
    unsafe fn post_send(
        &self,
        bytes: *const [u8],
        to: usize,
        tag: Tag,
    ) -> Result<Request<'_>, LibraryError> {
        let mut handle = sys::REQUEST_NULL;
        let (start, count) = (bytes.cast(), bytes.len() as sys::Count);
        let (to, tag, send) = (int(to), c_int::from(tag.0), self.table().MPI_Isend_c);
        // SAFETY: the caller promises that the bytes stay.
        let status = unsafe { send(start, count, sys::BYTE, to, tag, self.handle, &mut handle) };
        self.table().check("MPI_Isend_c", status)?;
        Ok(Request { comm: self, handle })
    }

    /// # Safety
    /// Nobody else touches the `num_bytes` from `start` until the request is done.
    unsafe fn post_receive(
        &self,
        (start, num_bytes): (*mut u8, usize),
        from: usize,
        tag: Tag,
    ) -> Result<Request<'_>, LibraryError> {
        let mut handle = sys::REQUEST_NULL;
        let count = num_bytes as sys::Count;
        let (from, tag, receive) = (int(from), c_int::from(tag.0), self.table().MPI_Irecv_c);
        // SAFETY: the caller promises exclusive memory of that size.
        let status =
            unsafe { receive(start.cast(), count, sys::BYTE, from, tag, self.handle, &mut handle) };
        self.table().check("MPI_Irecv_c", status)?;
        Ok(Request { comm: self, handle })
    }
}

impl Request<'_> {
    /// Lets the library work, and looks whether the operation is done.
    fn poll(&mut self) -> Result<bool, LibraryError> {
        if self.is_done() {
            return Ok(true);
        }
        let mut flag = 0;
        let table = self.comm.table();
        // SAFETY: the request is the library's own, and both places are ours to fill.
        let status = unsafe { (table.MPI_Test)(&mut self.handle, &mut flag, sys::STATUS_IGNORE) };
        table.check("MPI_Test", status)?;
        Ok(flag != 0)
    }

    /// A request that is done is null.
    fn is_done(&self) -> bool {
        self.handle == sys::REQUEST_NULL
    }
}

impl Sending<'_> {
    /// Lets the library work, and looks whether the bytes are gone.
    pub(in crate::mpi) fn poll(&mut self) -> Result<bool, LibraryError> {
        self.request.poll()
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        if self.request.is_done() {
            // SAFETY: dropped here once, and never used again.
            unsafe { ManuallyDrop::drop(&mut self.source) };
        }
    }
}

impl<'a> Landing<'a> {
    /// Nothing has arrived in `buffer` yet.
    pub(in crate::mpi) fn new(comm: &'a Comm, mut buffer: Buffer) -> Self {
        let num_bytes = buffer.len_bytes();
        let start = buffer.as_mut_slice().as_mut_ptr();
        Self {
            comm,
            buffer: ManuallyDrop::new(buffer),
            start,
            num_bytes,
            filled: 0,
            posted: 0,
            incoming: VecDeque::new(),
            outgoing: VecDeque::new(),
        }
    }

    /// Starts receiving the next `num_bytes` from rank `from`.
    pub(in crate::mpi) fn receive(
        &mut self,
        num_bytes: usize,
        from: usize,
        tag: Tag,
    ) -> Result<(), LibraryError> {
        let range = self.posted..self.posted + num_bytes;
        assert!(range.end <= self.num_bytes, "more would arrive than there is room for");
        // SAFETY: the range lies within the buffer.
        let place = unsafe { self.start.add(range.start) };
        // SAFETY: by the invariant nobody forms a reference to posted bytes before they are filled,
        // and the buffer is kept until all requests are done, or for ever.
        let request = unsafe { self.comm.post_receive((place, num_bytes), from, tag) }?;
        self.posted = range.end;
        self.incoming.push_back((range, request));
        Ok(())
    }

    /// Writes the next piece itself; it arrives in its turn.
    pub(in crate::mpi) fn fill(&mut self, bytes: &[u8]) {
        let range = self.posted..self.posted + bytes.len();
        assert!(range.end <= self.num_bytes, "more would arrive than there is room for");
        // SAFETY: the range lies within the buffer.
        let place = unsafe { self.start.add(range.start) };
        // SAFETY: the range is nobody's yet, and `bytes` cannot overlap it, as nobody else has a
        // reference into the buffer beyond `filled`.
        unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.posted = range.end;
        self.incoming.push_back((range, Request { comm: self.comm, handle: sys::REQUEST_NULL }));
    }

    /// Lets the library work, and returns the next piece if it has arrived.
    pub(in crate::mpi) fn poll(&mut self) -> Result<Option<Range<usize>>, LibraryError> {
        let Some((range, request)) = self.incoming.front_mut() else { return Ok(None) };
        if !request.poll()? {
            return Ok(None);
        }
        let range = range.clone();
        self.incoming.pop_front();
        self.filled = range.end;
        Ok(Some(range))
    }

    /// Starts passing a piece that has arrived on to rank `to`.
    pub(in crate::mpi) fn pass_on(
        &mut self,
        range: Range<usize>,
        to: usize,
        tag: Tag,
    ) -> Result<(), LibraryError> {
        assert!(range.start <= range.end && range.end <= self.filled, "the piece has arrived");
        // SAFETY: the range lies within the buffer.
        let place = unsafe { self.start.add(range.start) };
        let bytes = std::ptr::slice_from_raw_parts(place.cast_const(), range.len());
        // SAFETY: by the invariant filled bytes are only read, and the buffer is kept until all
        // requests are done, or for ever.
        let request = unsafe { self.comm.post_send(bytes, to, tag) }?;
        self.outgoing.push_back(request);
        Ok(())
    }

    /// Lets the library work, and returns how many pieces are still being passed on.
    pub(in crate::mpi) fn poll_outgoing(&mut self) -> Result<usize, LibraryError> {
        while let Some(request) = self.outgoing.front_mut() {
            if !request.poll()? {
                break;
            }
            self.outgoing.pop_front();
        }
        Ok(self.outgoing.len())
    }

    /// The buffer, once everything has arrived and been passed on.
    pub(in crate::mpi) fn finish(mut self) -> Buffer {
        assert!(self.is_at_rest(), "transfers are in flight");
        // SAFETY: taken once; `self` is forgotten below.
        let buffer = unsafe { ManuallyDrop::take(&mut self.buffer) };
        // The queues are empty and hold no heap memory worth keeping; the rest is plain data.
        drop((mem::take(&mut self.incoming), mem::take(&mut self.outgoing)));
        mem::forget(self);
        buffer
    }

    fn is_at_rest(&self) -> bool {
        self.incoming.is_empty() && self.outgoing.is_empty()
    }
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        if self.is_at_rest() {
            // SAFETY: dropped here once, and never used again.
            unsafe { ManuallyDrop::drop(&mut self.buffer) };
        }
    }
}
