//! The C interfaces of AscendCL and HCCL as far as dmuon calls them: handles, constants, and functions
//! found at run time. Values are those of CANN's public headers `acl_rt.h`, `hccl.h` and
//! `hccl_types.h`, unchanged from CANN 8.0 on.

use crate::dylib::table;
use std::{
    ffi::{c_char, c_int, c_void},
    ptr::null_mut,
};

/// `aclError` and `HcclResult`; zero is success for both.
pub(super) type Status = c_int;

/// `HcclDataType`.
pub(super) type Datatype = c_int;

/// `HcclReduceOp`.
pub(super) type ReduceOp = c_int;

/// Declares handle types: pointers that only the library follows.
macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(transparent)]
        pub(super) struct $name(*mut c_void);

        // SAFETY: only the library follows the pointer, on any thread that has entered the device's
        // context. Calls that make, use or destroy communicators come one at a time, which is for
        // the callers to keep. `HcclGetCommAsyncError` alone may be called beside them, on a
        // communicator that is alive: it reads a status and is there for threads that watch others
        // which are inside the library.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl $name {
            pub(super) const NULL: Self = Self(null_mut());
        }
    )*};
}

handles! {
    /// `aclrtContext`.
    Context;
    /// `aclrtStream`.
    Stream;
    /// `HcclComm`.
    Comm;
}

/// `HcclRootInfo`: what the ranks of a new world must have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct RootInfo(pub(super) [u8; ROOT_INFO_BYTES]);

/// `HcclCommConfig` as it was in version 2. Libraries read as many bytes as `size` says, and take the
/// fields of later versions for unset.
#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct CommConfig {
    size: usize,
    magic: u32,
    version: u32,
    reserved: u64,
    buffer_mib: u32,
    deterministic: u32,
    /// Empty: the library makes one of the world's name and the new communicator's id.
    name: [c_char; COMM_NAME_BYTES],
}

impl CommConfig {
    /// A configuration with buffers of so many MiB in each direction, and sums that are repeatable
    /// (1), also in their order (2), or neither (0).
    pub(super) const fn new(buffer_mib: u32, deterministic: u32) -> Self {
        Self {
            size: size_of::<Self>(),
            magic: 0xf0f0_f0f0,
            version: 2,
            reserved: 0,
            buffer_mib,
            deterministic,
            name: [0; COMM_NAME_BYTES],
        }
    }
}

const COMM_NAME_BYTES: usize = 128;

pub(super) const ROOT_INFO_BYTES: usize = 4108;
pub(super) const SUCCESS: Status = 0;

/// `ACL_ERROR_REPEAT_INITIALIZE`: somebody else in this process was first.
pub(super) const REPEAT_INITIALIZE: Status = 100_002;

/// `HCCL_E_OOM`.
pub(super) const OUT_OF_MEMORY: Status = 24;

/// `ACL_STREAM_STATUS_COMPLETE`.
pub(super) const STREAM_COMPLETE: c_int = 0;

/// `ACL_MEM_MALLOC_HUGE_FIRST`.
pub(super) const HUGE_FIRST: c_int = 0;

/// `ACL_MEMCPY_HOST_TO_DEVICE`.
pub(super) const HOST_TO_DEVICE: c_int = 1;

/// `ACL_MEMCPY_DEVICE_TO_HOST`.
pub(super) const DEVICE_TO_HOST: c_int = 2;

/// What data is moved as: the one type that every collective of every product takes.
pub(super) const INT8: Datatype = 0;
pub(super) const FP32: Datatype = 4;
pub(super) const SUM: ReduceOp = 0;

unsafe extern "C" {
    /// Has `callback` called when the process exits normally.
    pub(super) safe fn atexit(callback: extern "C" fn()) -> c_int;
}

table! {
    /// AscendCL, which runs the device.
    Acl {
        fn aclInit(*const c_char) -> Status;
        fn aclFinalize() -> Status;
        fn aclGetRecentErrMsg() -> *const c_char;
        fn aclrtGetDeviceCount(*mut u32) -> Status;
        fn aclrtSetDevice(i32) -> Status;
        fn aclrtResetDevice(i32) -> Status;
        fn aclrtGetCurrentContext(*mut Context) -> Status;
        fn aclrtSetCurrentContext(Context) -> Status;
        fn aclrtCreateStream(*mut Stream) -> Status;
        fn aclrtDestroyStream(Stream) -> Status;
        fn aclrtStreamQuery(Stream, *mut c_int) -> Status;
        fn aclrtSynchronizeStreamWithTimeout(Stream, i32) -> Status;
        fn aclrtMalloc(*mut *mut c_void, usize, c_int) -> Status;
        fn aclrtFree(*mut c_void) -> Status;
        fn aclrtMemcpy(*mut c_void, usize, *const c_void, usize, c_int) -> Status;
    }
}

table! {
    /// Stopping what is on a stream, which older versions of AscendCL cannot.
    StreamAbort {
        fn aclrtStreamAbort(Stream) -> Status;
    }
}

table! {
    /// HCCL, which moves data between devices.
    Hccl {
        fn HcclGetRootInfo(*mut RootInfo) -> Status;
        fn HcclCommInitRootInfo(u32, *const RootInfo, u32, *mut Comm) -> Status;
        fn HcclCommInitClusterInfo(*const c_char, u32, *mut Comm) -> Status;
        fn HcclCreateSubCommConfig(
            *mut Comm, u32, *mut u32, u64, u32, *mut CommConfig, *mut Comm
        ) -> Status;
        fn HcclCommDestroy(Comm) -> Status;
        fn HcclGetCommAsyncError(Comm, *mut Status) -> Status;
        fn HcclGetErrorString(Status) -> *const c_char;
        fn HcclBroadcast(*mut c_void, u64, Datatype, u32, Comm, Stream) -> Status;
        fn HcclReduce(
            *mut c_void, *mut c_void, u64, Datatype, ReduceOp, u32, Comm, Stream
        ) -> Status;
        fn HcclAllReduce(
            *mut c_void, *mut c_void, u64, Datatype, ReduceOp, Comm, Stream
        ) -> Status;
        fn HcclReduceScatter(
            *mut c_void, *mut c_void, u64, Datatype, ReduceOp, Comm, Stream
        ) -> Status;
        fn HcclAllGather(*mut c_void, *mut c_void, u64, Datatype, Comm, Stream) -> Status;
        fn HcclAlltoAll(
            *const c_void, u64, Datatype, *const c_void, u64, Datatype, Comm, Stream
        ) -> Status;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn structures_have_the_layout_of_the_header() {
        assert_eq!((size_of::<RootInfo>(), align_of::<RootInfo>()), (4108, 1));
        assert_eq!(size_of::<CommConfig>(), 160);
        assert_eq!(offset_of!(CommConfig, magic), 8);
        assert_eq!(offset_of!(CommConfig, version), 12);
        assert_eq!(offset_of!(CommConfig, buffer_mib), 24);
        assert_eq!(offset_of!(CommConfig, deterministic), 28);
        assert_eq!(offset_of!(CommConfig, name), 32);
    }
}
