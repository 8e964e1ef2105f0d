//! Statuses of the library as typed errors; nothing else knows status codes.

use super::sys;
use crate::LibraryError;
use std::{
    ffi::{CStr, c_char, c_int},
    fmt,
};

impl sys::Table {
    /// Turns the status that `call` returned into a result.
    pub(super) fn check(&self, call: &'static str, code: c_int) -> Result<(), LibraryError> {
        if code == sys::SUCCESS {
            return Ok(());
        }
        Err(LibraryError { call, code: code.into(), text: self.text_of(code) })
    }

    fn text_of(&self, code: c_int) -> String {
        let mut text = [0 as c_char; sys::MAX_ERROR_STRING + 1];
        let mut length = 0;
        // SAFETY: the buffer has room for the longest text and a terminator.
        let status = unsafe { (self.MPI_Error_string)(code, text.as_mut_ptr(), &mut length) };
        if status != sys::SUCCESS {
            return "the library has no text for it".into();
        }
        // Some libraries append a stack of lines.
        c_text(&text).to_string().split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// The text in a buffer that C filled, up to its terminator.
pub(super) fn c_text(buffer: &[c_char]) -> impl fmt::Display + use<> {
    let bytes: Vec<u8> = buffer.iter().map(|byte| byte.cast_unsigned()).collect();
    let text = CStr::from_bytes_until_nul(&bytes).map(CStr::to_string_lossy).unwrap_or_default();
    text.trim().to_owned()
}
