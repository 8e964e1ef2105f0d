//! What the libraries note of failures, for the thread that failed.

use std::{
    cell::RefCell,
    ffi::{CString, c_char},
    ptr::null,
};

thread_local! {
    /// Notes not asked for yet, the latest first.
    static NOTES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    /// What was handed out last, which stays until the next is.
    static HANDED_OUT: RefCell<CString> = RefCell::default();
}

/// Notes a failure.
pub(crate) fn note(text: impl Into<String>) {
    NOTES.with_borrow_mut(|notes| notes.insert(0, text.into()));
}

/// Notes a failure and returns its status.
pub(crate) fn fail(status: i32, text: impl Into<String>) -> i32 {
    note(text);
    status
}

#[unsafe(no_mangle)]
extern "C" fn aclGetRecentErrMsg() -> *const c_char {
    let notes = NOTES.take();
    if notes.is_empty() {
        return null();
    }
    let text = CString::new(notes.join("\n")).unwrap_or_default();
    HANDED_OUT.with_borrow_mut(|handed_out| {
        *handed_out = text;
        handed_out.as_ptr()
    })
}
