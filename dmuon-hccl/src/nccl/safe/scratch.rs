//! A stream, and memory on the device that is only used in the order of that stream: its own, or lent.

use super::{Device, Fence};
use crate::{LibraryError, nccl::result::refused};
use cudarc::driver::{CudaEvent, CudaSlice, CudaStream, DevicePtr, DevicePtrMut};
use dmuon_core::{DeviceBuffer, DeviceTransfer};
use std::{
    ffi::c_void,
    mem::ManuallyDrop,
    ptr::{with_exposed_provenance, with_exposed_provenance_mut},
    sync::Arc,
};

/// Device memory grows in steps of so many bytes.
const STEP_BYTES: usize = 64 << 10;

/// A stream with room for what goes out and for what comes in.
///
/// Invariant: both rooms belong to the stream and are freed in its order, and memory that is lent is
/// given back only when the stream is past it. So what was put on the stream may use them until it
/// is done, whatever becomes of this.
#[derive(Debug)]
pub(in crate::nccl) struct Scratch {
    outgoing: Option<CudaSlice<u8>>,
    incoming: Option<CudaSlice<u8>>,
    /// What is used in place of the two, by what is put on the stream next.
    lent: Option<ManuallyDrop<DeviceTransfer>>,
    /// What was lent to what is before the mark.
    in_use: Option<ManuallyDrop<DeviceTransfer>>,
    mark: CudaEvent,
    stream: Arc<CudaStream>,
}

impl Scratch {
    /// A new stream of the device, which waits for no other, without memory yet.
    pub(in crate::nccl) fn new(device: &Device) -> Result<Self, LibraryError> {
        let stream = device.context.new_stream().map_err(refused("cuStreamCreate"))?;
        let mark = device.context.new_event(None).map_err(refused("cuEventCreate"))?;
        Ok(Self { outgoing: None, incoming: None, lent: None, in_use: None, mark, stream })
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

    /// Lets the stream wait for `fence`, then use `transfer` in place of rooms of its own: until the
    /// [mark](Self::mark), past which it is given back. Nothing else is lent.
    pub(in crate::nccl) fn lend(
        &mut self,
        transfer: DeviceTransfer,
        fence: &Fence,
    ) -> Result<(), LibraryError> {
        assert!(self.lent.is_none() && self.in_use.is_none(), "there is one call at a time");
        self.stream.wait(&fence.0).map_err(refused("cuStreamWaitEvent"))?;
        self.lent = Some(ManuallyDrop::new(transfer));
        Ok(())
    }

    /// Marks what is on the stream so far.
    pub(in crate::nccl) fn mark(&mut self) -> Result<(), LibraryError> {
        self.mark.record(&self.stream).map_err(refused("cuEventRecord"))?;
        if let Some(lent) = self.lent.take() {
            self.in_use = Some(lent);
        }
        Ok(())
    }

    /// Whether the stream is past the mark.
    pub(in crate::nccl) fn is_past_mark(&mut self) -> Result<bool, LibraryError> {
        let is_past = self.mark.try_is_complete().map_err(refused("cuEventQuery"))?;
        if is_past {
            drop(self.in_use.take().map(ManuallyDrop::into_inner));
        }
        Ok(is_past)
    }

    /// Waits for what uses memory that is lent, if there is any, and gives it back. Without this, or
    /// if the driver cannot tell, it stays lent for ever.
    pub(in crate::nccl) fn settle(&mut self) -> Result<(), LibraryError> {
        if self.lent.is_some() || self.in_use.is_some() {
            self.stream.synchronize().map_err(refused("cuStreamSynchronize"))?;
            let lent = [self.lent.take(), self.in_use.take()];
            drop(lent.map(|lent| lent.map(ManuallyDrop::into_inner)));
        }
        Ok(())
    }

    /// The first of `num_bytes` bytes of what goes out, room being made if need be. If memory is lent
    /// and nothing goes out, it is what comes in.
    pub(super) fn outgoing(&mut self, num_bytes: usize) -> Result<*const c_void, LibraryError> {
        if let Some(lent) = &self.lent {
            let place = address(lent.input.as_ref().or(lent.output.as_ref()), num_bytes);
            return Ok(with_exposed_provenance(place));
        }
        let room = make_room(&mut self.outgoing, &self.stream, num_bytes)?;
        Ok(with_exposed_provenance(room.device_ptr(&self.stream).0 as usize))
    }

    /// The first of `num_bytes` bytes of what comes in, room being made if need be. If memory is lent
    /// and nothing comes in, it is what goes out, which stays as it is.
    pub(super) fn incoming(&mut self, num_bytes: usize) -> Result<*mut c_void, LibraryError> {
        if let Some(lent) = &self.lent {
            let place = address(lent.output.as_ref().or(lent.input.as_ref()), num_bytes);
            return Ok(with_exposed_provenance_mut(place));
        }
        let room = make_room(&mut self.incoming, &self.stream, num_bytes)?;
        Ok(with_exposed_provenance_mut(room.device_ptr_mut(&self.stream).0 as usize))
    }

    pub(super) fn stream(&self) -> *mut c_void {
        self.stream.cu_stream().cast()
    }
}

/// Where lent memory begins, which has at least `num_bytes` bytes.
fn address(buffer: Option<&DeviceBuffer>, num_bytes: usize) -> usize {
    let buffer = buffer.expect("every rank has a buffer in a collective that moves something");
    assert!(num_bytes <= buffer.len_bytes(), "buffers are checked when a collective is started");
    buffer.address() as usize
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
