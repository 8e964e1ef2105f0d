//! CPU time of dmuon's tracing spans, each without the spans inside it.

use cpu_time::ThreadTime;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// CPU time by span name.
pub(crate) type Totals = BTreeMap<&'static str, Duration>;

/// What closed spans of all threads took.
static TOTALS: Mutex<Totals> = Mutex::new(Totals::new());

/// Spans that are open on a thread.
#[derive(Default)]
struct Local {
    /// What was booked since the outermost span was opened.
    totals: Totals,
    /// Names, innermost last.
    open: Vec<&'static str>,
    /// When the innermost span began, or went on.
    since: Option<ThreadTime>,
}

thread_local! {
    static LOCAL: RefCell<Local> = RefCell::default();
}

impl Local {
    /// Books the time since the last change to the innermost span.
    fn book(&mut self) {
        let now = ThreadTime::now();
        if let (Some(name), Some(since)) = (self.open.last(), self.since.replace(now)) {
            *self.totals.entry(name).or_default() += now.duration_since(since);
        }
    }

    fn close(&mut self) {
        self.book();
        self.open.pop();
        if self.open.is_empty() {
            let mut totals = TOTALS.lock().unwrap_or_else(PoisonError::into_inner);
            for (name, time) in std::mem::take(&mut self.totals) {
                *totals.entry(name).or_default() += time;
            }
        }
    }
}

/// What the spans of all threads took since the last call.
pub(crate) fn take() -> Totals {
    std::mem::take(&mut TOTALS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Books the spans of dmuon from now on.
pub(crate) fn install() {
    tracing::subscriber::set_global_default(Clock).expect("no other subscriber is installed");
}

/// Spans are named by the address of their static name, which is all that is needed of them.
struct Clock;

impl Subscriber for Clock {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target().starts_with("dmuon")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let name = span.metadata().name();
        LOCAL.with_borrow_mut(|local| {
            local.book();
            local.open.push(name);
        });
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    /// Spans of dmuon are entered where they are made, and never again.
    fn exit(&self, _: &Id) {
        LOCAL.with_borrow_mut(Local::close);
    }
}
