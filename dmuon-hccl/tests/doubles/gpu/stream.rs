//! Streams: threads that do what they are given, in order; and events, which are marks in them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
};

pub(crate) type Task = Box<dyn FnOnce() + Send>;

/// A stream; its thread ends when all is done after it is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Stream(mpsc::Sender<Task>);

impl Stream {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = mpsc::channel::<Task>();
        thread::spawn(move || receiver.into_iter().for_each(|task| task()));
        Self(sender)
    }

    pub(crate) fn push(&self, task: impl FnOnce() + Send + 'static) {
        self.0.send(Box::new(task)).expect("a stream's thread lives as long as the stream");
    }

    /// Waits until everything is done that is on the stream now.
    pub(crate) fn synchronize(&self) {
        let (sender, receiver) = mpsc::channel();
        self.push(move || sender.send(()).expect("whoever synchronizes waits"));
        receiver.recv().expect("a stream does what it is given");
    }
}

/// A mark that a stream passes.
#[derive(Debug, Default)]
pub(crate) struct Event {
    recorded: AtomicU64,
    passed: Arc<AtomicU64>,
}

impl Event {
    pub(crate) fn record(&self, stream: &Stream) {
        let number = self.recorded.fetch_add(1, Ordering::AcqRel) + 1;
        let passed = self.passed.clone();
        stream.push(move || passed.store(number, Ordering::Release));
    }

    pub(crate) fn is_passed(&self) -> bool {
        self.passed.load(Ordering::Acquire) >= self.recorded.load(Ordering::Acquire)
    }
}
