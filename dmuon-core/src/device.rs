//! Memory of a device, as the backend that has it lends it to an engine.

use crate::{Call, CallSite, Error, Rank, Result};
use std::{any::Any, fmt, sync::Arc};

/// Memory of a device that an engine may use by its address. Clones are the same memory.
#[derive(Clone)]
pub struct DeviceBuffer {
    address: u64,
    len_bytes: usize,
    lender: Arc<dyn Any + Send + Sync>,
}

/// The memory of one collective on a device: what is read and what is written.
#[derive(Clone, Debug, Default)]
pub struct DeviceTransfer {
    /// What this rank sends, on the ranks [`Call::input_bytes`] says.
    pub input: Option<DeviceBuffer>,
    /// Where what it receives goes, on the ranks [`Call::output_bytes`] says. There is none where the
    /// result is the input as it is: on a broadcast's root, and on a rank that is alone in its group.
    pub output: Option<DeviceBuffer>,
}

impl DeviceBuffer {
    /// Memory at `address`, which `lender` keeps where it is.
    ///
    /// # Safety
    /// As long as `lender` lives, the `len_bytes` bytes at `address` must be memory of the device
    /// that [`Capabilities::memory`](crate::Capabilities::memory) of every group names that this is
    /// handed to, aligned to the elements, and an input must not overlap an output. Until a collective
    /// is done, or has failed and every handle to its buffers is gone, nobody else may write its
    /// input, or read or write its output.
    #[allow(unsafe_code, reason = "what an engine does with a wrong address is undefined")]
    pub unsafe fn new(address: u64, len_bytes: usize, lender: Arc<dyn Any + Send + Sync>) -> Self {
        Self { address, len_bytes, lender }
    }

    /// The first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, len_bytes, lender } = self;
        let handles = Arc::strong_count(lender);
        write!(f, "DeviceBuffer({len_bytes} bytes at {address:#x}, {handles} handles)")
    }
}

impl DeviceTransfer {
    /// Checks the call, as it is [carried out](Call::carried_out), and this rank's buffers before
    /// anything is sent.
    ///
    /// # Errors
    /// As [`Call::check`]; and an output that is missing, unexpected or ill-sized.
    pub fn check(
        &self,
        call: &Call,
        (rank, size): (usize, usize),
        caller: Rank,
        at: impl Fn() -> CallSite,
    ) -> Result<()> {
        let num_bytes =
            |buffer: &Option<DeviceBuffer>| buffer.as_ref().map(DeviceBuffer::len_bytes);
        call.check((rank, size), num_bytes(&self.input), caller, &at)?;
        let expected = call.output_bytes(rank, size).filter(|_| !call.returns_input(rank, size));
        let actual = num_bytes(&self.output);
        match expected == actual {
            true => Ok(()),
            false => Err(Error::Output { rank: caller, at: at(), expected, actual }),
        }
    }
}
