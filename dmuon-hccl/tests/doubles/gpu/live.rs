//! How much there is on devices that was not given back: memory, streams, events.

use std::{
    process,
    sync::atomic::{AtomicUsize, Ordering},
};

static NUM_LIVE: AtomicUsize = AtomicUsize::new(0);

/// Counts something that is made.
pub(crate) fn make() {
    NUM_LIVE.fetch_add(1, Ordering::AcqRel);
}

/// Counts something that is given back.
pub(crate) fn give_back() {
    NUM_LIVE.fetch_sub(1, Ordering::AcqRel);
}

/// Ends the process over something that nobody would be told of: a stream has no caller.
#[expect(clippy::print_stderr, reason = "tests read it in the log")]
pub(crate) fn abort(complaint: &str) -> ! {
    eprintln!("the double of the driver: {complaint}");
    process::abort()
}

/// For tests, which the real libraries do not have.
#[unsafe(no_mangle)]
extern "C" fn testdouble_num_live() -> usize {
    NUM_LIVE.load(Ordering::Acquire)
}
