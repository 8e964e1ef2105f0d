//! Statuses of NCCL and of the driver as typed errors; nothing else knows status codes.

use super::sys::{self, Status};
use crate::LibraryError;
use cudarc::driver::DriverError;
use std::ffi::{CStr, c_char};

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
        // SAFETY: null or a terminated text that lives as long as the library.
        let meaning = unsafe { c_text(meaning) };
        // SAFETY: as above.
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

/// A copy of a text of C's, its lines joined.
///
/// # Safety
/// `text` is null or a terminated text.
unsafe fn c_text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller promises a terminated text.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
