//! What a rank has heard: the world's failure, ranks that returned, posted values, turns; and waiting
//! for it.

use super::log::{Place, Progress, has_started};
use dmuon_core::{Error, Rank};
use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// News for one rank, and the one place where its threads wait.
#[derive(Debug, Default)]
pub struct Watch {
    /// Whether there is bad news at all; spares busy loops the lock.
    disturbed: AtomicBool,
    news: Mutex<News>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct News {
    failure: Option<Error>,
    gone: HashMap<Rank, Progress>,
    posts: HashMap<String, String>,
    /// Places whose turn it is to enter the library, one after the other.
    turns: VecDeque<Place>,
    /// The host has closed the connection.
    hung_up: bool,
}

impl Watch {
    /// Why the world has failed, if it has.
    pub fn failure(&self) -> Option<Error> {
        if self.disturbed.load(Ordering::Acquire) { self.lock().failure.clone() } else { None }
    }

    /// Whether `rank` has returned without starting the call at `place`.
    pub fn returned_before(&self, rank: Rank, place: Place) -> bool {
        self.disturbed.load(Ordering::Acquire)
            && self.lock().gone.get(&rank).is_some_and(|progress| !has_started(progress, place))
    }

    /// Waits until `poll` has something, the world has failed, or `deadline` has passed. Whatever
    /// makes `poll` change must [`notify`](Self::notify).
    pub fn wait<T>(
        &self,
        deadline: Duration,
        mut poll: impl FnMut() -> Option<T>,
    ) -> Option<Result<T, Error>> {
        self.wait_with(deadline, |news| poll().map(Ok).or_else(|| news.failure.clone().map(Err)))
    }

    /// Wakes whoever waits.
    pub fn notify(&self) {
        let _news = self.lock();
        self.changed.notify_all();
    }

    /// Waits for the world to fail.
    pub(super) fn wait_for_failure(&self, deadline: Duration) -> Option<Error> {
        self.wait_with(deadline, |news| news.failure.clone())
    }

    /// Waits until all `num_ranks` ranks have returned or the world has failed.
    ///
    /// # Errors
    /// Those who have not, when `deadline` has passed.
    pub(super) fn wait_for_returns(
        &self,
        num_ranks: usize,
        deadline: Duration,
    ) -> Result<Result<(), Error>, Vec<Rank>> {
        let poll = |news: &News| {
            let all = (news.gone.len() >= num_ranks).then_some(Ok(()));
            all.or_else(|| news.failure.clone().map(Err))
        };
        self.wait_with(deadline, poll).ok_or_else(|| {
            let gone = &self.lock().gone;
            (0..num_ranks).map(Rank).filter(|rank| !gone.contains_key(rank)).collect()
        })
    }

    /// Waits for a posted value, or for the world to fail.
    pub(super) fn wait_for_post(
        &self,
        key: &str,
        deadline: Duration,
    ) -> Option<Result<String, Error>> {
        self.wait_with(deadline, |news| {
            let post = news.posts.get(key).cloned().map(Ok);
            post.or_else(|| news.failure.clone().map(Err))
        })
    }

    /// A posted value, if it is here.
    pub(super) fn posted(&self, key: &str) -> Option<String> {
        self.lock().posts.get(key).cloned()
    }

    /// Whether `place` is the first in line.
    pub(super) fn is_turn(&self, place: Place) -> bool {
        self.lock().turns.front() == Some(&place)
    }

    /// Lets the next in line, if `place` is the first.
    pub(super) fn pass_turn(&self, place: Place) {
        self.lock().turns.pop_front_if(|first| *first == place);
        self.changed.notify_all();
    }

    pub(super) fn turn(&self, place: Place) {
        self.lock().turns.push_back(place);
        self.changed.notify_all();
    }

    /// Waits for the host to close the connection.
    pub(super) fn wait_for_hang_up(&self, deadline: Duration) {
        self.wait_with(deadline, |news| news.hung_up.then_some(()));
    }

    pub(super) fn hung_up(&self) {
        self.lock().hung_up = true;
        self.changed.notify_all();
    }

    /// Takes note of the first failure.
    pub(super) fn fail(&self, cause: Error) {
        self.disturb(|news| {
            news.failure.get_or_insert(cause);
        });
    }

    pub(super) fn returned(&self, rank: Rank, progress: Progress) {
        self.disturb(|news| {
            news.gone.insert(rank, progress);
        });
    }

    pub(super) fn post(&self, key: String, value: String) {
        self.lock().posts.insert(key, value);
        self.changed.notify_all();
    }

    fn disturb(&self, change: impl FnOnce(&mut News)) {
        change(&mut self.lock());
        self.disturbed.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    fn wait_with<T>(
        &self,
        deadline: Duration,
        mut poll: impl FnMut(&News) -> Option<T>,
    ) -> Option<T> {
        let start = Instant::now();
        let mut news = self.lock();
        loop {
            if let Some(found) = poll(&news) {
                return Some(found);
            }
            let left = deadline.checked_sub(start.elapsed())?;
            news = self.changed.wait_timeout(news, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// News is whole at every step, so a panic elsewhere does no harm.
    fn lock(&self) -> MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_have_not_returned_are_known() {
        let watch = Watch::default();
        watch.returned(Rank(1), Progress::new());
        let busy = watch.wait_for_returns(3, Duration::ZERO).expect_err("two are busy");
        assert_eq!(busy, [Rank(0), Rank(2)]);
        for rank in busy {
            watch.returned(rank, Progress::new());
        }
        assert!(matches!(watch.wait_for_returns(3, Duration::ZERO), Ok(Ok(()))));
    }
}
