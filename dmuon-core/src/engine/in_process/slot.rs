//! One collective in flight: who has arrived, what they brought, what they take away.

use super::combine::combine;
use crate::{BufferPool, Call, CallSite, Error, Op, Rank, Result, SharedBuffer};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Where the ranks of a group meet for one call.
#[derive(Debug)]
pub(super) struct Slot {
    site: CallSite,
    ranks: Arc<[Rank]>,
    pools: Vec<BufferPool>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// The call of each rank that arrived.
    calls: Vec<Option<Call>>,
    /// Ranks that returned and will never arrive.
    gone: Vec<bool>,
    inputs: Vec<Option<SharedBuffer>>,
    outputs: Vec<Output>,
    job: Job,
    /// When the pretended link has delivered, once it is busy with this call.
    delivered_at: Option<Instant>,
    failure: Option<Error>,
}

/// What one rank takes away.
#[derive(Clone, Debug)]
enum Output {
    Pending,
    Ready(Option<SharedBuffer>),
    /// Taken, or given up by dropping the work.
    Closed,
}

/// The arithmetic of a slot, done by whoever claims it first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    /// Inputs are missing, or there is nothing to compute.
    None,
    Open,
    Claimed,
}

/// What an arrival changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// The arithmetic may start.
    pub(super) job_opened: bool,
    /// Data has begun to flow with this arrival.
    pub(super) flows: bool,
    /// Nobody else will arrive.
    pub(super) complete: bool,
}

