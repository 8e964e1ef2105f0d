//! Packed buffers as tensors and back: the only room that knows a backend's storage.

#[cfg(feature = "_cube")]
mod cube;
#[cfg(feature = "_cube")]
mod device;
mod flex;
#[cfg(feature = "_cube")]
#[expect(unsafe_code, reason = "engines are told addresses")]
mod lend;
#[cfg(feature = "_cube")]
mod residents;
mod storage;

#[cfg(feature = "_cube")]
pub(crate) use device::{Gradient, Packs};
pub(crate) use storage::PackStorage;

#[cfg(feature = "_cube")]
use burn::backend::Cube;
use burn::backend::tensor::{Device, FloatTensor};
use burn::backend::{Backend, DispatchDevice, Flex, TensorMetadata};
use burn::tensor::{DType, Device as AnyDevice, FloatDType, Tensor};
use burn_flex::FlexTensor;
#[cfg(not(feature = "_cube"))]
use dmuon_core::HostMemory;
use dmuon_core::{FloatType, Slot, World};

/// Packed buffers of a model, all of them the host's.
#[cfg(not(feature = "_cube"))]
pub(crate) type Packs = HostMemory<PackStorage, HostSlice>;

/// One parameter's gradient.
#[cfg(not(feature = "_cube"))]
pub(crate) type Gradient = HostSlice;

/// How a backend's float tensors meet packed buffers.
pub(crate) trait Transport: Backend {
    /// The slot's elements as a tensor of the slot's shape on `device`.
    fn view(device: &Device<Self>, storage: &PackStorage, slot: &Slot) -> FloatTensor<Self>;

    /// Whether `tensor` is what [`view`](Self::view) made of the slot rather than equal numbers
    /// elsewhere.
    fn is_view(tensor: &FloatTensor<Self>, storage: &PackStorage, slot: &Slot) -> bool;

    /// The tensor, in `f32`, to be packed where it is.
    fn to_gradient(tensor: FloatTensor<Self>) -> Gradient;

    /// The tensor's elements on the host, in `f32`.
    fn to_host(tensor: FloatTensor<Self>) -> HostSlice;

    /// The tensor in `f32`.
    fn single(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        match tensor.dtype() {
            DType::F32 => tensor,
            _ => Self::float_cast(tensor, FloatDType::F32),
        }
    }

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
        #[cfg(feature = "_cube")]
        DispatchDevice::Cube(_) => true,
        _ => false,
    }
}

/// The packed buffers of a rank of `world`, for a model on `device`.
pub(crate) fn packs(world: &World, device: Option<&AnyDevice>) -> Packs {
    #[cfg(feature = "_cube")]
    return Packs::new(world, device);
    #[cfg(not(feature = "_cube"))]
    {
        let _ = device;
        Packs::new(world)
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
    #[cfg(feature = "_cube")]
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
    /// A slot of a packed host buffer.
    Packed(PackStorage, Slot),
}

impl HostSlice {
    pub(crate) fn new<const D: usize>(tensor: Tensor<D>) -> Self {
        let tensor = tensor.without_autodiff();
        #[cfg(feature = "_cube")]
        if let Ok(primitive) = tensor.clone().try_into_primitive::<Cube>() {
            return Cube::to_host(primitive);
        }
        match tensor.clone().try_into_primitive::<Flex>() {
            Ok(primitive) => Flex::to_host(primitive),
            Err(_) => Self::Copied(tensor.into_data().iter::<f32>().collect()),
        }
    }

    /// A gradient's elements; `average` tells where it was averaged, if that is known: unless somebody
    /// has changed it since, the host may still have it.
    pub(crate) fn of_gradient<const D: usize>(
        gradient: Tensor<D>,
        average: Option<(PackStorage, Slot)>,
    ) -> Self {
        #[cfg(feature = "_cube")]
        if let Some((storage, slot)) = &average
            && let Ok(primitive) = gradient.clone().without_autodiff().try_into_primitive::<Cube>()
            && storage.residents.recognize(&primitive, slot) == Some(true)
        {
            return storage.to_host(slot);
        }
        drop(average);
        Self::new(gradient)
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

impl AsRef<[f32]> for HostSlice {
    fn as_ref(&self) -> &[f32] {
        self.as_slice()
    }
}
