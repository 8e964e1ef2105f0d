//! Statuses of the libraries as typed errors; nothing else knows status codes.

use super::sys;
use crate::LibraryError;
use std::ffi::{CStr, c_char};

/// Characters of the libraries' words that an error keeps: the latest and most telling come first.
const MAX_CHARS: usize = 1000;

/// The functions of both libraries.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) acl: sys::Acl,
    pub(super) hccl: sys::Hccl,
    /// `None` in versions that cannot stop a stream.
    pub(super) abort: Option<sys::StreamAbort>,
}

impl Table {
    /// Turns the status that AscendCL's `call` returned into a result.
    pub(super) fn check_acl(
        &self,
        call: &'static str,
        code: sys::Status,
    ) -> Result<(), LibraryError> {
        if code == sys::SUCCESS {
            return Ok(());
        }
        let text = self.recent_message();
        let text = if text.is_empty() { "AscendCL has no text for it".into() } else { text };
        Err(LibraryError { call, code: code.into(), text })
    }

    /// Turns the status that HCCL's `call` returned into a result.
    pub(super) fn check_hccl(
        &self,
        call: &'static str,
        code: sys::Status,
    ) -> Result<(), LibraryError> {
        if code == sys::SUCCESS {
            return Ok(());
        }
        // SAFETY: takes any code.
        let name = unsafe { (self.hccl.HcclGetErrorString)(code) };
        // SAFETY: the library's texts for codes are never freed.
        let name = unsafe { text_at(name) };
        let message = self.recent_message();
        let text = if message.is_empty() { name } else { format!("{name}: {message}") };
        Err(LibraryError { call, code: code.into(), text })
    }

    /// Takes what the libraries have noted of failures on this thread, so that it is not taken for
    /// part of a later one.
    pub(super) fn recent_message(&self) -> String {
        // SAFETY: may be called at any time.
        let message = unsafe { (self.acl.aclGetRecentErrMsg)() };
        // SAFETY: the text stays until this thread asks again.
        unsafe { text_at(message) }
    }
}

/// A C string on one line; empty for a null pointer.
///
/// # Safety
/// `text` is null, or ends in a zero and stays until this returns.
unsafe fn text_at(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller promises a string.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().take(MAX_CHARS).collect()
}
