//! Memory of tensors, lent to engines by its address.

#[cfg(all(test, feature = "wgpu"))]
mod double;

use crate::error::Error;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Cube, TensorMetadata};
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use dmuon_core::{DeviceBuffer, Group, Memory, Result};
use std::any::Any;
use std::sync::Arc;

/// Keeps memory where it is.
type Lender = Arc<dyn Any + Send + Sync>;

/// Whether the group's engine takes memory of `device`.
pub(super) fn is_taken(device: &CubeDevice, group: &dyn Group) -> bool {
    let Memory::HostOrCuda { ordinal } = group.capabilities().memory else { return false };
    match device {
        CubeDevice::Cuda(cuda) => cuda.index == ordinal,
        #[cfg(all(test, feature = "wgpu"))]
        CubeDevice::Wgpu(_) => ordinal == double::ORDINAL,
        _ => false,
    }
}

/// The memory of a one-dimensional tensor on a device that [is taken](is_taken). It stays as long as
/// the loan, and what was to be written there has been handed to the device.
///
/// # Errors
/// An operation that was to write there has failed.
pub(super) fn lend(tensor: &FloatTensor<Cube>) -> Result<DeviceBuffer> {
    let num_bytes = tensor.shape().num_elements() * tensor.dtype().size();
    let tensor = resolved(tensor.clone());
    let (address, lender) = match num_bytes {
        0 => (0, Arc::new(()) as Lender),
        _ => address(&tensor, num_bytes).map_err(|cause| Error::Lend { cause })?,
    };
    // SAFETY: the memory is that of the device, which is checked before, and stays where it is while
    // its lender lives. Packs are written when they are made, and not read before they have arrived.
    Ok(unsafe { DeviceBuffer::new(address, num_bytes, lender) })
}

/// The tensor itself, rather than what is to be fused into it.
#[cfg(feature = "fusion")]
fn resolved(tensor: FloatTensor<Cube>) -> CubeTensor {
    tensor.client.clone().resolve_tensor_float::<burn_cubecl::CubeBackend>(tensor)
}

#[cfg(not(feature = "fusion"))]
fn resolved(tensor: FloatTensor<Cube>) -> CubeTensor {
    tensor
}

/// Where the tensor's `num_bytes` bytes are, and what keeps them there.
#[cfg(feature = "cuda")]
fn address(tensor: &CubeTensor, num_bytes: usize) -> std::result::Result<(u64, Lender), String> {
    use burn_cubecl::cubecl::{__private::Runtime, cuda::CudaRuntime};
    use std::sync::Mutex;
    let handle = tensor.handle.clone();
    let resource = tensor.client.get_resource::<<CudaRuntime as Runtime>::Server>(handle);
    let resource = resource.map_err(|error| error.to_string())?;
    let (address, room) = (resource.resource().ptr, resource.resource().size);
    if room < num_bytes as u64 {
        return Err(format!("it has {room} bytes where {num_bytes} were expected"));
    }
    Ok((address, Arc::new(Mutex::new((resource, tensor.clone())))))
}

#[cfg(not(feature = "cuda"))]
fn address(tensor: &CubeTensor, _: usize) -> std::result::Result<(u64, Lender), String> {
    #[cfg(all(test, feature = "wgpu"))]
    return Ok(double::address(tensor));
    #[cfg(not(all(test, feature = "wgpu")))]
    Err(format!("memory of {:?} has no address", tensor.device))
}
