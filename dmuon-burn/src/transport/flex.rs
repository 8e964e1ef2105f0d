//! Flex: tensors share the memory of packed buffers; nothing is copied.

use super::{Gradient, HostSlice, PackStorage, Transport, dtype};
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{Device, FloatTensor};
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{Shape, TensorData};
use burn_flex::{FlexTensor, Layout};
use dmuon_core::Slot;
use std::sync::Arc;

impl Transport for Flex {
    fn view(device: &Device<Self>, storage: &PackStorage, slot: &Slot) -> FloatTensor<Self> {
        let shape = Shape::from(slot.shape.clone());
        if !storage.is_on_host() {
            // The model has been moved here from the device that packs come to.
            let data = TensorData::new(storage.to_host(slot).as_slice().to_vec(), shape);
            return Self::rounded(Self::float_from_data(data, device), storage.float);
        }
        let strides = Layout::contiguous(shape.clone()).strides().to_vec();
        let layout = Layout::new(shape, strides, slot.offset);
        FlexTensor::from_arc(storage.bytes().clone(), layout, dtype(storage.float))
    }

    fn is_view(tensor: &FloatTensor<Self>, storage: &PackStorage, slot: &Slot) -> bool {
        Arc::ptr_eq(&tensor.data_arc(), storage.bytes())
            && tensor.layout().start_offset() == slot.offset
            && tensor.shape().num_elements() == slot.num_elems
    }

    fn to_gradient(tensor: FloatTensor<Self>) -> Gradient {
        let slice = Self::to_host(tensor);
        #[cfg(feature = "_cube")]
        let slice = Gradient::Host(slice);
        slice
    }

    fn to_host(tensor: FloatTensor<Self>) -> HostSlice {
        HostSlice::Shared(Self::single(tensor).to_contiguous())
    }
}
