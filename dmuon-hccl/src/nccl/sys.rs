//! NCCL's C interface as far as dmuon calls it: types, constants, and functions found at run time.
//! Values are those of the public header `nccl.h`, unchanged from 2.18 to 2.32. The driver's is
//! `cudarc`'s, but for one function.

use crate::dylib::table;
use cudarc::driver::sys::{CUcontext, CUevent, CUresult};
use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    ptr::{null, null_mut},
};

/// `cuCtxRecordEvent`, in drivers since CUDA 12.5. `cudarc` has it only where a build finds no older
/// toolkit.
pub(super) type CtxRecordEvent = unsafe extern "C" fn(CUcontext, CUevent) -> CUresult;

/// `ncclResult_t`.
pub(super) type Status = c_int;

/// `cudaStream_t`, which is the driver's `CUstream`.
pub(super) type Stream = *mut c_void;

/// `ncclDataType_t`.
pub(super) type Datatype = c_int;

/// `ncclRedOp_t`.
pub(super) type RedOp = c_int;

/// `ncclComm_t`: a communicator of the library's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Comm(*mut c_void);

// SAFETY: the library dereferences it on any thread, one call at a time, which is whoever calls' to
// keep; here nobody does.
unsafe impl Send for Comm {}

impl Comm {
    /// `NCCL_COMM_NULL`.
    pub(super) const NULL: Self = Self(null_mut());
}

/// `ncclUniqueId`: what the ranks of a new world must have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct UniqueId(pub(super) [u8; UNIQUE_ID_BYTES]);

/// `ncclConfig_t` as it was in [`CONFIG_VERSION`]. Newer libraries read as many bytes as `size`
/// says, and take fields for undefined that came after `version`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    /// Padding until 2.26, which reads it whatever the version.
    traffic_class: c_int,
}

impl Config {
    /// Calls return before their work is done.
    pub(super) const NONBLOCKING: Self = Self {
        size: size_of::<Self>(),
        magic: 0xcafe_beef,
        version: CONFIG_VERSION,
        blocking: 0,
        cga_cluster_size: UNDEFINED,
        min_ctas: UNDEFINED,
        max_ctas: UNDEFINED,
        net_name: null(),
        split_share: UNDEFINED,
        traffic_class: UNDEFINED,
    };
}

/// A field of the configuration that the library decides.
const UNDEFINED: c_int = c_int::MIN;

/// The version of the library that the configuration's layout belongs to, and the oldest one that
/// has all the functions below: 2.18.1.
pub(super) const CONFIG_VERSION: c_uint = 21_801;

/// Versions from here on are not NCCL 2.
pub(super) const NEXT_VERSION: c_uint = 30_000;

pub(super) const UNIQUE_ID_BYTES: usize = 128;
pub(super) const SUCCESS: Status = 0;
pub(super) const IN_PROGRESS: Status = 7;
pub(super) const UINT8: Datatype = 1;
pub(super) const FLOAT32: Datatype = 7;
pub(super) const FLOAT64: Datatype = 8;
pub(super) const SUM: RedOp = 0;

table! {
    /// The functions, by the header's names.
    Table {
        fn ncclGetVersion(*mut c_int) -> Status;
        fn ncclGetUniqueId(*mut UniqueId) -> Status;
        fn ncclGetErrorString(Status) -> *const c_char;
        fn ncclGetLastError(Comm) -> *const c_char;
        fn ncclCommInitRankConfig(*mut Comm, c_int, UniqueId, c_int, *mut Config) -> Status;
        fn ncclCommSplit(Comm, c_int, c_int, *mut Comm, *mut Config) -> Status;
        fn ncclCommGetAsyncError(Comm, *mut Status) -> Status;
        fn ncclCommFinalize(Comm) -> Status;
        fn ncclCommDestroy(Comm) -> Status;
        fn ncclCommAbort(Comm) -> Status;
        fn ncclBroadcast(
            *const c_void, *mut c_void, usize, Datatype, c_int, Comm, Stream
        ) -> Status;
        fn ncclReduce(
            *const c_void, *mut c_void, usize, Datatype, RedOp, c_int, Comm, Stream
        ) -> Status;
        fn ncclAllReduce(
            *const c_void, *mut c_void, usize, Datatype, RedOp, Comm, Stream
        ) -> Status;
        fn ncclAllGather(*const c_void, *mut c_void, usize, Datatype, Comm, Stream) -> Status;
        fn ncclReduceScatter(
            *const c_void, *mut c_void, usize, Datatype, RedOp, Comm, Stream
        ) -> Status;
        fn ncclSend(*const c_void, usize, Datatype, c_int, Comm, Stream) -> Status;
        fn ncclRecv(*mut c_void, usize, Datatype, c_int, Comm, Stream) -> Status;
        fn ncclGroupStart() -> Status;
        fn ncclGroupEnd() -> Status;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn configuration_has_the_layout_of_the_header() {
        assert_eq!((size_of::<Config>(), align_of::<Config>()), (48, 8));
        assert_eq!(offset_of!(Config, magic), 8);
        assert_eq!(offset_of!(Config, version), 12);
        assert_eq!(offset_of!(Config, blocking), 16);
        assert_eq!(offset_of!(Config, net_name), 32);
        assert_eq!(offset_of!(Config, split_share), 40);
        assert_eq!(offset_of!(Config, traffic_class), 44);
    }
}
