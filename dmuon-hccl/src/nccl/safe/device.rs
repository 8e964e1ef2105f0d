//! This process's device: the driver found, the device chosen, its context held.

use crate::{
    Claim, LibraryError, dylib,
    nccl::{error::NcclJoinError, result::refused},
};
use cudarc::driver::{CudaContext, DriverError, sys::CUresult};
use libloading::os::unix::{RTLD_LOCAL, RTLD_NOW};
use std::{mem, path::PathBuf, sync::Arc};

/// Names of the driver's library. The second belongs to installations for developers.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

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

/// Loads the driver, for good: `cudarc` would panic without it, and looks for the same names.
fn find_driver() -> Result<(), NcclJoinError> {
    let candidates = NAMES.iter().map(PathBuf::from).collect();
    // SAFETY: the driver's library is trusted.
    let found = unsafe { dylib::open(candidates, RTLD_NOW | RTLD_LOCAL) };
    found.map(mem::forget).map_err(|tried| NcclJoinError::NoDriver { tried })
}
