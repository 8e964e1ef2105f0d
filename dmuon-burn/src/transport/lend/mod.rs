//! Memory of tensors, lent to engines by its address.

#[cfg(test)]
#[cfg(feature = "wgpu")]
mod double;
#[cfg(test)]
#[cfg(feature = "wgpu")]
mod tests;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Cube, TensorMetadata};
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use dmuon_core::{DeviceBuffer, Group, Memory};
use std::any::Any;
use std::sync::Arc;

/// Memory of a device.
struct Loan {
    address: u64,
    /// Its length in bytes.
    room: u64,
    /// Keeps it where it is.
    lender: Arc<dyn Any + Send + Sync>,
}

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

/// The memory of a one-dimensional tensor on `device`, which [is taken](is_taken). It stays as long as
/// the loan, and what was to be written there has been handed to the device.
///
/// # Errors
/// It is on another device, or an operation that was to write there has failed.
pub(super) fn lend(
    tensor: &FloatTensor<Cube>,
    device: &CubeDevice,
) -> Result<DeviceBuffer, String> {
    if tensor.device() != *device {
        return Err(format!("it is on {:?}, and not on {device:?}", tensor.device()));
    }
    let num_bytes = tensor.shape().num_elements() * tensor.dtype().size();
    let Loan { address, room, lender } = match num_bytes {
        0 => Loan { address: 0, room: 0, lender: Arc::new(()) },
        _ => loan(resolved(tensor.clone()))?,
    };
    if room < num_bytes as u64 {
        return Err(format!("there are {room} bytes where {num_bytes} were expected"));
    }
    // SAFETY: the memory is that of the device, and stays where it is while its lender lives. Packs
    // are written when they are made, and not read before they have arrived.
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

/// Finds the tensor's memory.
fn loan(tensor: CubeTensor) -> Result<Loan, String> {
    match &tensor.device {
        #[cfg(feature = "cuda")]
        CubeDevice::Cuda(_) => cuda_loan(tensor),
        #[cfg(all(test, feature = "wgpu"))]
        CubeDevice::Wgpu(_) => Ok(double::loan(tensor)),
        device => Err(format!("memory of {device:?} has no address")),
    }
}

#[cfg(feature = "cuda")]
fn cuda_loan(tensor: CubeTensor) -> Result<Loan, String> {
    use burn_cubecl::cubecl::{__private::Runtime, cuda::CudaRuntime};
    use std::sync::Mutex;
    let handle = tensor.handle.clone();
    // This waits until the operations before have been put on the device, too.
    let resource = tensor.client.get_resource::<<CudaRuntime as Runtime>::Server>(handle);
    let resource = resource.map_err(|error| error.to_string())?;
    let (address, room) = (resource.resource().ptr, resource.resource().size);
    Ok(Loan { address, room, lender: Arc::new(Mutex::new((resource, tensor))) })
}
