//! Spreads items over threads of the current rayon pool; who takes which is left to chance.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

/// Threads that take part in a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Team(pub(crate) NonZeroUsize);

impl Team {
    /// The calling thread alone.
    pub(crate) const SOLO: Self = Self(NonZeroUsize::MIN);

    pub(crate) fn size(self) -> usize {
        self.0.get()
    }

    /// Runs `work` where its parts can be shared: on a thread of the pool, if there is a team.
    pub(crate) fn gather<R: Send>(self, work: impl FnOnce() -> R + Send) -> R {
        if self == Self::SOLO { work() } else { rayon::scope(|_| work()) }
    }

    /// Calls `work` once for every item. One thread keeps their order and allocates nothing.
    pub(crate) fn each<T: Send>(
        self,
        items: impl Iterator<Item = T> + Send,
        work: impl Fn(T) + Sync,
    ) {
        if self == Self::SOLO {
            return items.for_each(work);
        }
        let items = Mutex::new(items);
        let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
        fan_out(self.size(), &|| {
            while let Some(item) = next() {
                work(item);
            }
        });
    }
}

fn fan_out(num_threads: usize, work: &(impl Fn() + Sync)) {
    if num_threads <= 1 {
        work();
    } else {
        rayon::join(work, || fan_out(num_threads - 1, work));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_item_is_worked_on_once_by_any_team() {
        for threads in 1..=5 {
            let team = Team(NonZeroUsize::new(threads).unwrap());
            let seen: Vec<AtomicUsize> = (0..37).map(|_| AtomicUsize::new(0)).collect();
            team.gather(|| {
                team.each(0..seen.len(), |i| {
                    seen[i].fetch_add(1, Ordering::Relaxed);
                });
            });
            assert!(seen.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        }
    }
}
