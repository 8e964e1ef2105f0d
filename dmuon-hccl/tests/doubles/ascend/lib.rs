//! A test double of CANN's `libascendcl` and `libhccl` in one library, not the real ones: devices are
//! pieces of this process's memory, their streams are threads, and ranks may be threads, too.
//!
//! It is stricter than what it stands for: it refuses threads that have not entered a device, memory
//! that was not allocated, communicators that HCCL would not make, and two threads in one device's
//! library at once; and the first collective of a kind waits inside the call for the other ranks, as
//! connecting them does. Sums go by rank, so that nobody leans on an order that HCCL does not promise.
//! Faults are injected by `testdouble_*`, device by device.

mod acl;
mod collectives;
mod communicators;
mod device;
mod faults;
mod group;
mod memory;
mod messages;
mod stream;

/// `aclError` and `HcclResult`.
type Status = i32;

const SUCCESS: Status = 0;

/// Statuses of AscendCL.
mod acl_status {
    use super::Status;

    pub(crate) const REPEAT_INITIALIZE: Status = 100_002;
    pub(crate) const PARAM_INVALID: Status = 107_000;
    pub(crate) const INVALID_DEVICE: Status = 107_001;
    pub(crate) const CONTEXT_NULL: Status = 107_002;
    pub(crate) const STREAM_CONTEXT: Status = 107_003;
    pub(crate) const MEMORY_ALLOCATION: Status = 207_001;
    pub(crate) const STREAM_SYNC_TIMEOUT: Status = 507_046;
    pub(crate) const EXECUTION_TIMEOUT: Status = 507_048;
}

/// Statuses of HCCL.
mod hccl_status {
    use super::Status;

    pub(crate) const PARA: Status = 1;
    pub(crate) const PTR: Status = 2;
    pub(crate) const INTERNAL: Status = 4;
    pub(crate) const NOT_SUPPORT: Status = 5;
    pub(crate) const TIMEOUT: Status = 9;
    pub(crate) const OPEN_FILE_FAILURE: Status = 10;
    pub(crate) const NETWORK: Status = 19;
    pub(crate) const OUT_OF_MEMORY: Status = 24;
}
