//! The device, for one test at a time: they measure its memory, and it has few cores here.

use burn::tensor::Device;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The device without autodiff, until it is dropped.
pub(crate) struct Held {
    pub(crate) device: Device,
    _alone: MutexGuard<'static, ()>,
}

/// Waits for the device.
///
/// # Panics
/// There is none: these tests fail rather than pass without having run.
pub(crate) fn hold() -> Held {
    static ALONE: Mutex<()> = Mutex::new(());
    static DEVICE: OnceLock<Result<Device, String>> = OnceLock::new();
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let init = || Device::wgpu_options().init().map_err(|error| error.to_string());
    match DEVICE.get_or_init(init) {
        Ok(device) => Held { device: device.clone(), _alone: alone },
        Err(cause) => panic!(
            "these tests need a Vulkan driver, and a software one will do: install \
             mesa-vulkan-drivers ({cause})"
        ),
    }
}
