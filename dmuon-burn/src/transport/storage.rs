//! One packed buffer as storage that tensors can share.

use super::HostSlice;
#[cfg(feature = "_cube")]
use super::residents::Residents;
use burn::tensor::{AllocationProperty, Bytes};
use dmuon_core::{FloatType, Lease, PackView, SharedBuffer, Slot};
#[cfg(feature = "_cube")]
use dmuon_core::{Holding, Ledger};
use std::fmt;
use std::sync::Arc;

/// A packed buffer: the host's, with whatever a device has of it; or a device's alone.
#[derive(Clone)]
pub(crate) struct PackStorage {
    host: Option<HostPack>,
    pub(super) float: FloatType,
    #[cfg(feature = "_cube")]
    pub(super) residents: Arc<Residents>,
}

#[derive(Clone)]
struct HostPack {
    buffer: SharedBuffer,
    bytes: Arc<Bytes>,
}

impl PackStorage {
    /// A buffer of `float`s that only a device has.
    #[cfg(feature = "_cube")]
    pub(super) fn of_residents(float: FloatType, residents: Residents) -> Self {
        Self { host: None, float, residents: Arc::new(residents) }
    }

    /// Whether the host has it.
    pub(super) fn is_on_host(&self) -> bool {
        self.host.is_some()
    }

    /// The host's bytes, where it has them.
    pub(super) fn bytes(&self) -> &Arc<Bytes> {
        match &self.host {
            Some(host) => &host.bytes,
            None => unreachable!("{self:?} is asked for by the host"),
        }
    }

    /// Counts a buffer that only a device has; the host's are counted by their leases.
    #[cfg(feature = "_cube")]
    pub(super) fn count(&self, ledger: &Ledger, holding: Holding) {
        if !self.is_on_host() {
            self.residents.count(|num_bytes| ledger.count(holding, num_bytes));
        }
    }

    /// One parameter's elements, of a host buffer of `f32`.
    pub(crate) fn slot(&self, slot: &Slot) -> &[f32] {
        debug_assert_eq!(self.float, FloatType::F32);
        &bytemuck::cast_slice(self.bytes())[slot.range()]
    }

    /// One parameter's elements, of a buffer of `f32`, on the host.
    pub(crate) fn to_host(&self, slot: &Slot) -> HostSlice {
        #[cfg(feature = "_cube")]
        if !self.is_on_host() {
            return self.residents.to_host(slot);
        }
        HostSlice::Packed(self.clone(), slot.clone())
    }
}

impl PackView for PackStorage {
    fn new(lease: Lease, float: FloatType) -> Self {
        let buffer = lease.buffer().clone();
        let bytes = Bytes::from_shared(bytes::Bytes::from_owner(lease), AllocationProperty::Native);
        Self {
            host: Some(HostPack { buffer, bytes: Arc::new(bytes) }),
            float,
            #[cfg(feature = "_cube")]
            residents: Arc::default(),
        }
    }

    /// A tape that keeps tensors of a device's own memory is not seen here.
    fn is_unique(&self) -> bool {
        match &self.host {
            Some(host) => Arc::strong_count(&host.bytes) == 1,
            None => true,
        }
    }

    fn buffer(&self) -> SharedBuffer {
        match &self.host {
            Some(host) => host.buffer.clone(),
            None => unreachable!("{self:?} is sent by the host"),
        }
    }
}

impl fmt::Debug for PackStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Some(host) => write!(f, "PackStorage({} bytes of {})", host.bytes.len(), self.float),
            None => write!(f, "PackStorage({}, on a device)", self.float),
        }
    }
}
