//! Runs code whose panic is an answer, without the panic message. Changes nothing for other panics.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// The result of `f`, or `None` where it panics. `f` must leave nothing half done when it does.
pub(crate) fn quietly<T>(f: impl FnOnce() -> T) -> Option<T> {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                previous(info);
            }
        }));
    });
    let outer = QUIET.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(f));
    QUIET.set(outer);
    result.ok()
}

#[cfg(test)]
mod tests {
    use super::quietly;

    #[test]
    fn a_panic_is_no_answer() {
        assert_eq!(quietly(|| 1), Some(1));
        assert_eq!(quietly(|| Vec::<u8>::new()[0]), None);
        assert_eq!(quietly(|| quietly(|| 2)), Some(Some(2)));
    }
}
