//! What a device with memory of its own holds of a packed buffer. One tensor for each slot that was
//! asked for, kept as long as the buffer; its memory is what the slot's tensors are recognized by.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Cube, TensorMetadata};
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use burn_fusion::{FusionRuntime, FusionTensor};
use dmuon_core::Slot;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The tensors made of one packed buffer.
///
/// Keeping one handle to each makes Burn leave their memory alone: it writes in place only where a
/// tensor's handle is the last.
#[derive(Debug, Default)]
pub(super) struct Residents(Mutex<Vec<Resident>>);

#[derive(Debug)]
struct Resident {
    slot: Slot,
    tensor: FloatTensor<Cube>,
}

impl Residents {
    /// The slot's tensor on `device`; `upload` makes it the first time.
    pub(super) fn get_or_upload(
        &self,
        device: &CubeDevice,
        slot: &Slot,
        upload: impl FnOnce() -> FloatTensor<Cube>,
    ) -> FloatTensor<Cube> {
        let mut residents = self.lock();
        if let Some(tensor) = find(&residents, device, slot) {
            return tensor.clone();
        }
        let tensor = upload();
        residents.push(Resident { slot: slot.clone(), tensor: tensor.clone() });
        tensor
    }

    /// Whether `tensor` is the slot's; `None` where its memory can't tell.
    pub(super) fn recognize(&self, tensor: &FloatTensor<Cube>, slot: &Slot) -> Option<bool> {
        let residents = self.lock();
        match find(&residents, &tensor.device(), slot) {
            None => Some(false),
            Some(resident) => resident.has_memory_of(tensor),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Resident>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn find<'a>(
    residents: &'a [Resident],
    device: &CubeDevice,
    slot: &Slot,
) -> Option<&'a FloatTensor<Cube>> {
    let is_it =
        |resident: &&Resident| resident.slot == *slot && resident.tensor.device() == *device;
    residents.iter().find(is_it).map(|resident| &resident.tensor)
}

/// A tensor on a device, recognized without looking at its elements.
trait Recognize {
    /// Whether both are the same elements in the same memory; `None` where that can't be told.
    fn has_memory_of(&self, other: &Self) -> Option<bool>;
}

impl Recognize for CubeTensor {
    fn has_memory_of(&self, other: &Self) -> Option<bool> {
        // The id of memory that is still held is nobody else's.
        let key = |tensor: &Self| tensor.handle.clone().binding().claim_key();
        Some(key(self) == key(other) && self.meta.strides() == other.meta.strides())
    }
}

/// A fused tensor's memory may not be there yet. Its id is the same in every clone on its thread;
/// on another thread, and on the way back from there, Burn gives the same memory a new one.
impl<R: FusionRuntime> Recognize for FusionTensor<R> {
    fn has_memory_of(&self, other: &Self) -> Option<bool> {
        (self.id == other.id).then_some(true)
    }
}
