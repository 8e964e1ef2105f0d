//! What a library must bring whose collectives run on a device's stream.

use crate::{
    LibraryError,
    processes::{Division, Fencing},
};
use dmuon_core::{Call, DeviceTransfer};
use std::fmt::Debug;

/// A communicator with a stream and scratch memory of its own on a device.
///
/// One call at a time: [`issue`](Self::issue), [`poll`](Self::poll) until it is done, and
/// [`collect`](Self::collect) where there is a result; or
/// [`issue_on_device`](Self::issue_on_device), and [`poll`](Self::poll). None of them waits for
/// another rank.
pub(crate) trait Lane: Debug + Send + Sized + 'static {
    /// A communicator that is not ready yet.
    type Forming: Send;

    /// As [`Conduit::Fence`](crate::processes::Conduit::Fence).
    type Fence: Debug + Send + 'static;

    /// Whether the library could average by itself.
    const NATIVE_AVERAGE: bool;

    /// This rank's place in the communicator's group.
    fn rank(&self) -> usize;

    /// How many ranks the group has.
    fn size(&self) -> usize;

    /// As [`Conduit::fencing`](crate::processes::Conduit::fencing).
    fn fencing(&self) -> Option<Box<dyn Fencing<Self::Fence>>> {
        None
    }

    /// Copies `input` to the device and puts the collective on the stream. There is at least one
    /// element, except in a barrier; sums are of `f32` or `f64`.
    fn issue(&mut self, call: &Call, input: Option<&[u8]>) -> Result<(), LibraryError>;

    /// Puts the collective on the stream, behind `fence`, to run on the buffers of `transfer`, which
    /// the lane keeps until the stream is past it or it has been given up. There is at least one
    /// element; sums are of `f32` or `f64`.
    fn issue_on_device(
        &mut self,
        call: &Call,
        transfer: DeviceTransfer,
        fence: Self::Fence,
    ) -> Result<(), LibraryError>;

    /// Whether the stream is past what was issued. Also looks for what the communicator noticed.
    fn poll(&mut self) -> Result<bool, LibraryError>;

    /// Copies the result of what was issued to `output`, of [`Call::output_bytes`] bytes.
    fn collect(&mut self, call: &Call, output: &mut [u8]) -> Result<(), LibraryError>;

    /// Starts forming the communicator of a division's members.
    fn split(&mut self, division: &Division) -> Result<Self::Forming, LibraryError>;

    /// The communicator, once it is ready.
    fn formed(forming: &mut Self::Forming) -> Result<Option<Self>, LibraryError>;

    /// Gives up what is on the stream; nothing is issued afterwards.
    fn abort(&mut self);
}
