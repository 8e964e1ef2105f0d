//! A communicator: its ranks, its sub-communicators, and the library's own collectives.

use super::Library;
use crate::{
    LibraryError,
    mpi::sys::{self, Table},
};
use bytemuck::Pod;
use dmuon_core::Rank;
use std::ffi::c_int;

/// A communicator of this engine's own; errors come back as statuses.
#[derive(Debug)]
pub(in crate::mpi) struct Comm {
    pub(super) library: Library,
    pub(super) handle: sys::Comm,
    rank: usize,
    size: usize,
}

/// An element that the library can sum.
pub(in crate::mpi) trait Summand: Pod {
    /// The library's name for it.
    const DATATYPE: Datatype;
}

/// A datatype as a constant that only this room can read.
#[derive(Clone, Copy, Debug)]
pub(in crate::mpi) struct Datatype(sys::Datatype);

impl Summand for f32 {
    const DATATYPE: Datatype = Datatype(sys::FLOAT);
}

impl Summand for f64 {
    const DATATYPE: Datatype = Datatype(sys::DOUBLE);
}

impl Comm {
    /// A copy of the world, so that its messages meet nobody else's.
    ///
    /// # Collective
    /// Every process.
    pub(in crate::mpi) fn world(library: &Library) -> Result<Self, LibraryError> {
        let mut handle = sys::COMM_NULL;
        // SAFETY: the world exists while MPI is initialized, and the handle is ours to fill.
        let status = unsafe { (library.table.MPI_Comm_dup)(sys::COMM_WORLD, &mut handle) };
        library.table.check("MPI_Comm_dup", status)?;
        Self::adopt(library, handle)
    }

    /// Ranks of the same color, by key.
    ///
    /// # Collective
    /// Every rank.
    pub(in crate::mpi) fn split(&self, color: usize, key: usize) -> Result<Self, LibraryError> {
        let mut handle = sys::COMM_NULL;
        let split = self.table().MPI_Comm_split;
        // SAFETY: the communicator is alive, as it is never freed, and the handle ours to fill.
        let status = unsafe { split(self.handle, int(color), int(key), &mut handle) };
        self.table().check("MPI_Comm_split", status)?;
        Self::adopt(&self.library, handle)
    }

    /// Takes a new communicator over. It is never freed, which would be collective: groups are few.
    fn adopt(library: &Library, handle: sys::Comm) -> Result<Self, LibraryError> {
        let table = &library.table;
        // SAFETY: the handle is fresh from the library.
        let status = unsafe { (table.MPI_Comm_set_errhandler)(handle, sys::ERRORS_RETURN) };
        table.check("MPI_Comm_set_errhandler", status)?;
        let (mut rank, mut size) = (0, 0);
        // SAFETY: as above, with an integer to fill.
        let status = unsafe { (table.MPI_Comm_rank)(handle, &mut rank) };
        table.check("MPI_Comm_rank", status)?;
        // SAFETY: as above.
        let status = unsafe { (table.MPI_Comm_size)(handle, &mut size) };
        table.check("MPI_Comm_size", status)?;
        Ok(Self { library: library.clone(), handle, rank: rank as usize, size: size as usize })
    }

    /// This rank in the communicator.
    pub(in crate::mpi) fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks it has.
    pub(in crate::mpi) fn size(&self) -> usize {
        self.size
    }

    /// This rank, of a communicator of the whole world.
    pub(in crate::mpi) fn world_rank(&self) -> Rank {
        Rank(self.rank)
    }

    /// Blocks until every rank is here.
    pub(in crate::mpi) fn barrier(&self) -> Result<(), LibraryError> {
        // SAFETY: the communicator is alive.
        let status = unsafe { (self.table().MPI_Barrier)(self.handle) };
        self.table().check("MPI_Barrier", status)
    }

    /// Blocks until every other rank has this rank's `buffer`.
    pub(in crate::mpi) fn broadcast_from_here(&self, buffer: &[u8]) -> Result<(), LibraryError> {
        let (start, count) = (buffer.as_ptr().cast_mut().cast(), buffer.len() as sys::Count);
        let (root, broadcast) = (int(self.rank), self.table().MPI_Bcast_c);
        // SAFETY: `buffer` is `count` bytes, borrowed until the call returns, and only read, as
        // this rank is the root.
        let status = unsafe { broadcast(start, count, sys::BYTE, root, self.handle) };
        self.table().check("MPI_Bcast_c", status)
    }

