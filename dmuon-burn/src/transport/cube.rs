//! Cube: devices with memory of their own (wgpu, CUDA), fused or not. What a tensor needs of a packed
//! host buffer is copied there, and what comes back is copied off again.

use super::{Gradient, HostSlice, PackStorage, Transport, dtype};
use crate::error::{Error, unwind};
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{Device, FloatTensor};
use burn::backend::{Cube, read_sync};
use burn::tensor::TensorData;
use dmuon_core::Slot;

impl Transport for Cube {
    fn view(device: &Device<Self>, storage: &PackStorage, slot: &Slot) -> FloatTensor<Self> {
        storage.residents.get_or_make(device, slot, || {
            let elem_bytes = storage.float.num_bytes();
            let range = slot.range();
            let bytes = &storage.bytes()[range.start * elem_bytes..range.end * elem_bytes];
            // A copy: the device's thread takes it up later, when the buffer may be gone.
            let shape = slot.shape.clone();
            let data = TensorData::from_bytes_vec(bytes.to_vec(), shape, dtype(storage.float));
            Self::float_from_data(data, device)
        })
    }

    fn is_view(tensor: &FloatTensor<Self>, storage: &PackStorage, slot: &Slot) -> bool {
        storage.residents.recognize(tensor, slot).unwrap_or_else(|| {
            let (host, published) = (Self::to_host(tensor.clone()), storage.slot(slot));
            let bits = |elems: &[f32]| elems.iter().map(|elem| elem.to_bits()).collect::<Vec<_>>();
            bits(host.as_slice()) == bits(published)
        })
    }

    fn to_gradient(tensor: FloatTensor<Self>) -> Gradient {
        Gradient::Device(Self::single(tensor))
    }

    fn to_host(tensor: FloatTensor<Self>) -> HostSlice {
        let data = read_sync(Self::float_into_data(Self::single(tensor)))
            .map_err(|error| error.to_string());
        // A copy: the data itself would pin a staging buffer that the device has mapped.
        match data.and_then(|data| data.try_to_vec().map_err(|error| error.to_string())) {
            Ok(elems) => HostSlice::Copied(elems),
            Err(cause) => unwind(Error::Readback { cause }),
        }
    }
}
