//! The MPI-5 standard ABI as far as dmuon calls it: handles, constants, and functions found at run
//! time. Values are those of the standard's `mpi_abi.h`.

use crate::dylib::table;
use std::{
    ffi::{c_char, c_int, c_void},
    ptr::without_provenance_mut,
};

/// Counts in the large-count functions.
pub(super) type Count = i64;

/// Declares handle types: opaque pointers whose predefined values are small numbers.
macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(transparent)]
        pub(super) struct $name(*mut c_void);

        // SAFETY: a handle is a name that the library looks up; it is never dereferenced here, and
        // with MPI_THREAD_MULTIPLE every thread may use it.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl $name {
            const fn predefined(value: usize) -> Self {
                Self(without_provenance_mut(value))
            }
        }
    )*};
}

handles! {
    /// `MPI_Comm`.
    Comm;
    /// `MPI_Datatype`.
    Datatype;
    /// `MPI_Op`.
    Op;
    /// `MPI_Request`.
    Request;
    /// `MPI_Errhandler`.
    Errhandler;
}

pub(super) const COMM_NULL: Comm = Comm::predefined(0x100);
pub(super) const COMM_WORLD: Comm = Comm::predefined(0x101);
pub(super) const REQUEST_NULL: Request = Request::predefined(0x180);
pub(super) const SUM: Op = Op::predefined(0x21);
pub(super) const FLOAT: Datatype = Datatype::predefined(0x210);
pub(super) const DOUBLE: Datatype = Datatype::predefined(0x214);
pub(super) const BYTE: Datatype = Datatype::predefined(0x247);
pub(super) const ERRORS_RETURN: Errhandler = Errhandler::predefined(0x143);
pub(super) const THREAD_MULTIPLE: c_int = 4096;
pub(super) const SUCCESS: c_int = 0;
pub(super) const MAX_ERROR_STRING: usize = 512;
pub(super) const MAX_PROCESSOR_NAME: usize = 256;
pub(super) const STATUS_IGNORE: *mut c_void = std::ptr::null_mut();

/// The version of the ABI that the constants above belong to.
pub(super) const ABI_MAJOR: c_int = 1;

unsafe extern "C" {
    /// Has `callback` called when the process exits normally.
    pub(super) safe fn atexit(callback: extern "C" fn()) -> c_int;
}

table! {
    /// The functions, by the standard's names; each returns a status.
    Table {
        fn MPI_Abi_get_version(*mut c_int, *mut c_int) -> c_int;
        fn MPI_Initialized(*mut c_int) -> c_int;
        fn MPI_Init_thread(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int;
        fn MPI_Finalize() -> c_int;
        fn MPI_Get_processor_name(*mut c_char, *mut c_int) -> c_int;
        fn MPI_Error_string(c_int, *mut c_char, *mut c_int) -> c_int;
        fn MPI_Comm_rank(Comm, *mut c_int) -> c_int;
        fn MPI_Comm_size(Comm, *mut c_int) -> c_int;
        fn MPI_Comm_dup(Comm, *mut Comm) -> c_int;
        fn MPI_Comm_split(Comm, c_int, c_int, *mut Comm) -> c_int;
        fn MPI_Comm_set_errhandler(Comm, Errhandler) -> c_int;
        fn MPI_Isend_c(*const c_void, Count, Datatype, c_int, c_int, Comm, *mut Request) -> c_int;
        fn MPI_Irecv_c(*mut c_void, Count, Datatype, c_int, c_int, Comm, *mut Request) -> c_int;
        fn MPI_Test(*mut Request, *mut c_int, *mut c_void) -> c_int;
        fn MPI_Barrier(Comm) -> c_int;
        fn MPI_Bcast_c(*mut c_void, Count, Datatype, c_int, Comm) -> c_int;
        fn MPI_Reduce_c(*const c_void, *mut c_void, Count, Datatype, Op, c_int, Comm) -> c_int;
        fn MPI_Allreduce_c(*const c_void, *mut c_void, Count, Datatype, Op, Comm) -> c_int;
        fn MPI_Allgather_c(
            *const c_void, Count, Datatype, *mut c_void, Count, Datatype, Comm
        ) -> c_int;
        fn MPI_Alltoall_c(
            *const c_void, Count, Datatype, *mut c_void, Count, Datatype, Comm
        ) -> c_int;
        fn MPI_Reduce_scatter_block_c(
            *const c_void, *mut c_void, Count, Datatype, Op, Comm
        ) -> c_int;
    }
}