impl Slot {
    pub(super) fn new(
        site: CallSite,
        ranks: Arc<[Rank]>,
        pools: Vec<BufferPool>,
        gone: Vec<bool>,
    ) -> Self {
        let size = ranks.len();
        let state = State {
            calls: vec![None; size],
            gone,
            inputs: vec![None; size],
            outputs: vec![Output::Pending; size],
            job: Job::None,
            delivered_at: None,
            failure: None,
        };
        Self { site, ranks, pools, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Enters `rank`'s call.
    ///
    /// # Errors
    /// The call differs from another rank's, or needs a rank that is gone.
    pub(super) fn arrive(
        &self,
        rank: usize,
        call: Call,
        input: Option<SharedBuffer>,
    ) -> Result<Arrival> {
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        self.check_match(&state, rank, &call)?;
        let op = call.op;
        state.calls[rank] = Some(call);
        state.inputs[rank] = input;
        self.check_nobody_needed_is_gone(&mut state, op)?;
        let arrival = match op {
            Op::Broadcast { root } => state.pass_on(rank, root),
            _ => state.gather(op),
        };
        self.changed.notify_all();
        Ok(arrival)
    }

    /// Notes that the world's `rank` will never arrive. Returns whether everybody else has.
    pub(super) fn lose_rank(&self, rank: Rank) -> bool {
        let mut state = self.lock();
        let Some(place) = self.ranks.iter().position(|member| *member == rank) else {
            return false;
        };
        state.gone[place] = true;
        if let Some(op) = state.op() {
            // The ranks that wait are told; this one is gone.
            let _: Result<()> = self.check_nobody_needed_is_gone(&mut state, op);
        }
        state.drop_source_when_complete();
        state.is_complete()
    }

    /// Makes the outputs wait for the pretended link.
    pub(super) fn deliver_at(&self, when: Instant) {
        self.lock().delivered_at = Some(when);
        self.changed.notify_all();
    }

    /// Fails everybody who has no output yet.
    pub(super) fn fail(&self, cause: &Error) {
        self.fail_locked(&mut self.lock(), cause);
    }

    /// Does the arithmetic if it is open and nobody else has claimed it.
    pub(super) fn help(&self) {
        let mut state = self.lock();
        if state.job == Job::Open {
            state.job = Job::Claimed;
            self.compute(state);
        }
    }

    /// Waits for `rank`'s output.
    pub(super) fn wait(&self, rank: usize, deadline: Duration) -> Result<Option<SharedBuffer>> {
        let start = Instant::now();
        let mut state = self.lock();
        loop {
            let delay = match state.poll(rank) {
                Poll::Ready(result) => return result,
                Poll::Delayed(delay) => Some(delay),
                Poll::Pending => None,
            };
            if state.job == Job::Open {
                state.job = Job::Claimed;
                self.compute(state);
                state = self.lock();
                continue;
            }
            let Some(left) = deadline.checked_sub(start.elapsed()) else {
                return Err(self.timed_out(&state, rank, deadline));
            };
            let nap = delay.map_or(left, |delay| delay.min(left));
            state = self.changed.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn is_done(&self, rank: usize) -> bool {
        let state = self.lock();
        let ready = !matches!(state.outputs[rank], Output::Pending) && state.delay().is_none();
        ready || state.failure.is_some()
    }

    /// Gives up `rank`'s output.
    pub(super) fn close(&self, rank: usize) {
        let output = std::mem::replace(&mut self.lock().outputs[rank], Output::Closed);
        drop(output);
    }

    /// Runs the arithmetic without the lock and hands out the results.
    fn compute(&self, mut state: MutexGuard<'_, State>) {
        let Some(call) = state.calls.iter().flatten().next().cloned() else {
            return;
        };
        let inputs: Vec<SharedBuffer> = state.inputs.iter_mut().filter_map(Option::take).collect();
        drop(state);
        let span = tracing::trace_span!("combine").entered();
        let outputs = catch_unwind(AssertUnwindSafe(|| combine(&call, &inputs, &self.pools)));
        drop(span);
        // Before anybody wakes: a rank may write its own input again after its wait.
        drop(inputs);
        let mut state = self.lock();
        match outputs {
            Ok(outputs) => state.hand_out(outputs),
            Err(_) => {
                let cause = Error::message(format!("the arithmetic of {} panicked", self.site));
                self.fail_locked(&mut state, &cause);
            }
        }
        self.changed.notify_all();
    }

    fn fail_locked(&self, state: &mut State, cause: &Error) {
        state.failure.get_or_insert_with(|| cause.clone());
        state.inputs.fill(None);
        self.changed.notify_all();
    }

    /// Compares with the lowest rank that has arrived, so that the report reads the same whoever
    /// came last.
    fn check_match(&self, state: &State, rank: usize, call: &Call) -> Result<()> {
        let first = state.calls.iter().enumerate().find_map(|(at, c)| Some((at, c.as_ref()?)));
        let Some((other, other_call)) = first else {
            return Ok(());
        };
        let (here, there) = ((self.ranks[rank], call), (self.ranks[other], other_call));
        Error::mismatch(&self.site, there, here).map_or(Ok(()), Err)
    }

    fn check_nobody_needed_is_gone(&self, state: &mut State, op: Op) -> Result<()> {
        let lost = self.missing(state, op).into_iter().find(|rank| state.gone[*rank]);
        let Some(lost) = lost else { return Ok(()) };
        let error = Error::RankReturned { rank: self.ranks[lost], at: self.site.clone() };
        self.fail_locked(state, &error);
        Err(error)
    }

    /// Ranks that others wait for: a broadcast needs its root, everything else needs everybody.
    fn missing(&self, state: &State, op: Op) -> Vec<usize> {
        let missing = |rank: &usize| state.calls[*rank].is_none();
        match op {
            Op::Broadcast { root } => Some(root).filter(missing).into_iter().collect(),
            _ => (0..self.ranks.len()).filter(missing).collect(),
        }
    }

    fn timed_out(&self, state: &State, rank: usize, waited: Duration) -> Error {
        let missing = state.op().map(|op| self.missing(state, op)).unwrap_or_default();
        Error::TimedOut {
            rank: self.ranks[rank],
            at: self.site.clone(),
            waited,
            missing: missing.into_iter().map(|rank| self.ranks[rank]).collect(),
        }
    }

    /// Whoever panics while holding the lock has changed nothing yet.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a waiting rank finds.
enum Poll {
    Ready(Result<Option<SharedBuffer>>),
    /// Ready, but the pretended link needs this much longer.
    Delayed(Duration),
    Pending,
}

impl State {
    fn op(&self) -> Option<Op> {
        self.calls.iter().flatten().next().map(|call| call.op)
    }

    fn is_complete(&self) -> bool {
        self.calls.iter().zip(&self.gone).all(|(call, gone)| call.is_some() || *gone)
    }

    /// A broadcast: whoever is here gets the root's buffer as soon as the root is here too.
    fn pass_on(&mut self, rank: usize, root: usize) -> Arrival {
        if let Some(source) = self.inputs[root].clone() {
            let receivers = if rank == root { 0..self.calls.len() } else { rank..rank + 1 };
            for receiver in receivers.filter(|receiver| self.calls[*receiver].is_some()) {
                self.outputs[receiver] = Output::Ready(Some(source.clone()));
            }
        }
        self.drop_source_when_complete();
        Arrival { job_opened: false, flows: rank == root, complete: self.is_complete() }
    }

    /// Everything else: something happens when the last rank is here.
    fn gather(&mut self, op: Op) -> Arrival {
        let complete = self.is_complete();
        let job_opened = complete && op != Op::Barrier && self.calls.len() > 1;
        if job_opened {
            self.job = Job::Open;
        } else if complete {
            // A group of one gets back what it brought; a barrier brings nothing.
            self.outputs = self.inputs.iter_mut().map(|own| Output::Ready(own.take())).collect();
        }
        Arrival { job_opened, flows: complete, complete }
    }

    /// The slot of a broadcast must not pin the root's memory after everybody has it.
    fn drop_source_when_complete(&mut self) {
        if self.is_complete() && matches!(self.op(), Some(Op::Broadcast { .. })) {
            self.inputs.fill(None);
        }
    }

    fn hand_out(&mut self, outputs: Vec<Option<SharedBuffer>>) {
        for (place, output) in self.outputs.iter_mut().zip(outputs) {
            if matches!(place, Output::Pending) {
                *place = Output::Ready(output);
            }
        }
    }

    fn delay(&self) -> Option<Duration> {
        let left = self.delivered_at?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    fn poll(&mut self, rank: usize) -> Poll {
        if matches!(self.outputs[rank], Output::Pending) {
            return self.failure.clone().map_or(Poll::Pending, |cause| Poll::Ready(Err(cause)));
        }
        if let Some(delay) = self.delay() {
            return Poll::Delayed(delay);
        }
        match std::mem::replace(&mut self.outputs[rank], Output::Closed) {
            Output::Ready(output) => Poll::Ready(Ok(output)),
            Output::Pending | Output::Closed => Poll::Pending,
        }
    }
}
