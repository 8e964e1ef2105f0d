//! What a device with memory of its own holds of a packed buffer: all of it as one tensor, where it was
//! sent or received there, and a tensor for each slot that was asked for. They are kept as long as the
//! buffer; a slot's tensors are recognized by their memory.

use super::device::narrow;
use super::{HostSlice, Transport};
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Cube, TensorMetadata};
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use burn_fusion::{FusionRuntime, FusionTensor};
use dmuon_core::{Count, Slot};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The tensors of one packed buffer.
///
/// Keeping one handle to each makes Burn leave their memory alone: it writes in place only where a
/// tensor's handle is the last.
#[derive(Debug, Default)]
pub(super) struct Residents(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// One-dimensional.
    whole: Option<FloatTensor<Cube>>,
    slots: Vec<Resident>,
    /// Counts the whole where the host has no buffer of it.
    count: Option<Count>,
}

#[derive(Debug)]
struct Resident {
    slot: Slot,
    tensor: FloatTensor<Cube>,
}

impl Residents {
    /// All of a buffer that the host does not have.
    pub(super) fn of(whole: FloatTensor<Cube>) -> Self {
        Self(Mutex::new(State { whole: Some(whole), ..State::default() }))
    }

    /// Keeps what counts the bytes of the whole.
    pub(super) fn count(&self, count: impl FnOnce(usize) -> Count) {
        let mut state = self.lock();
        let num_bytes =
            |whole: &FloatTensor<Cube>| whole.shape().num_elements() * whole.dtype().size();
        state.count = state.whole.as_ref().map(num_bytes).map(count);
    }

    /// All of the buffer on `device`; `upload` makes it the first time.
    pub(super) fn whole(
        &self,
        device: &CubeDevice,
        upload: impl FnOnce() -> FloatTensor<Cube>,
    ) -> FloatTensor<Cube> {
        let mut state = self.lock();
        let whole = state.whole.take().filter(|whole| whole.device() == *device);
        state.whole.insert(whole.unwrap_or_else(upload)).clone()
    }

    /// The slot's tensor on `device`: a part of the whole, if some device has that; else `upload` makes
    /// it the first time.
    pub(super) fn get_or_make(
        &self,
        device: &CubeDevice,
        slot: &Slot,
        upload: impl FnOnce() -> FloatTensor<Cube>,
    ) -> FloatTensor<Cube> {
        let mut state = self.lock();
        if let Some(tensor) = find(&state.slots, device, slot) {
            return tensor.clone();
        }
        let tensor = match state.whole.clone() {
            Some(whole) => {
                let part = narrow(whole, slot.range());
                let part = match part.device() == *device {
                    true => part,
                    false => Cube::float_to_device(part, device),
                };
                Cube::float_reshape(part, slot.shape.clone().into())
            }
            None => upload(),
        };
        state.slots.push(Resident { slot: slot.clone(), tensor: tensor.clone() });
        tensor
    }

    /// The slot's elements, of a buffer that the host does not have.
    pub(super) fn to_host(&self, slot: &Slot) -> HostSlice {
        let whole = self.lock().whole.clone();
        match whole {
            Some(whole) => Cube::to_host(narrow(whole, slot.range())),
            None => unreachable!("a buffer that nobody has"),
        }
    }

    /// Whether `tensor` is the slot's; `None` where its memory can't tell.
    pub(super) fn recognize(&self, tensor: &FloatTensor<Cube>, slot: &Slot) -> Option<bool> {
        let state = self.lock();
        match find(&state.slots, &tensor.device(), slot) {
            None => Some(false),
            Some(resident) => resident.has_memory_of(tensor),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
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

#[cfg(test)]
#[cfg(all(feature = "wgpu", not(feature = "fusion")))]
mod tests {
    use super::*;
    use burn::tensor::{Device, DeviceKind, Tensor};
    use dmuon_core::PackedLayout;

    #[test]
    fn wide_slots_are_seen_without_a_copy() {
        let shapes = [("narrow", vec![100]), ("wide", vec![192, 192]), ("last", vec![5])];
        let named = shapes.map(|(name, shape)| (name.into(), shape));
        let layout = PackedLayout::new(named, []);
        let device = Device::wgpu(DeviceKind::DefaultDevice);
        let whole = Tensor::<1>::zeros([layout.gradient_elems()], &device);
        let whole = whole.try_into_primitive::<Cube>().expect("wgpu is a device of Cube's");
        let (residents, device) = (Residents::of(whole.clone()), whole.device());
        let slot = &layout.slots()[1];
        let wide = residents.get_or_make(&device, slot, || unreachable!("the whole is there"));
        assert_eq!(wide.shape().as_slice(), [192, 192]);
        let key = |tensor: &CubeTensor| tensor.handle.clone().binding().claim_key();
        let (memory, first, last) = key(&whole);
        let (start, end) = (4 * slot.offset as u64, 4 * slot.range().end as u64);
        assert_eq!(key(&wide), (memory, first + start, first + end));
        // CUDA wants as much.
        assert_eq!((start % 512, (last - first - end) % 512), (0, 0));
        assert_eq!(residents.recognize(&wide, slot), Some(true));
        assert_eq!(residents.recognize(&whole, slot), Some(false));
    }
}
