//! This process's device: the driver found, the device chosen, its context held.

use crate::{
    Claim, LibraryError, dylib,
    nccl::{error::NcclJoinError, result::refused},
};
use cudarc::driver::{CudaContext, DriverError, sys::CUresult};
use libloading::os::unix::{RTLD_LOCAL, RTLD_NOW};
use std::{mem, path::PathBuf, sync::Arc};

/// Names of the driver's library, in the order in which `cudarc` tries them.
const NAMES: [&str; 2] = ["libcuda.so", "libcuda.so.1"];

/// What `cudarc` calls for this room, and panics without.
const FUNCTIONS: [&str; 21] = [
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

/// A device, through its primary context, which Burn's tensors on it share.
#[derive(Clone, Debug)]
pub(in crate::nccl) struct Device {
    pub(super) context: Arc<CudaContext>,
}

impl Device {
    /// Opens the device of the process's local rank.
    ///
    /// # Errors
    /// There is no driver, or too few devices, or nobody knows the local rank.
    pub(in crate::nccl) fn open(claim: &Claim) -> Result<Self, NcclJoinError> {
        find_driver()?;
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
        Ok(Self { context })
    }

    /// Makes the device that of the calling thread, as the library looks there.
    pub(super) fn bind(&self) -> Result<(), LibraryError> {
        self.context.bind_to_thread().map_err(refused("cuCtxSetCurrent"))
    }
}

/// Loads the driver, for good: `cudarc` would panic without it, or without a function of it.
fn find_driver() -> Result<(), NcclJoinError> {
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
    mem::forget(driver);
    complaint.map_or(Ok(()), |complaint| Err(NcclJoinError::NoDriver { tried: vec![complaint] }))
}
