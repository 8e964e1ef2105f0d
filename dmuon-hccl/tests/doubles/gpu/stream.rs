//! Streams: threads that do what they are given, in order; and events, which are marks in them.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
};

pub(crate) type Task = Box<dyn FnOnce() + Send>;

/// Every stream that has not ended, with its device.
static STREAMS: Mutex<Vec<(i32, Stream)>> = Mutex::new(Vec::new());

/// A stream; its thread ends when all is done after it is ended.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    number: u64,
    tasks: mpsc::Sender<Task>,
}

/// The streams of a device on which there may be something.
pub(crate) fn all_of(device: i32) -> Vec<Stream> {
    let streams = lock(&STREAMS);
    let here = streams.iter().filter(|(other, _)| *other == device);
    here.map(|(_, stream)| stream.clone()).collect()
}

impl Stream {
    /// A new stream of a device.
    pub(crate) fn of(device: i32) -> Self {
        static NUM_STREAMS: AtomicU64 = AtomicU64::new(0);
        let (tasks, receiver) = mpsc::channel::<Task>();
        thread::spawn(move || receiver.into_iter().for_each(|task| task()));
        let stream = Self { number: NUM_STREAMS.fetch_add(1, Ordering::Relaxed), tasks };
        lock(&STREAMS).push((device, stream.clone()));
        stream
    }

    pub(crate) fn push(&self, task: impl FnOnce() + Send + 'static) {
        self.tasks.send(Box::new(task)).expect("a stream's thread lives as long as the stream");
    }

    /// Waits until everything is done that is on the stream now.
    pub(crate) fn synchronize(&self) {
        Mark::behind(std::slice::from_ref(self)).wait();
    }

    /// Lets it end when everything is done that is on it, until when its device counts it.
    pub(crate) fn end(self) {
        let number = self.number;
        self.push(move || lock(&STREAMS).retain(|(_, stream)| stream.number != number));
    }
}

/// What was on some streams, and whether they are past it.
#[derive(Debug, Default)]
pub(crate) struct Mark {
    num_behind: Mutex<usize>,
    changed: Condvar,
}

impl Mark {
    fn behind(streams: &[Stream]) -> Arc<Self> {
        let (num_behind, changed) = (Mutex::new(streams.len()), Condvar::new());
        let mark = Arc::new(Self { num_behind, changed });
        for stream in streams {
            let mark = mark.clone();
            stream.push(move || {
                *lock(&mark.num_behind) -= 1;
                mark.changed.notify_all();
            });
        }
        mark
    }

    fn is_passed(&self) -> bool {
        *lock(&self.num_behind) == 0
    }

    pub(crate) fn wait(&self) {
        let waited = self.changed.wait_while(lock(&self.num_behind), |behind| *behind > 0);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// A mark that can be set again. One that never was is passed.
#[derive(Debug, Default)]
pub(crate) struct Event(Mutex<Arc<Mark>>);

impl Event {
    /// Sets it behind what is on these streams now.
    pub(crate) fn record(&self, streams: &[Stream]) {
        *lock(&self.0) = Mark::behind(streams);
    }

    pub(crate) fn is_passed(&self) -> bool {
        self.mark().is_passed()
    }

    /// Where it is set now.
    pub(crate) fn mark(&self) -> Arc<Mark> {
        lock(&self.0).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
