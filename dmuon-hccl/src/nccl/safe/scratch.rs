//! A stream, and memory on the device that is only used in the order of that stream.

use super::Device;
use crate::{LibraryError, nccl::result::refused};
use cudarc::driver::{CudaEvent, CudaSlice, CudaStream, DevicePtr, DevicePtrMut};
use std::{
    ffi::c_void,
    ptr::{with_exposed_provenance, with_exposed_provenance_mut},
    sync::Arc,
};

/// Device memory grows in steps of so many bytes.
const STEP_BYTES: usize = 64 << 10;

/// A stream with room for what goes out and for what comes in.
///
/// Invariant: both rooms belong to the stream and are freed in its order, so what was put on the
/// stream may use them until it is done, whatever becomes of this.
#[derive(Debug)]
pub(in crate::nccl) struct Scratch {
    outgoing: Option<CudaSlice<u8>>,
    incoming: Option<CudaSlice<u8>>,
    mark: CudaEvent,
    stream: Arc<CudaStream>,
}

impl Scratch {
    /// A new stream of the device, which waits for no other, without memory yet.
    pub(in crate::nccl) fn new(device: &Device) -> Result<Self, LibraryError> {
        let stream = device.context.new_stream().map_err(refused("cuStreamCreate"))?;
        let mark = device.context.new_event(None).map_err(refused("cuEventCreate"))?;
        Ok(Self { outgoing: None, incoming: None, mark, stream })
    }

    /// Copies `bytes` to the device, and waits for that alone: there must be nothing on the stream.
    pub(in crate::nccl) fn upload(&mut self, bytes: &[u8]) -> Result<(), LibraryError> {
        let room = make_room(&mut self.outgoing, &self.stream, bytes.len())?;
        self.stream.memcpy_htod(bytes, room).map_err(refused("cuMemcpyHtoDAsync"))?;
        // The driver may still read `bytes` until then.
        self.stream.synchronize().map_err(refused("cuStreamSynchronize"))
    }

    /// Copies what came in to `bytes`. The stream must be past the [mark](Self::mark), else this
    /// waits for other ranks.
    pub(in crate::nccl) fn download(&mut self, bytes: &mut [u8]) -> Result<(), LibraryError> {
        let room = make_room(&mut self.incoming, &self.stream, bytes.len())?;
        let found = room.slice(..bytes.len());
        self.stream.memcpy_dtoh(&found, bytes).map_err(refused("cuMemcpyDtoHAsync"))?;
        self.stream.synchronize().map_err(refused("cuStreamSynchronize"))
    }

    /// Marks what is on the stream so far.
    pub(in crate::nccl) fn mark(&self) -> Result<(), LibraryError> {
        self.mark.record(&self.stream).map_err(refused("cuEventRecord"))
    }

    /// Whether the stream is past the mark.
    pub(in crate::nccl) fn is_past_mark(&self) -> Result<bool, LibraryError> {
        self.mark.try_is_complete().map_err(refused("cuEventQuery"))
    }

    /// The first of `num_bytes` bytes of what goes out, room being made if need be.
    pub(super) fn outgoing(&mut self, num_bytes: usize) -> Result<*const c_void, LibraryError> {
        let room = make_room(&mut self.outgoing, &self.stream, num_bytes)?;
        Ok(with_exposed_provenance(room.device_ptr(&self.stream).0 as usize))
    }

    /// The first of `num_bytes` bytes of what comes in, room being made if need be.
    pub(super) fn incoming(&mut self, num_bytes: usize) -> Result<*mut c_void, LibraryError> {
        let room = make_room(&mut self.incoming, &self.stream, num_bytes)?;
        Ok(with_exposed_provenance_mut(room.device_ptr_mut(&self.stream).0 as usize))
    }

    pub(super) fn stream(&self) -> *mut c_void {
        self.stream.cu_stream().cast()
    }
}

/// The memory, replaced if it is smaller than `num_bytes`.
fn make_room<'a>(
    slot: &'a mut Option<CudaSlice<u8>>,
    stream: &Arc<CudaStream>,
    num_bytes: usize,
) -> Result<&'a mut CudaSlice<u8>, LibraryError> {
    let fits = |room: &CudaSlice<u8>| room.num_bytes() >= num_bytes;
    // The old one goes first: there may not be memory for both.
    let room = match slot.take().filter(fits) {
        Some(room) => room,
        None => {
            let num_bytes = num_bytes.max(1).next_multiple_of(STEP_BYTES);
            stream.alloc_zeros(num_bytes).map_err(refused("cuMemAllocAsync"))?
        }
    };
    Ok(slot.insert(room))
}
