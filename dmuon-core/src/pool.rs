//! Recycles buffer memory by size, because faulting in fresh pages costs more than the arithmetic.

use crate::buffer::{ALIGNMENT, Buffer, Line, fresh_lines};
use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

/// What a pool keeps for reuse however little of it was ever in use at once: 256 MiB.
const DEFAULT_RETAINED_BYTES: usize = 256 << 20;

/// A handle to a rank's pool of buffers; clones share the pool.
///
/// Memory of a dropped buffer is kept for the next one of the same size. Without an explicit cap
/// the pool keeps at most as much as was ever in use at once (or 256 MiB, if that is more) and lets
/// go of what has rested longest.
#[derive(Clone, Debug, Default)]
pub struct BufferPool {
    inner: Arc<Inner>,
}

/// Where a buffer's memory goes when the buffer does: a pool that may be gone, or nowhere.
#[derive(Clone)]
pub(crate) struct Home(Weak<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Memory at rest, longest first.
    free: VecDeque<Vec<Line>>,
    retained_bytes: usize,
    in_use_bytes: usize,
    high_water_bytes: usize,
    num_allocations: u64,
    retained_cap: Option<usize>,
}

impl BufferPool {
    /// An empty pool with the default cap.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty pool that keeps at most `bytes` at rest.
    pub fn with_retained_cap(bytes: usize) -> Self {
        let pool = Self::new();
        pool.inner.lock().retained_cap = Some(bytes);
        pool
    }

    /// A buffer of `len_bytes` with unspecified, but initialized, contents.
    pub fn take(&self, len_bytes: usize) -> Buffer {
        let num_lines = len_bytes.div_ceil(ALIGNMENT);
        let reused = self.inner.lock().take(num_lines);
        let lines = reused.unwrap_or_else(|| fresh_lines(len_bytes));
        Buffer::from_lines(lines, len_bytes, Home(Arc::downgrade(&self.inner)))
    }

    /// A buffer of `len_bytes` zeros.
    pub fn take_zeroed(&self, len_bytes: usize) -> Buffer {
        let mut buffer = self.take(len_bytes);
        buffer.as_mut_slice().fill(0);
        buffer
    }

    /// A copy of `bytes`.
    pub fn take_copy(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.take(bytes.len());
        buffer.as_mut_slice().copy_from_slice(bytes);
        buffer
    }

    /// Bytes in living buffers of this pool, rounded up to whole lines of 64.
    pub fn in_use_bytes(&self) -> usize {
        self.inner.lock().in_use_bytes
    }

    /// The most bytes that were ever in use at once, or since the last reset.
    pub fn high_water_bytes(&self) -> usize {
        self.inner.lock().high_water_bytes
    }

    /// Starts measuring the high water anew from what is in use now.
    pub fn reset_high_water(&self) {
        let mut state = self.inner.lock();
        state.high_water_bytes = state.in_use_bytes;
    }

    /// Bytes at rest, kept for reuse.
    pub fn retained_bytes(&self) -> usize {
        self.inner.lock().retained_bytes
    }

    /// How many buffers could not be served from memory at rest.
    pub fn num_allocations(&self) -> u64 {
        self.inner.lock().num_allocations
    }

    /// Gives all memory at rest back to the operating system.
    pub fn trim(&self) {
        let free = {
            let mut state = self.inner.lock();
            state.retained_bytes = 0;
            std::mem::take(&mut state.free)
        };
        drop(free);
    }
}

impl Inner {
    /// Counters stay consistent at every step, so a panic elsewhere does no harm.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Counts a buffer as in use and finds memory for it, the most recently used first.
    fn take(&mut self, num_lines: usize) -> Option<Vec<Line>> {
        let bytes = num_lines * ALIGNMENT;
        self.in_use_bytes += bytes;
        self.high_water_bytes = self.high_water_bytes.max(self.in_use_bytes);
        if num_lines == 0 {
            return Some(Vec::new());
        }
        let found = self.free.iter().rposition(|lines| lines.len() == num_lines);
        match found.and_then(|at| self.free.remove(at)) {
            Some(lines) => {
                self.retained_bytes -= bytes;
                Some(lines)
            }
            None => {
                self.num_allocations += 1;
                None
            }
        }
    }

    /// Puts memory to rest and returns what the cap has no room for, to be freed without the lock.
    fn put(&mut self, lines: Vec<Line>) -> Vec<Vec<Line>> {
        let bytes = lines.len() * ALIGNMENT;
        self.in_use_bytes -= bytes;
        self.retained_bytes += bytes;
        self.free.push_back(lines);
        let cap = self.retained_cap.unwrap_or(self.high_water_bytes.max(DEFAULT_RETAINED_BYTES));
        let mut freed = Vec::new();
        while self.retained_bytes > cap {
            let Some(oldest) = self.free.pop_front() else {
                break;
            };
            self.retained_bytes -= oldest.len() * ALIGNMENT;
            freed.push(oldest);
        }
        freed
    }
}

impl Home {
    /// For buffers outside any pool.
    pub(crate) fn none() -> Self {
        Self(Weak::new())
    }

    /// Takes the memory of a dropped buffer back.
    pub(crate) fn take_back(&self, lines: Vec<Line>) {
        if lines.is_empty() {
            return;
        }
        if let Some(pool) = self.0.upgrade() {
            let freed = pool.lock().put(lines);
            drop(freed);
        }
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("in_use_bytes", &self.in_use_bytes)
            .field("high_water_bytes", &self.high_water_bytes)
            .field("retained_bytes", &self.retained_bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_memory_is_reused_for_the_same_size_only() {
        let pool = BufferPool::new();
        let address = pool.take(1000).as_slice().as_ptr().addr();
        assert_eq!(pool.take(1000).as_slice().as_ptr().addr(), address);
        assert_eq!(pool.num_allocations(), 1);
        drop(pool.take(4000));
        assert_eq!(pool.num_allocations(), 2);
        assert_eq!(pool.retained_bytes(), 1024 + 4032);
    }

    #[test]
    fn the_last_shared_handle_returns_the_memory() {
        let pool = BufferPool::new();
        let shared = pool.take_zeroed(64).freeze();
        let reader = shared.clone();
        drop(shared);
        assert_eq!(pool.in_use_bytes(), 64);
        drop(reader);
        assert_eq!((pool.in_use_bytes(), pool.high_water_bytes()), (0, 64));
    }

    #[test]
    fn the_cap_frees_what_rested_longest() {
        let pool = BufferPool::with_retained_cap(256);
        let buffers = [64, 128, 192].map(|bytes| pool.take(bytes));
        drop(buffers);
        assert_eq!(pool.retained_bytes(), 192);
        pool.trim();
        assert_eq!(pool.retained_bytes(), 0);
    }

    #[test]
    fn buffers_outlive_their_pool() {
        let pool = BufferPool::new();
        let buffer = pool.take_copy(&[1, 2, 3]);
        drop(pool);
        assert_eq!(buffer.as_slice(), [1, 2, 3]);
    }

    #[test]
    fn empty_buffers_cost_nothing() {
        let pool = BufferPool::new();
        drop(pool.take(0));
        assert_eq!((pool.num_allocations(), pool.high_water_bytes()), (0, 0));
    }
}
