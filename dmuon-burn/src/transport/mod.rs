//! Packed host buffers as tensors and back: the only room that knows a backend's storage.

#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod cube;
mod flex;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod residents;

#[cfg(any(feature = "wgpu", feature = "cuda"))]
use burn::backend::Cube;
use burn::backend::tensor::{Device, FloatTensor};
use burn::backend::{Backend, DispatchDevice, Flex};
use burn::tensor::{AllocationProperty, Bytes, DType, Device as AnyDevice, FloatDType, Tensor};
use burn_flex::FlexTensor;
use dmuon_core::{FloatType, Lease, PackView, Slot};
use std::fmt;
use std::sync::Arc;

/// A packed buffer as storage that tensors can share.
#[derive(Clone)]
pub(crate) struct PackStorage {
    bytes: Arc<Bytes>,
    float: FloatType,
    #[cfg(any(feature = "wgpu", feature = "cuda"))]
    residents: Arc<residents::Residents>,
}

impl PackStorage {
    /// One parameter's elements, of a buffer of `f32`.
    pub(crate) fn slot(&self, slot: &Slot) -> &[f32] {
        debug_assert_eq!(self.float, FloatType::F32);
        &bytemuck::cast_slice(&self.bytes)[slot.range()]
    }
}

impl PackView for PackStorage {
    fn new(lease: Lease, float: FloatType) -> Self {
        let bytes = bytes::Bytes::from_owner(lease);
        Self {
            bytes: Arc::new(Bytes::from_shared(bytes, AllocationProperty::Native)),
            float,
            #[cfg(any(feature = "wgpu", feature = "cuda"))]
            residents: Arc::default(),
        }
    }

    /// A tape that keeps tensors of a device's own memory is not seen here.
    fn is_unique(&self) -> bool {
        Arc::strong_count(&self.bytes) == 1
    }
}

impl fmt::Debug for PackStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackStorage({} bytes of {})", self.bytes.len(), self.float)
    }
}

/// How a backend's float tensors meet packed host buffers.
pub(crate) trait Transport: Backend {
    /// The slot's elements as a tensor of the slot's shape on `device`.
    fn view(device: &Device<Self>, storage: &PackStorage, slot: &Slot) -> FloatTensor<Self>;

    /// Whether `tensor` is what [`view`](Self::view) made of the slot rather than equal numbers
    /// elsewhere.
    fn is_view(tensor: &FloatTensor<Self>, storage: &PackStorage, slot: &Slot) -> bool;

    /// The tensor's elements on the host, in `f32`.
    fn to_host(tensor: FloatTensor<Self>) -> HostSlice;

    /// The tensor in the type that weights are used in.
    fn rounded(tensor: FloatTensor<Self>, float: FloatType) -> FloatTensor<Self> {
        match float {
            FloatType::F32 => tensor,
            FloatType::F16 => Self::float_cast(tensor, FloatDType::F16),
            FloatType::Bf16 => Self::float_cast(tensor, FloatDType::BF16),
        }
    }
}

/// What Burn calls a type that weights travel in.
pub(crate) fn dtype(float: FloatType) -> DType {
    match float {
        FloatType::F32 => DType::F32,
        FloatType::F16 => DType::F16,
        FloatType::Bf16 => DType::BF16,
    }
}

/// Whether dmuon has operations for tensors on `device`.
pub(crate) fn is_supported(device: &AnyDevice) -> bool {
    match device.clone().without_autodiff().as_dispatch() {
        DispatchDevice::Flex(_) => true,
        #[cfg(any(feature = "wgpu", feature = "cuda"))]
        DispatchDevice::Cube(_) => true,
        _ => false,
    }
}

/// Whether tensors on `device` are host memory.
pub(crate) fn is_flex(device: &AnyDevice) -> bool {
    matches!(device.clone().without_autodiff().as_dispatch(), DispatchDevice::Flex(_))
}

/// Whether `tensor` is what a backend made of the slot.
pub(crate) fn is_view<const D: usize>(
    tensor: Tensor<D>,
    storage: &PackStorage,
    slot: &Slot,
) -> bool {
    let tensor = tensor.without_autodiff();
    #[cfg(any(feature = "wgpu", feature = "cuda"))]
    if let Ok(primitive) = tensor.clone().try_into_primitive::<Cube>() {
        return Cube::is_view(&primitive, storage, slot);
    }
    let primitive = tensor.try_into_primitive::<Flex>();
    primitive.is_ok_and(|primitive| Flex::is_view(&primitive, storage, slot))
}

/// Writes a tensor's elements, in row-major order, to `out`.
pub(crate) fn write_tensor<const D: usize>(tensor: Tensor<D>, out: &mut [f32]) {
    HostSlice::new(tensor).copy_to(out);
}

/// A tensor's elements on the host, in row-major order; shared with the tensor where it is there.
#[derive(Debug)]
pub(crate) enum HostSlice {
    Shared(FlexTensor),
    Copied(Vec<f32>),
    Packed(PackStorage, Slot),
}

impl HostSlice {
    pub(crate) fn new<const D: usize>(tensor: Tensor<D>) -> Self {
        let tensor = tensor.without_autodiff();
        #[cfg(any(feature = "wgpu", feature = "cuda"))]
        if let Ok(primitive) = tensor.clone().try_into_primitive::<Cube>() {
            return Cube::to_host(primitive);
        }
        match tensor.clone().try_into_primitive::<Flex>() {
            Ok(primitive) => Flex::to_host(primitive),
            Err(_) => Self::Copied(tensor.into_data().iter::<f32>().collect()),
        }
    }

    pub(crate) fn as_slice(&self) -> &[f32] {
        match self {
            Self::Copied(elems) => elems,
            Self::Packed(storage, slot) => storage.slot(slot),
            Self::Shared(tensor) => match tensor.as_slice::<f32>() {
                Some(elems) => elems,
                None => unreachable!("a contiguous f32 tensor is one slice"),
            },
        }
    }

    fn copy_to(&self, out: &mut [f32]) {
        out.copy_from_slice(self.as_slice());
    }
}
