//! The flight recorder: what a rank did lately, and exact counts of what it moved since the start.

use crate::{Call, OpKind, Rank};
use serde::Serialize;
use std::{
    collections::{BTreeMap, VecDeque},
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// A handle to a rank's recorder; clones share it.
///
/// Events go to a ring that keeps the latest; counters never wrap and never drop anything.
#[derive(Clone, Debug)]
pub struct Recorder {
    inner: Arc<Inner>,
}

/// One thing that happened on a rank.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    /// Time since the world started.
    #[serde(rename = "at_seconds", serialize_with = "as_seconds")]
    pub at: Duration,
    /// What happened.
    pub kind: EventKind,
    /// The boundary or parameter it happened to.
    pub label: Arc<str>,
    /// The group, for collectives.
    pub group: Option<Arc<str>>,
    /// Which call of the group, for collectives.
    pub sequence: Option<u64>,
    /// Payload bytes, for collectives; otherwise whatever the event is about.
    pub bytes: u64,
}

/// What kind of thing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// A collective was started.
    Issued(OpKind),
    /// A wait for a collective returned its result.
    Completed(OpKind),
    /// A wait for a collective returned an error.
    Failed(OpKind),
    /// Forward entered a boundary.
    ForwardEnter,
    /// Forward left a boundary.
    ForwardLeave,
    /// Backward entered a boundary.
    BackwardEnter,
    /// Backward left a boundary.
    BackwardLeave,
    /// Backward reached its last step.
    Root,
    /// An owner updated its matrices.
    OwnerStep,
    /// An owner published new weights.
    Publish,
    /// A rank began to wait.
    Wait,
}

/// What one kind of collective moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OpCount {
    /// Calls started.
    pub num_calls: u64,
    /// Logical payload: received by a broadcast or all-gather, sent by the others. Summed over a
    /// group of N, a broadcast or reduce counts N - 1 times its payload.
    pub payload_bytes: u64,
    /// Padding and bookkeeping lanes that travelled along, counted the same way.
    pub overhead_bytes: u64,
}

/// What a rank moved, by group and collective.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    groups: BTreeMap<Arc<str>, BTreeMap<OpKind, OpCount>>,
}

/// The recording of one started collective.
#[derive(Clone, Debug)]
pub struct Trace {
    recorder: Recorder,
    op: OpKind,
    label: Arc<str>,
    group: Arc<str>,
    sequence: u64,
    bytes: u64,
}

#[derive(Debug)]
struct Inner {
    rank: Rank,
    world_start: Instant,
    capacity: usize,
    tape: Mutex<Tape>,
}

#[derive(Debug, Default)]
struct Tape {
    events: VecDeque<Event>,
    num_dropped: u64,
    counters: Counters,
}

/// What a dump holds.
#[derive(Serialize)]
struct Dump<'a> {
    rank: Rank,
    num_dropped_events: u64,
    counters: &'a Counters,
    events: &'a VecDeque<Event>,
}

impl Recorder {
    /// A recorder that keeps the latest `capacity` events, timed from `world_start`.
    pub fn new(rank: Rank, world_start: Instant, capacity: usize) -> Self {
        Self { inner: Arc::new(Inner { rank, world_start, capacity, tape: Mutex::default() }) }
    }

    /// Records something that is no collective.
    pub fn mark(&self, kind: EventKind, label: &Arc<str>) {
        self.mark_bytes(kind, label, 0);
    }

    /// Records something that is no collective but has a size.
    pub fn mark_bytes(&self, kind: EventKind, label: &Arc<str>, bytes: u64) {
        let event = Event {
            at: self.now(),
            kind,
            label: label.clone(),
            group: None,
            sequence: None,
            bytes,
        };
        self.lock().push(event, self.inner.capacity);
    }

    /// Counts and records the start of a collective by `rank` of a group of `size`. Engines call
    /// this once per started call.
    pub fn issue(
        &self,
        call: &Call,
        group: &Arc<str>,
        sequence: u64,
        (rank, size): (usize, usize),
    ) -> Trace {
        let count = OpCount::of(call, rank, size);
        let trace = Trace {
            recorder: self.clone(),
            op: call.op.kind(),
            label: call.label.clone(),
            group: group.clone(),
            sequence,
            bytes: count.payload_bytes,
        };
        let event = trace.event(EventKind::Issued(trace.op));
        let mut tape = self.lock();
        tape.counters.add(group, trace.op, count);
        tape.push(event, self.inner.capacity);
        trace
    }

    /// What was moved so far.
    pub fn counters(&self) -> Counters {
        self.lock().counters.clone()
    }

    /// Starts counting anew. Events stay.
    pub fn reset_counters(&self) {
        self.lock().counters = Counters::default();
    }

    /// The latest events, oldest first.
    pub fn events(&self) -> Vec<Event> {
        self.lock().events.iter().cloned().collect()
    }

