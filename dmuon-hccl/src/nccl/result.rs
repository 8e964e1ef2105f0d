//! Statuses of NCCL and of the driver as typed errors; nothing else knows status codes.

use super::sys::{self, Status};
use crate::LibraryError;
use cudarc::driver::DriverError;
use std::ffi::c_char;

/// The library's texts are no longer, with their ends.
const MAX_TEXT_BYTES: usize = 1024;

impl sys::Table {
    /// Turns the status that `call` returned into a result. To be in progress is no error:
    /// communicators do not block.
    pub(super) fn check(&self, call: &'static str, status: Status) -> Result<(), LibraryError> {
        match status {
            sys::SUCCESS | sys::IN_PROGRESS => Ok(()),
            _ => Err(LibraryError { call, code: status.into(), text: self.text_of(status) }),
        }
    }

    /// What the status means, and what the library said last.
    fn text_of(&self, status: Status) -> String {
        // SAFETY: takes any number, and returns a text of the library's own.
        let meaning = unsafe { (self.ncclGetErrorString)(status) };
        // SAFETY: the communicator is not looked at, and null is allowed.
        let last = unsafe { (self.ncclGetLastError)(sys::Comm::NULL) };
        // SAFETY: null or a terminated constant of the library's.
        let meaning = unsafe { c_text(meaning) };
        // SAFETY: a buffer of the library's, for all threads, whose last byte is always zero. Another
        // thread whose call fails may write it meanwhile, which nobody outside can prevent: then this
        // is a mixture of two texts. It is read byte by byte, once, and no further than the buffer.
        let last = unsafe { c_text(last) };
        if last.is_empty() { meaning } else { format!("{meaning}: {last}") }
    }
}

/// What the driver says about the call that it refused.
pub(super) fn refused(call: &'static str) -> impl Fn(DriverError) -> LibraryError {
    move |error| {
        let text = match error.error_string() {
            Ok(text) => text.to_string_lossy().into_owned(),
            Err(_) => "the driver has no text for it".into(),
        };
        LibraryError { call, code: error.0 as i64, text }
    }
}

/// A copy of a text of C's, its lines joined. Bytes are copied before anything looks at them: they
/// may change.
///
/// # Safety
/// `text` is null, or terminated within [`MAX_TEXT_BYTES`] at all times, or has so many bytes.
unsafe fn c_text(text: *const c_char) -> String {
    let mut bytes = Vec::new();
    while !text.is_null() && bytes.len() < MAX_TEXT_BYTES {
        // SAFETY: no byte before this one was the last.
        let place = unsafe { text.add(bytes.len()) };
        // SAFETY: as above.
        match unsafe { place.read_volatile() } {
            0 => break,
            byte => bytes.push(byte.cast_unsigned()),
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_copied_no_further_than_their_ends() {
        let text = |text: &[u8]| {
            assert!(text.contains(&0) || text.len() >= MAX_TEXT_BYTES);
            // SAFETY: as asserted.
            unsafe { c_text(text.as_ptr().cast()) }
        };
        assert_eq!(text(b"too \n hot\0 or cold"), "too hot");
        assert_eq!(text(&[b'x'; MAX_TEXT_BYTES]).len(), MAX_TEXT_BYTES);
        // SAFETY: null is allowed.
        assert_eq!(unsafe { c_text(std::ptr::null()) }, "");
    }
}
