//! Where the ranks of a communicator meet: to be connected, and in every collective.

use crate::{
    Status,
    acl_status::EXECUTION_TIMEOUT,
    device::lock,
    hccl_status::{PARA, TIMEOUT},
    stream::Progress,
};
use std::{
    collections::HashMap,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// How long connecting waits inside a call.
const CONNECT_TIME: Duration = Duration::from_secs(15);

/// How long a collective waits on its stream.
const EXECUTION_TIME: Duration = Duration::from_secs(60);

/// Between two looks at whether a stream was stopped.
const GLANCE: Duration = Duration::from_millis(5);

/// What must be alike on all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Signature {
    pub(crate) call: &'static str,
    pub(crate) count: u64,
    pub(crate) datatype: i32,
    pub(crate) root: u32,
}

/// What every rank brought to a collective, by rank.
pub(crate) type Brought = Arc<Vec<Vec<u8>>>;

/// The ranks of a communicator.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) id: u64,
    pub(crate) size: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How many ranks have come to be connected, by kind.
    connecting: HashMap<&'static str, usize>,
    meetings: HashMap<u64, Meeting>,
}

#[derive(Debug)]
struct Meeting {
    signature: Signature,
    brought: Vec<Option<Vec<u8>>>,
    complete: Option<Brought>,
    num_left: usize,
    differs: bool,
}

impl Group {
    pub(crate) fn new(id: u64, size: usize) -> Self {
        Self { id, size, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits until all ranks have come to be connected for this `kind`, each once.
    pub(crate) fn connect(&self, kind: &'static str, patience: Option<Duration>) -> bool {
        let mut state = lock(&self.state);
        *state.connecting.entry(kind).or_default() += 1;
        self.changed.notify_all();
        let some_missing = |state: &mut State| state.connecting[kind] < self.size;
        let patience = patience.unwrap_or(CONNECT_TIME);
        let waited = self.changed.wait_timeout_while(state, patience, some_missing);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Leaves what `rank` brings to a collective, and takes what everybody brought.
    pub(crate) fn meet(
        &self,
        sequence: u64,
        (rank, signature): (usize, Signature),
        bytes: Vec<u8>,
        (progress, patience): (&Progress, Option<Duration>),
    ) -> Result<Brought, (Status, String)> {
        let mut state = lock(&self.state);
        state.arrive(sequence, self.size, (rank, signature), bytes);
        self.changed.notify_all();
        let until = Instant::now() + patience.unwrap_or(EXECUTION_TIME);
        loop {
            let meeting = state.meetings.get_mut(&sequence).expect("kept until all have left");
            if meeting.differs {
                return Err((PARA, "EI0005: the arguments are inconsistent between ranks".into()));
            }
            if let Some(complete) = meeting.complete.clone() {
                meeting.num_left += 1;
                if meeting.num_left == self.size {
                    state.meetings.remove(&sequence);
                }
                return Ok(complete);
            }
            if progress.is_stopped() {
                return Err((EXECUTION_TIMEOUT, "the stream was stopped".into()));
            }
            if Instant::now() > until {
                let text = "EI0002: The wait execution of the Notify register times out.";
                return Err((EXECUTION_TIMEOUT, text.into()));
            }
            let waited = self.changed.wait_timeout(state, GLANCE);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl State {
    fn arrive(
        &mut self,
        sequence: u64,
        size: usize,
        (rank, signature): (usize, Signature),
        bytes: Vec<u8>,
    ) {
        let meeting = self.meetings.entry(sequence).or_insert_with(|| Meeting {
            signature: signature.clone(),
            brought: vec![None; size],
            complete: None,
            num_left: 0,
            differs: false,
        });
        meeting.differs |= meeting.signature != signature;
        meeting.brought[rank] = Some(bytes);
        if meeting.brought.iter().all(Option::is_some) {
            let brought = meeting.brought.drain(..).flatten().collect();
            meeting.complete = Some(Arc::new(brought));
        }
    }
}

/// The status and the words of ranks that cannot be connected.
pub(crate) fn unconnected() -> (Status, &'static str) {
    (
        TIMEOUT,
        "EI0006: Getting socket times out. Reason: Remote Rank did not send the data in time.",
    )
}
