//! What all ranks of a world share: the slots in flight, who failed, who has returned.

use super::{
    pools_of,
    slot::{Arrival, Slot},
};
use crate::{
    BufferPool, Call, CallSite, Error, Rank, Result, SharedBuffer,
    engine::{EngineOptions, Link, Sharing},
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

/// Arithmetic over fewer bytes than this is done by the last rank to arrive: waking a thread would
/// take longer.
const INLINE_BYTES: usize = 32 << 10;

/// The shared state of a world of threads.
#[derive(Debug)]
pub(super) struct Hub {
    registry: Mutex<Registry>,
    helper: mpsc::Sender<Arc<Slot>>,
    pools: Vec<BufferPool>,
    sharing: Sharing,
    deadline: Duration,
    link: Option<Link>,
}

/// A group of the world, the world itself being 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct GroupId(u64);

/// Calls and splits of a group are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    Call,
    Split,
}

/// One meeting of a group.
#[derive(Clone, Debug)]
pub(super) struct Meeting {
    pub(super) group: GroupId,
    pub(super) lane: Lane,
    pub(super) site: CallSite,
    pub(super) ranks: Arc<[Rank]>,
}

type Key = (GroupId, Lane, u64);

#[derive(Debug, Default)]
struct Registry {
    failure: Option<(Rank, Error)>,
    /// By world rank.
    finished: Vec<bool>,
    slots: HashMap<Key, Arc<Slot>>,
    /// Groups by parent, number of the split and color.
    subgroups: HashMap<(GroupId, u64, usize), GroupId>,
    /// When each group's pretended link is free again.
    links: HashMap<GroupId, Instant>,
}

impl Hub {
    pub(super) fn new(num_ranks: usize, options: &EngineOptions) -> Result<Arc<Self>> {
        let registry = Registry { finished: vec![false; num_ranks], ..Registry::default() };
        Ok(Arc::new(Self {
            registry: Mutex::new(registry),
            helper: start_helper()?,
            pools: (0..num_ranks).map(|_| BufferPool::new()).collect(),
            sharing: options.sharing,
            deadline: options.resolved_deadline()?,
            link: options.link,
        }))
    }

    pub(super) fn num_ranks(&self) -> usize {
        self.pools.len()
    }

    pub(super) fn pool(&self, rank: Rank) -> &BufferPool {
        &self.pools[rank.0]
    }

    pub(super) fn deadline(&self) -> Duration {
        self.deadline
    }

    pub(super) fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Why the world has failed, if it has.
    pub(super) fn failure(&self) -> Option<(Rank, Error)> {
        self.lock().failure.clone()
    }

    /// Enters a call by the member `rank` of a group and returns the slot to wait in.
    pub(super) fn start(
        &self,
        meeting: &Meeting,
        rank: usize,
        call: Call,
        input: Option<SharedBuffer>,
    ) -> Result<Arc<Slot>> {
        let num_bytes = call.part_bytes() * meeting.ranks.len();
        let (slot, arrival) = self.enter(meeting, rank, call, input)?;
        if arrival.job_opened {
            self.open_job(&slot, num_bytes);
        }
        Ok(slot)
    }

    fn enter(
        &self,
        meeting: &Meeting,
        rank: usize,
        call: Call,
        input: Option<SharedBuffer>,
    ) -> Result<(Arc<Slot>, Arrival)> {
        let mut registry = self.lock();
        registry.check()?;
        let key = meeting.key();
        let slot = registry.slot(self, meeting);
        let call_bytes = call.part_bytes();
        let arrival = match slot.arrive(rank, call, input) {
            Ok(arrival) => arrival,
            Err(error @ Error::RankReturned { .. }) => return Err(error),
            Err(error) => {
                drop(registry);
                return Err(self.fail(meeting.ranks[rank], error));
            }
        };
        if arrival.complete {
            registry.slots.remove(&key);
        }
        let here = |link: &Link| arrival.flows && meeting.site.group.starts_with(link.groups);
        if let Some(link) = self.link.filter(here) {
            slot.deliver_at(registry.occupy_link(meeting.group, link.transfer_time(call_bytes)));
        }
        Ok((slot, arrival))
    }

    /// Fails the world on behalf of `rank` and returns why it failed first.
    pub(super) fn fail(&self, rank: Rank, cause: Error) -> Error {
        let mut registry = self.lock();
        if let Some((_, first)) = &registry.failure {
            return first.clone();
        }
        registry.failure = Some((rank, cause.clone()));
        for slot in registry.slots.drain().map(|(_, slot)| slot) {
            slot.fail(&cause);
        }
        cause
    }

    /// Notes that `rank` returned: whoever needs it from now on learns so at once.
    pub(super) fn finish(&self, rank: Rank) {
        let mut registry = self.lock();
        registry.finished[rank.0] = true;
        registry.slots.retain(|_, slot| !slot.lose_rank(rank));
    }

    /// The group that `color` forms in a split; the same for every member.
    pub(super) fn subgroup(&self, parent: GroupId, split: u64, color: usize) -> GroupId {
        let mut registry = self.lock();
        let next = GroupId(registry.subgroups.len() as u64 + 1);
        *registry.subgroups.entry((parent, split, color)).or_insert(next)
    }

    fn open_job(&self, slot: &Arc<Slot>, num_bytes: usize) {
        if num_bytes <= INLINE_BYTES {
            slot.help();
        } else if self.helper.send(slot.clone()).is_err() {
            // Without the helper, whoever waits does the work.
            tracing::warn!("the helper thread of the in-process engine is gone");
        }
    }

    /// Whoever panics while holding the lock has changed nothing yet.
    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry {
    fn check(&self) -> Result<()> {
        self.failure.as_ref().map_or(Ok(()), |(_, cause)| Err(cause.clone()))
    }

    fn slot(&mut self, hub: &Hub, meeting: &Meeting) -> Arc<Slot> {
        let finished = &self.finished;
        let slot = self.slots.entry(meeting.key()).or_insert_with(|| {
            let gone = meeting.ranks.iter().map(|rank| finished[rank.0]).collect();
            let pools = pools_of(hub, &meeting.ranks);
            Arc::new(Slot::new(meeting.site.clone(), meeting.ranks.clone(), pools, gone))
        });
        slot.clone()
    }

    fn occupy_link(&mut self, group: GroupId, transfer: Duration) -> Instant {
        let now = Instant::now();
        let free = self.links.entry(group).or_insert(now);
        *free = (*free).max(now) + transfer;
        *free
    }
}

impl Meeting {
    fn key(&self) -> Key {
        (self.group, self.lane, self.site.sequence)
    }
}

impl GroupId {
    pub(super) const WORLD: Self = Self(0);
}

/// A thread that does open arithmetic while ranks do something else; ends with its world.
fn start_helper() -> Result<mpsc::Sender<Arc<Slot>>> {
    let (sender, receiver) = mpsc::channel::<Arc<Slot>>();
    let helper = move || receiver.into_iter().for_each(|slot| slot.help());
    thread::Builder::new()
        .name("dmuon-helper".into())
        .spawn(helper)
        .map_err(|source| Error::Thread { rank: Rank(0), source: Arc::new(source) })?;
    Ok(sender)
}
