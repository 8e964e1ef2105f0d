//! Counts the bytes a rank can reach, which sharing an `Arc` would otherwise hide.

use crate::SharedBuffer;
use std::{
    collections::HashMap,
    fmt,
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What a rank holds a buffer for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[non_exhaustive]
pub enum Holding {
    /// Whole weights that belong to another rank, on loan for a forward or backward.
    Weights,
    /// Packed gradients on their way to an owner.
    Gradients,
    /// Weights this rank owns.
    OwnedWeights,
    /// Optimizer state this rank owns.
    OptimizerState,
    /// Anything else, such as staging for a device.
    Staging,
}

/// A handle to a rank's ledger; clones share it.
///
/// A buffer held twice for the same purpose counts once: the rank reaches it once.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    books: Arc<Mutex<Books>>,
}

/// Keeps a buffer alive, and counted, until dropped. A clone is a lease of its own.
pub struct Lease {
    ledger: Ledger,
    holding: Holding,
    buffer: SharedBuffer,
}

/// Counts memory that is no buffer of ours, such as a device's, until dropped.
#[derive(Debug)]
pub struct Count {
    ledger: Ledger,
    holding: Holding,
    num_bytes: usize,
}

#[derive(Debug, Default)]
struct Books {
    /// How many leases each buffer has, by purpose and address.
    leases: HashMap<(Holding, usize), usize>,
    accounts: HashMap<Holding, Account>,
    total: Account,
}

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    current_bytes: usize,
    peak_bytes: usize,
}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts `buffer` as reachable for `holding` until the lease is dropped.
    pub fn hold(&self, holding: Holding, buffer: SharedBuffer) -> Lease {
        self.lock().enter(holding, &buffer);
        Lease { ledger: self.clone(), holding, buffer }
    }

    /// Counts `num_bytes` as reachable for `holding` until the count is dropped.
    pub fn count(&self, holding: Holding, num_bytes: usize) -> Count {
        self.lock().add(holding, num_bytes);
        Count { ledger: self.clone(), holding, num_bytes }
    }

    /// Bytes held for `holding` now.
    pub fn current_bytes(&self, holding: Holding) -> usize {
        self.lock().account(holding).current_bytes
    }

    /// The most bytes ever held for `holding` at once, or since the last reset.
    pub fn peak_bytes(&self, holding: Holding) -> usize {
        self.lock().account(holding).peak_bytes
    }

    /// Bytes held now, over all purposes.
    pub fn current_total_bytes(&self) -> usize {
        self.lock().total.current_bytes
    }

    /// The most bytes ever held at once, over all purposes.
    pub fn peak_total_bytes(&self) -> usize {
        self.lock().total.peak_bytes
    }

    /// Starts measuring every peak anew from what is held now.
    pub fn reset_peak(&self) {
        let mut books = self.lock();
        books.accounts.values_mut().for_each(Account::reset_peak);
        books.total.reset_peak();
    }

    /// Entries are all-or-nothing, so a panic elsewhere does no harm.
    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    fn account(&self, holding: Holding) -> Account {
        self.accounts.get(&holding).copied().unwrap_or_default()
    }

    fn enter(&mut self, holding: Holding, buffer: &SharedBuffer) {
        let leases = self.leases.entry((holding, buffer.address())).or_default();
        *leases += 1;
        if *leases == 1 {
            self.add(holding, buffer.len_bytes());
        }
    }

    fn add(&mut self, holding: Holding, num_bytes: usize) {
        self.accounts.entry(holding).or_default().add(num_bytes);
        self.total.add(num_bytes);
    }

    fn subtract(&mut self, holding: Holding, num_bytes: usize) {
        self.accounts.entry(holding).or_default().current_bytes -= num_bytes;
        self.total.current_bytes -= num_bytes;
    }

    fn leave(&mut self, holding: Holding, buffer: &SharedBuffer) {
        let key = (holding, buffer.address());
        let Some(leases) = self.leases.get_mut(&key) else {
            return;
        };
        *leases -= 1;
        if *leases == 0 {
            self.leases.remove(&key);
            self.subtract(holding, buffer.len_bytes());
        }
    }
}

impl Account {
    fn add(&mut self, bytes: usize) {
        self.current_bytes += bytes;
        self.peak_bytes = self.peak_bytes.max(self.current_bytes);
    }

    fn reset_peak(&mut self) {
        self.peak_bytes = self.current_bytes;
    }
}

impl Lease {
    /// The buffer, also for sharing it on without counting the clone.
    pub fn buffer(&self) -> &SharedBuffer {
        &self.buffer
    }

    /// What the buffer is held for.
    pub fn holding(&self) -> Holding {
        self.holding
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        self.ledger.lock().subtract(self.holding, self.num_bytes);
    }
}

impl Clone for Lease {
    fn clone(&self) -> Self {
        self.ledger.hold(self.holding, self.buffer.clone())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.ledger.lock().leave(self.holding, &self.buffer);
    }
}

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Deref for Lease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({:?}, {:?})", self.holding, self.buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buffer;

    #[test]
    fn shared_memory_counts_for_every_rank_that_reaches_it() {
        let (owner, peer) = (Ledger::new(), Ledger::new());
        let buffer = Buffer::zeroed(100).freeze();
        let own = owner.hold(Holding::OwnedWeights, buffer.clone());
        let lent = peer.hold(Holding::Weights, buffer);
        assert_eq!(owner.current_bytes(Holding::OwnedWeights), 100);
        assert_eq!(peer.current_bytes(Holding::Weights), 100);
        drop((own, lent));
        assert_eq!(peer.current_bytes(Holding::Weights), 0);
        assert_eq!(peer.peak_bytes(Holding::Weights), 100);
    }

    #[test]
    fn one_buffer_held_twice_counts_once() {
        let ledger = Ledger::new();
        let first = ledger.hold(Holding::Weights, Buffer::zeroed(8).freeze());
        let second = first.clone();
        assert_eq!(ledger.current_bytes(Holding::Weights), 8);
        drop(first);
        assert_eq!(ledger.current_total_bytes(), 8);
        drop(second);
        let count = ledger.count(Holding::Weights, 8);
        assert_eq!(ledger.current_bytes(Holding::Weights), 8);
        drop(count);
        assert_eq!(ledger.current_total_bytes(), 0);
    }

    #[test]
    fn peaks_restart_from_the_present() {
        let ledger = Ledger::new();
        let kept = ledger.hold(Holding::Gradients, Buffer::zeroed(8).freeze());
        drop(ledger.hold(Holding::Gradients, Buffer::zeroed(16).freeze()));
        assert_eq!(ledger.peak_bytes(Holding::Gradients), 24);
        ledger.reset_peak();
        assert_eq!(ledger.peak_bytes(Holding::Gradients), 8);
        drop(kept);
    }
}
