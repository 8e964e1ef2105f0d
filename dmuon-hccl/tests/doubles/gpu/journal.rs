//! Calls in the order in which they came, for tests to read.

use crate::{driver, settings};
use std::{
    fs::{File, OpenOptions},
    io::Write,
    sync::{LazyLock, Mutex, PoisonError},
};

static JOURNAL: LazyLock<Option<Mutex<File>>> = LazyLock::new(|| {
    let file = OpenOptions::new().append(true).create(true).open(settings::journal()?);
    Some(Mutex::new(file.expect("the journal can be written")))
});

/// Writes down that the calling thread's device does something.
pub(crate) fn note(what: &str) {
    note_on(driver::current_device(), what);
}

/// Writes down that a device does something.
pub(crate) fn note_on(device: i32, what: &str) {
    if let Some(journal) = &*JOURNAL {
        let line = format!("{device} {what}\n");
        let mut journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
        journal.write_all(line.as_bytes()).expect("the journal can be written");
    }
}
