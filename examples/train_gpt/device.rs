//! Where a run computes: on the processor, or on a device that a feature compiles in.

use burn::tensor::Device;
use clap::ValueEnum;

use crate::error::Error;

/// Where a run computes.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum DeviceName {
    /// On the processor, with Burn's Flex
    #[default]
    Flex,
    /// On a GPU through Vulkan, Metal or DirectX 12, or a software driver (feature wgpu)
    Wgpu,
    /// On an NVIDIA GPU (feature cuda)
    Cuda,
}

impl DeviceName {
    /// The device, for all ranks of the process. Call it once.
    ///
    /// # Errors
    /// The feature is missing, or there is no such device.
    pub(crate) fn open(self) -> Result<Device, Error> {
        match self {
            Self::Flex => Ok(Device::flex()),
            #[cfg(feature = "wgpu")]
            Self::Wgpu => Device::wgpu_options()
                .init()
                .map_err(|error| Error::Device { name: "wgpu", cause: error.to_string() }),
            #[cfg(not(feature = "wgpu"))]
            Self::Wgpu => Err(Error::DeviceFeature { name: "wgpu" }),
            #[cfg(feature = "cuda")]
            Self::Cuda => Ok(Device::cuda(0_usize)),
            #[cfg(not(feature = "cuda"))]
            Self::Cuda => Err(Error::DeviceFeature { name: "cuda" }),
        }
    }
}
