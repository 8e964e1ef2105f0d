//! This process's device: the driver found, the device chosen, its context held.

use crate::{
    Claim, LibraryError, dylib,
    nccl::{error::NcclJoinError, result::refused, sys::CtxRecordEvent},
};
use cudarc::driver::{CudaContext, DriverError, sys::CUresult};
use libloading::os::unix::{RTLD_LOCAL, RTLD_NOW};
use std::{mem, path::PathBuf, sync::Arc};

/// Names of the driver's library, in the order in which `cudarc` tries them.
const NAMES: [&str; 2] = ["libcuda.so", "libcuda.so.1"];

/// What `cudarc` calls for this room, and panics without.
const FUNCTIONS: [&str; 22] = [
    "cuInit",
    "cuGetErrorString",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamDestroy_v2",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventDestroy_v2",
    "cuMemAllocAsync",
    "cuMemFreeAsync",
    "cuMemsetD8Async",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
];

/// What records everything that is in a context, by the name that the driver has for it.
const RECORD: &[u8] = b"cuCtxRecordEvent";

/// A device, through its primary context, which Burn's tensors on it share.
#[derive(Clone, Debug)]
pub(in crate::nccl) struct Device {
    pub(super) context: Arc<CudaContext>,
    /// None in drivers before CUDA 12.5.
    pub(super) record: Option<CtxRecordEvent>,
}

impl Device {
    /// Opens the device of the process's local rank.
    ///
    /// # Errors
    /// There is no driver, or too few devices, or nobody knows the local rank.
    pub(in crate::nccl) fn open(claim: &Claim) -> Result<Self, NcclJoinError> {
        let record = find_driver()?;
        let num_devices = match CudaContext::device_count() {
            Err(DriverError(CUresult::CUDA_ERROR_NO_DEVICE)) => 0,
            counted => counted.map_err(refused("cuDeviceGetCount"))?,
        };
        let num_devices = usize::try_from(num_devices).unwrap_or(0);
        let local_rank = claim.local_rank.ok_or(NcclJoinError::NoLocalRank { claim: *claim })?;
        if local_rank >= num_devices {
            return Err(NcclJoinError::NoDevice { claim: *claim, num_devices });
        }
        let context = CudaContext::new(local_rank).map_err(refused("cuDevicePrimaryCtxRetain"))?;
        // SAFETY: every buffer of this room stays on the stream that it was made on, which orders
        // what happens to it.
        unsafe { context.disable_event_tracking() };
        if record.is_none() {
            tracing::info!("the driver is older than CUDA 12.5: buffers go through host memory");
        }
        Ok(Self { context, record })
    }

    /// Makes the device that of the calling thread, as the library looks there.
    pub(super) fn bind(&self) -> Result<(), LibraryError> {
        self.context.bind_to_thread().map_err(refused("cuCtxSetCurrent"))
    }
}

/// Loads the driver, for good: `cudarc` would panic without it, or without a function of it. Returns
/// what newer ones have.
fn find_driver() -> Result<Option<CtxRecordEvent>, NcclJoinError> {
    let candidates = NAMES.iter().map(PathBuf::from).collect();
    // SAFETY: the driver's library is trusted.
    let found = unsafe { dylib::open(candidates, RTLD_NOW | RTLD_LOCAL) };
    let (driver, path) = found.map_err(|tried| NcclJoinError::NoDriver { tried })?;
    let lacks = |name: &&&str| {
        // SAFETY: the symbol is only looked for.
        unsafe { driver.get::<*const ()>(name.as_bytes()) }.is_err()
    };
    let missing = FUNCTIONS.iter().find(lacks);
    let complaint = missing.map(|name| format!("{} (it lacks {name})", path.display()));
    // SAFETY: the driver has this signature for this name, and is never unloaded.
    let record = unsafe { driver.get::<CtxRecordEvent>(RECORD) }.ok().map(|record| *record);
    mem::forget(driver);
    match complaint {
        Some(complaint) => Err(NcclJoinError::NoDriver { tried: vec![complaint] }),
        None => Ok(record),
    }
}
