//! Fences: what was on the device when a collective was started on its memory.

use super::Device;
use crate::{
    LibraryError,
    nccl::{result::refused, sys::CtxRecordEvent},
    processes::Fencing,
};
use cudarc::driver::{CudaContext, CudaEvent};
use dmuon_core::Memory;
use std::sync::Arc;

/// Makes fences on a device.
///
/// A fence is recorded when its collective is started, before the collective asks for its turn. So
/// it may stand behind other collectives of this process, but only behind those whose turns came
/// earlier, on all ranks: waits on devices have no cycles.
#[derive(Debug)]
pub(in crate::nccl) struct CudaFencing {
    context: Arc<CudaContext>,
    record: CtxRecordEvent,
}

/// Everything that was in the device's primary context when this was made, on whatever stream.
#[derive(Debug)]
pub(in crate::nccl) struct Fence(pub(super) CudaEvent);

impl Device {
    /// Makes fences, unless the driver is too old for that.
    pub(in crate::nccl) fn fencing(&self) -> Option<CudaFencing> {
        Some(CudaFencing { context: self.context.clone(), record: self.record? })
    }
}

impl Fencing<Fence> for CudaFencing {
    fn memory(&self) -> Memory {
        Memory::HostOrCuda { ordinal: self.context.ordinal() }
    }

    fn fence(&self) -> Result<Fence, LibraryError> {
        let event = self.context.new_event(None).map_err(refused("cuEventCreate"))?;
        // SAFETY: context and event are alive, and the event was made in that context.
        let status = unsafe { (self.record)(self.context.cu_ctx(), event.cu_event()) };
        status.result().map_err(refused("cuCtxRecordEvent"))?;
        Ok(Fence(event))
    }
}