    /// Everything as JSON.
    pub fn dump_json(&self) -> String {
        let tape = self.lock();
        let dump = Dump {
            rank: self.inner.rank,
            num_dropped_events: tape.num_dropped,
            counters: &tape.counters,
            events: &tape.events,
        };
        serde_json::to_string_pretty(&dump).expect("plain numbers and strings are always JSON")
    }

    /// Writes the dump as `dmuon-rank-N.json` in `directory`, whole or not at all.
    ///
    /// # Errors
    /// The directory cannot be made or written.
    pub fn dump_to(&self, directory: &Path) -> io::Result<PathBuf> {
        fs::create_dir_all(directory)?;
        let path = directory.join(format!("dmuon-rank-{}.json", self.inner.rank));
        let unfinished = path.with_extension(format!("json.{}", std::process::id()));
        fs::write(&unfinished, self.dump_json())?;
        fs::rename(&unfinished, &path)?;
        Ok(path)
    }

    fn now(&self) -> Duration {
        self.inner.world_start.elapsed()
    }

    /// The tape is consistent at every step, so a panic elsewhere does no harm.
    fn lock(&self) -> MutexGuard<'_, Tape> {
        self.inner.tape.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tape {
    fn push(&mut self, event: Event, capacity: usize) {
        if self.events.len() >= capacity {
            self.events.pop_front();
            self.num_dropped += 1;
        }
        if capacity > 0 {
            self.events.push_back(event);
        }
    }
}

impl Trace {
    /// Records that the wait returned a result.
    pub fn completed(&self) {
        self.record(EventKind::Completed(self.op));
    }

    /// Records that the wait returned an error.
    pub fn failed(&self) {
        self.record(EventKind::Failed(self.op));
    }

    fn record(&self, kind: EventKind) {
        let event = self.event(kind);
        self.recorder.lock().push(event, self.recorder.inner.capacity);
    }

    fn event(&self, kind: EventKind) -> Event {
        Event {
            at: self.recorder.now(),
            kind,
            label: self.label.clone(),
            group: Some(self.group.clone()),
            sequence: Some(self.sequence),
            bytes: self.bytes,
        }
    }
}

impl OpCount {
    /// What `call` moves for `rank` of a group of `size`.
    fn of(call: &Call, rank: usize, size: usize) -> Self {
        let parts = call.traffic_parts(rank, size) * call.element.num_bytes() as u64;
        let overhead_elems = call.num_elems.saturating_sub(call.payload_elems);
        Self {
            num_calls: 1,
            payload_bytes: parts * call.payload_elems as u64,
            overhead_bytes: parts * overhead_elems as u64,
        }
    }

    fn add(&mut self, other: Self) {
        self.num_calls += other.num_calls;
        self.payload_bytes += other.payload_bytes;
        self.overhead_bytes += other.overhead_bytes;
    }
}

impl Counters {
    /// Totals of `op` over all groups.
    pub fn op(&self, op: OpKind) -> OpCount {
        let mut total = OpCount::default();
        self.groups.values().filter_map(|ops| ops.get(&op)).for_each(|count| total.add(*count));
        total
    }

    /// What `op` moved in `group`.
    pub fn of_group(&self, group: &str, op: OpKind) -> OpCount {
        self.groups.get(group).and_then(|ops| ops.get(&op)).copied().unwrap_or_default()
    }

    fn add(&mut self, group: &Arc<str>, op: OpKind, count: OpCount) {
        self.groups.entry(group.clone()).or_default().entry(op).or_default().add(count);
    }
}

fn as_seconds<S: serde::Serializer>(at: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(at.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Element, Op};

    #[test]
    fn counters_are_exact_although_the_ring_wraps() {
        let recorder = Recorder::new(Rank(1), Instant::now(), 3);
        let call = Call::new(Op::Broadcast { root: 0 }, "layers.0", Element::F32, 16);
        for sequence in 0..10 {
            let call = call.clone().with_payload(10);
            recorder.issue(&call, &"shard/weights".into(), sequence, (1, 4)).completed();
        }
        assert_eq!(recorder.events().len(), 3);
        let expected = OpCount { num_calls: 10, payload_bytes: 400, overhead_bytes: 240 };
        assert_eq!(recorder.counters().op(OpKind::Broadcast), expected);
        assert_eq!(recorder.counters().of_group("shard/weights", OpKind::Broadcast), expected);
        recorder.reset_counters();
        assert_eq!(recorder.counters(), Counters::default());
    }

    #[test]
    fn dumps_are_readable_json() {
        let recorder = Recorder::new(Rank(2), Instant::now(), 8);
        recorder.mark(EventKind::ForwardEnter, &"layers.0".into());
        let directory = std::env::temp_dir().join(format!("dmuon-dump-{}", std::process::id()));
        let path = recorder.dump_to(&directory).expect("the temporary directory is writable");
        let dump: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(path).expect("just written"))
                .expect("valid JSON");
        assert_eq!(dump["rank"], 2);
        assert_eq!(dump["events"][0]["kind"], "forward_enter");
        fs::remove_dir_all(directory).expect("just made");
    }
}
