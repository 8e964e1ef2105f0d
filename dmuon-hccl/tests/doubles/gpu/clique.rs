//! The ranks of a communicator, and where they meet: to form it, to split it, in its collectives and
//! messages, and to end it.

use crate::operation::{Operation, Shape};
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Between two looks at whether a wait is given up.
const PAUSE: Duration = Duration::from_millis(2);

/// Every world, by its id.
static WORLDS: LazyLock<Mutex<HashMap<Vec<u8>, Arc<Clique>>>> = LazyLock::new(Mutex::default);

/// The ranks of a communicator.
#[derive(Debug)]
pub(crate) struct Clique {
    pub(crate) size: usize,
    meeting: Mutex<Meeting>,
    changed: Condvar,
}

/// What ranks have left for each other.
#[derive(Debug, Default)]
struct Meeting {
    num_arrived: usize,
    num_finalized: usize,
    /// By the number of the collective, what each rank brings to it.
    rounds: HashMap<u64, Vec<Option<Brought>>>,
    /// Messages on their way, by sender and receiver.
    mail: HashMap<(usize, usize), VecDeque<Vec<u8>>>,
    /// By the number of the split, each rank's color and key.
    splits: HashMap<u64, Vec<Option<[i32; 2]>>>,
    /// By the number of the split and color.
    children: HashMap<(u64, i32), Arc<Clique>>,
}

/// What a rank brings to a collective.
#[derive(Clone, Debug)]
struct Brought {
    shape: Shape,
    input: Vec<u8>,
}

impl Clique {
    fn new(size: usize) -> Arc<Self> {
        Arc::new(Self { size, meeting: Mutex::default(), changed: Condvar::new() })
    }

    /// The world that `id` names.
    pub(crate) fn world(id: &[u8], size: usize) -> Arc<Self> {
        let mut worlds = WORLDS.lock().unwrap_or_else(PoisonError::into_inner);
        worlds.entry(id.to_vec()).or_insert_with(|| Self::new(size)).clone()
    }

    pub(crate) fn arrive(&self) {
        self.lock().num_arrived += 1;
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.lock().num_arrived == self.size
    }

    pub(crate) fn finalize(&self) {
        self.lock().num_finalized += 1;
    }

    pub(crate) fn is_finalized(&self) -> bool {
        self.lock().num_finalized == self.size
    }

    /// Leaves what `rank` chooses in the split of that number.
    pub(crate) fn choose(&self, number: u64, rank: usize, choice: [i32; 2]) {
        let size = self.size;
        self.lock().splits.entry(number).or_insert_with(|| vec![None; size])[rank] = Some(choice);
    }

    /// The ranks that `rank` is with after the split of that number, and its place among them, once
    /// all have chosen.
    pub(crate) fn child(&self, number: u64, rank: usize) -> Option<(Arc<Self>, usize)> {
        let mut meeting = self.lock();
        let choices: Option<Vec<[i32; 2]>> = meeting.splits[&number].iter().copied().collect();
        let choices = choices?;
        let [color, key] = choices[rank];
        let earlier = |(other, choice): (usize, &[i32; 2])| {
            choice[0] == color && (choice[1], other) < (key, rank)
        };
        let place =
            choices.iter().enumerate().filter(|(at, choice)| earlier((*at, choice))).count();
        let size = choices.iter().filter(|[other, _]| *other == color).count();
        let child = meeting.children.entry((number, color)).or_insert_with(|| Self::new(size));
        Some((child.clone(), place))
    }

    /// Takes `rank`'s part in the collective of that number, unless it is given up. Ranks whose
    /// shapes differ never get on.
    pub(crate) fn collective(
        &self,
        (number, rank): (u64, usize),
        operation: Operation,
        is_given_up: impl Fn() -> bool,
    ) {
        let (size, shape) = (self.size, operation.shape);
        let input = operation.input(rank, size).map(|span| span.read()).unwrap_or_default();
        self.change(|meeting| {
            let round = meeting.rounds.entry(number).or_insert_with(|| vec![None; size]);
            round[rank] = Some(Brought { shape, input });
        });
        let needs = operation.needs(rank, size);
        let result = self.wait(is_given_up, |meeting| {
            let round = &meeting.rounds[&number];
            let brought = |peer: &usize| round[*peer].as_ref().filter(|other| other.shape == shape);
            let inputs: Option<Vec<&[u8]>> =
                needs.iter().map(|peer| brought(peer).map(|other| &other.input[..])).collect();
            inputs.map(|inputs| operation.result(rank, &inputs))
        });
        if let (Some(result), Some(span)) = (result, operation.output(rank, size)) {
            span.write(&result);
        }
    }

    pub(crate) fn send(&self, from: usize, to: usize, bytes: Vec<u8>) {
        self.change(|meeting| meeting.mail.entry((from, to)).or_default().push_back(bytes));
    }

    pub(crate) fn receive(
        &self,
        from: usize,
        to: usize,
        is_given_up: impl Fn() -> bool,
    ) -> Option<Vec<u8>> {
        self.wait(is_given_up, |meeting| meeting.mail.get_mut(&(from, to))?.pop_front())
    }

    fn change(&self, body: impl FnOnce(&mut Meeting)) {
        body(&mut self.lock());
        self.changed.notify_all();
    }

    fn wait<T>(
        &self,
        is_given_up: impl Fn() -> bool,
        mut poll: impl FnMut(&mut Meeting) -> Option<T>,
    ) -> Option<T> {
        let mut meeting = self.lock();
        loop {
            if is_given_up() {
                return None;
            }
            if let Some(found) = poll(&mut meeting) {
                return Some(found);
            }
            let waited = self.changed.wait_timeout(meeting, PAUSE);
            meeting = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Meeting> {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