    /// Blocks until `buffer` is that of the `root`, another rank.
    pub(in crate::mpi) fn broadcast_from(
        &self,
        root: usize,
        buffer: &mut [u8],
    ) -> Result<(), LibraryError> {
        let (start, count) = (buffer.as_mut_ptr().cast(), buffer.len() as sys::Count);
        let broadcast = self.table().MPI_Bcast_c;
        // SAFETY: `buffer` is `count` bytes, borrowed until the call returns.
        let status = unsafe { broadcast(start, count, sys::BYTE, int(root), self.handle) };
        self.table().check("MPI_Bcast_c", status)
    }

    /// Blocks until every rank's `input` has been summed into the root's `output`; others have none.
    pub(in crate::mpi) fn reduce<T: Summand>(
        &self,
        input: &[T],
        output: &mut [T],
        root: usize,
    ) -> Result<(), LibraryError> {
        assert!(self.rank != root || output.len() == input.len(), "the root has room for the sum");
        let (from, to) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
        let (count, datatype) = (input.len() as sys::Count, T::DATATYPE.0);
        let reduce = self.table().MPI_Reduce_c;
        // SAFETY: both slices outlive the call; only the root's output is written, `count` elements.
        let status = unsafe { reduce(from, to, count, datatype, sys::SUM, int(root), self.handle) };
        self.table().check("MPI_Reduce_c", status)
    }

    /// Blocks until `output` is the sum of every rank's `input`.
    pub(in crate::mpi) fn all_reduce<T: Summand>(
        &self,
        input: &[T],
        output: &mut [T],
    ) -> Result<(), LibraryError> {
        assert_eq!(input.len(), output.len(), "the sum has the shape of the input");
        let (from, to) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
        let (count, datatype) = (input.len() as sys::Count, T::DATATYPE.0);
        let all_reduce = self.table().MPI_Allreduce_c;
        // SAFETY: both slices have `count` elements and outlive the call.
        let status = unsafe { all_reduce(from, to, count, datatype, sys::SUM, self.handle) };
        self.table().check("MPI_Allreduce_c", status)
    }

    /// Blocks until `output` is this rank's part of the sum of every rank's `input`.
    pub(in crate::mpi) fn reduce_scatter<T: Summand>(
        &self,
        input: &[T],
        output: &mut [T],
    ) -> Result<(), LibraryError> {
        assert_eq!(input.len(), output.len() * self.size, "one part for each rank");
        let (from, to) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
        let (count, datatype) = (output.len() as sys::Count, T::DATATYPE.0);
        let reduce_scatter = self.table().MPI_Reduce_scatter_block_c;
        // SAFETY: `input` has `count` elements for each rank, `output` has `count`; both outlive
        // the call.
        let status = unsafe { reduce_scatter(from, to, count, datatype, sys::SUM, self.handle) };
        self.table().check("MPI_Reduce_scatter_block_c", status)
    }

    /// Blocks until `output` is every rank's `input`, in order.
    pub(in crate::mpi) fn all_gather(
        &self,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<(), LibraryError> {
        assert_eq!(output.len(), input.len() * self.size, "room for every rank's input");
        let (from, to) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
        let (count, byte) = (input.len() as sys::Count, sys::BYTE);
        let all_gather = self.table().MPI_Allgather_c;
        // SAFETY: `output` has `count` bytes for each rank; both outlive the call.
        let status = unsafe { all_gather(from, count, byte, to, count, byte, self.handle) };
        self.table().check("MPI_Allgather_c", status)
    }

    /// Blocks until `output` is this rank's part of every rank's `input`, in order.
    pub(in crate::mpi) fn all_to_all(
        &self,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<(), LibraryError> {
        assert_eq!(output.len(), input.len(), "as much comes as goes");
        assert_eq!(input.len() % self.size, 0, "one part for each rank");
        let (from, to) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
        let (count, byte) = ((input.len() / self.size) as sys::Count, sys::BYTE);
        let all_to_all = self.table().MPI_Alltoall_c;
        // SAFETY: both have `count` bytes for each rank and outlive the call.
        let status = unsafe { all_to_all(from, count, byte, to, count, byte, self.handle) };
        self.table().check("MPI_Alltoall_c", status)
    }

    pub(super) fn table(&self) -> &Table {
        &self.library.table
    }
}

/// A rank, color or key as the library takes it; there are never two billion of them.
pub(super) fn int(number: usize) -> c_int {
    c_int::try_from(number).expect("ranks, colors and keys are small")
}
