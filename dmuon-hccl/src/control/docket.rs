//! What the host knows and decides; pure, so that it can be tested without sockets.

use super::{
    log::{Place, Progress, has_started},
    message::{Answer, Started, ToHost, ToRank, Wait},
    muster::Muster,
};
use dmuon_core::{Call, Error, Rank};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// How long ranks have to answer when the host asks who is missing.
const ANSWER_TIME: Duration = Duration::from_secs(1);

/// How long the search may take that goes on from there, all in all: less than the late rank waits
/// for the verdict.
const SEARCH_TIME: Duration = Duration::from_millis(1400);

/// How long a failure of the library may turn out to be the death of another rank.
const DOUBT: Duration = Duration::from_millis(400);

/// The host's view of the world.
#[derive(Debug)]
pub(super) struct Docket {
    ranks: Vec<Presence>,
    /// How long a rank may be silent.
    patience: Duration,
    has_failed: bool,
    /// Verified calls that not everybody has started yet.
    rolls: HashMap<Place, Roll>,
    muster: Muster,
    inquiry: Option<Inquiry>,
    /// A failure that is decided at a time, unless its cause is found before.
    doubt: Option<(Error, Instant)>,
}

/// What is known of a rank.
#[derive(Debug)]
struct Presence {
    progress: Progress,
    heard_at: Instant,
    /// Said goodbye, or was found to be lost.
    left: bool,
}

/// Who has started one call.
#[derive(Debug)]
struct Roll {
    /// The lowest rank so far, so that reports read the same whoever came last.
    lowest: (Rank, Call),
    num_started: usize,
}

/// A search for those who are missing from one call.
#[derive(Debug)]
struct Inquiry {
    by: Rank,
    wait: Wait,
    answers: HashMap<Rank, Answer>,
    until: Instant,
    /// When the whole search ends.
    end: Instant,
    /// Places asked about before, on the way from the first that was late.
    trail: Vec<Place>,
}

/// Whom a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum To {
    Everybody,
    One(Rank),
}

impl To {
    pub(super) fn includes(self, rank: Rank) -> bool {
        self == Self::Everybody || self == Self::One(rank)
    }
}

/// Messages to send, in order.
pub(super) type Mail = Vec<(To, ToRank)>;

impl Docket {
    pub(super) fn new(world_size: usize, patience: Duration, now: Instant) -> Self {
        let presence = || Presence { progress: Vec::new(), heard_at: now, left: false };
        Self {
            ranks: (0..world_size).map(|_| presence()).collect(),
            patience,
            has_failed: false,
            rolls: HashMap::new(),
            muster: Muster::default(),
            inquiry: None,
            doubt: None,
        }
    }

    /// Starts listening for signs of life.
    pub(super) fn all_here(&mut self, now: Instant) {
        self.ranks.iter_mut().for_each(|presence| presence.heard_at = now);
    }

    /// Takes note of what `from` says.
    pub(super) fn hear(&mut self, from: Rank, message: ToHost, now: Instant) -> Mail {
        let presence = &mut self.ranks[from.0];
        presence.heard_at = now;
        match message {
            ToHost::Beat(progress) => {
                presence.progress = progress;
                Mail::new()
            }
            ToHost::Call(started) => self.start(from, started),
            ToHost::Late(wait) => self.be_late(from, wait, now),
            ToHost::Answer(answer) => self.answer(from, answer),
            ToHost::Failed(cause @ Error::Library { .. }) => {
                self.doubt.get_or_insert((cause, now + DOUBT));
                Mail::new()
            }
            ToHost::Failed(cause) => self.decide(cause),
            ToHost::Finished(progress) => vec![(To::Everybody, ToRank::Gone(from, progress))],
            ToHost::Post(key, value) => vec![(To::Everybody, ToRank::Post(key, value))],
            ToHost::Queue(place, group_size) => {
                let turn = |rank| (To::One(rank), ToRank::Turn(place));
                self.muster.arrive(from, place, group_size).into_iter().map(turn).collect()
            }
            ToHost::Bye => {
                presence.left = true;
                Mail::new()
            }
        }
    }

    /// Takes note that the connection to `rank` has ended.
    pub(super) fn hang_up(&mut self, rank: Rank) -> Mail {
        let said_goodbye = std::mem::replace(&mut self.ranks[rank.0].left, true);
        if said_goodbye { Mail::new() } else { self.decide(Error::RankLost { rank }) }
    }

    /// Looks for ranks that are silent and questions that stay open; to be called often.
    pub(super) fn tick(&mut self, now: Instant) -> Mail {
        if let Some((cause, _)) = self.doubt.take_if(|(_, until)| now >= *until) {
            return self.decide(cause);
        }
        if self.inquiry.as_ref().is_some_and(|inquiry| now >= inquiry.until) {
            return self.conclude();
        }
        let silent = self.ranks.iter().position(|presence| {
            !presence.left && now.saturating_duration_since(presence.heard_at) > self.patience
        });
        silent.map_or_else(Mail::new, |rank| self.decide(Error::RankLost { rank: Rank(rank) }))
    }

    /// Whether every rank has left.
    pub(super) fn is_empty(&self) -> bool {
        self.ranks.iter().all(|presence| presence.left)
    }

    /// Fails the world, unless it has failed before.
    fn decide(&mut self, cause: Error) -> Mail {
        self.inquiry = None;
        if std::mem::replace(&mut self.has_failed, true) {
            return Mail::new();
        }
        vec![(To::Everybody, ToRank::Verdict(cause))]
    }

    fn start(&mut self, from: Rank, started: Started) -> Mail {
        let Started { place, site, call, group_size } = started;
        let Some(roll) = self.rolls.get_mut(&place) else {
            if group_size > 1 {
                self.rolls.insert(place, Roll { lowest: (from, call), num_started: 1 });
            }
            return Mail::new();
        };
        let (lowest, lowest_call) = &roll.lowest;
        if let Some(mismatch) = Error::mismatch(&site, (*lowest, lowest_call), (from, &call)) {
            return self.decide(mismatch);
        }
        roll.num_started += 1;
        if from < *lowest {
            roll.lowest = (from, call);
        }
        if roll.num_started == group_size {
            self.rolls.remove(&place);
        }
        Mail::new()
    }

    /// The first to be late has everybody asked; the verdict is for all.
    fn be_late(&mut self, by: Rank, wait: Wait, now: Instant) -> Mail {
        if self.has_failed || self.inquiry.is_some() {
            return Mail::new();
        }
        let (answers, trail) = (HashMap::new(), Vec::new());
        let (until, end) = (now + ANSWER_TIME, now + SEARCH_TIME);
        self.inquire(Inquiry { by, wait, answers, until, end, trail })
    }

    fn inquire(&mut self, mut inquiry: Inquiry) -> Mail {
        let place = inquiry.wait.place;
        inquiry.trail.push(place);
        let ask = |rank: &Rank| (To::One(*rank), ToRank::Ask(place));
        let mail = inquiry.wait.members.iter().map(ask).collect();
        self.inquiry = Some(inquiry);
        mail
    }

    fn answer(&mut self, from: Rank, answer: Answer) -> Mail {
        let Some(inquiry) = self.inquiry.as_mut().filter(|i| i.wait.place == answer.place) else {
            return Mail::new();
        };
        inquiry.answers.insert(from, answer);
        let all = inquiry.wait.members.iter().all(|rank| inquiry.answers.contains_key(rank));
        if all { self.conclude() } else { Mail::new() }
    }

    /// Names those whose calls differ or, if they are alike, those who have not started. Where all
    /// of those wait elsewhere, goes on there: they are victims too.
    fn conclude(&mut self) -> Mail {
        let Some(inquiry) = self.inquiry.take() else { return Mail::new() };
        if let Some(mismatch) = inquiry.mismatch() {
            return self.decide(mismatch);
        }
        let Inquiry { by, wait, mut answers, end, trail, .. } = inquiry;
        let has_started = |rank: &Rank| match answers.get(rank) {
            Some(answer) => answer.started.is_some(),
            None => has_started(&self.ranks[rank.0].progress, wait.place),
        };
        let mut missing: Vec<Rank> =
            wait.members.iter().copied().filter(|rank| !has_started(rank)).collect();
        let waits = |rank: &Rank| answers.get(rank).is_some_and(|answer| answer.waits.is_some());
        if !missing.iter().all(waits) {
            missing.retain(|rank| !waits(rank));
        } else if let Some(victim) = missing.first().copied() {
            let elsewhere = answers.remove(&victim).and_then(|answer| answer.waits);
            if let Some(next) = elsewhere.filter(|wait| !trail.contains(&wait.place)) {
                let (by, wait, answers, until) = (victim, next, HashMap::new(), end);
                return self.inquire(Inquiry { by, wait, answers, until, end, trail });
            }
        }
        let Wait { site: at, waited, .. } = wait;
        self.decide(Error::TimedOut { rank: by, at, waited, missing })
    }
}

impl Inquiry {
    /// The first two members whose calls differ.
    fn mismatch(&self) -> Option<Error> {
        let mut calls = self.wait.members.iter().filter_map(|rank| {
            let call = self.answers.get(rank)?.started.as_ref()?.as_ref()?;
            Some((*rank, call))
        });
        let first = calls.next()?;
        calls.find_map(|other| Error::mismatch(&self.wait.site, first, other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{GroupId, member::VERDICT_TIME};
    use dmuon_core::{CallSite, Element, Op, OpKind};

    const PLACE: Place = Place { group: GroupId::WORLD, sequence: 7 };

    fn site(op: OpKind) -> CallSite {
        CallSite { op, label: "layers.0".into(), group: "world".into(), sequence: 7 }
    }

    fn broadcast(label: &str) -> Call {
        Call::new(Op::Broadcast { root: 0 }, label, Element::F32, 4)
    }

    fn started(label: &str) -> ToHost {
        let (site, call) = (site(OpKind::Broadcast), broadcast(label));
        ToHost::Call(Started { place: PLACE, site, call, group_size: 3 })
    }

    fn wait(place: Place) -> Wait {
        let site = CallSite { sequence: place.sequence, ..site(OpKind::Broadcast) };
        let (members, waited) = ((0..3).map(Rank).collect(), Duration::from_secs(1));
        Wait { place, site, members, waited }
    }

    fn late() -> ToHost {
        ToHost::Late(wait(PLACE))
    }

    /// An answer from a rank that waits nowhere.
    fn answer(started: Option<Option<Call>>) -> ToHost {
        ToHost::Answer(Answer { place: PLACE, started, waits: None })
    }

    fn docket() -> (Docket, Instant) {
        let now = Instant::now();
        (Docket::new(3, Duration::from_secs(5), now), now)
    }

    /// The one verdict that goes to everybody.
    fn verdict(mail: Mail) -> String {
        match mail.as_slice() {
            [(To::Everybody, ToRank::Verdict(cause))] => cause.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn calls_that_differ_are_named_at_once() {
        let (mut docket, now) = docket();
        assert!(docket.hear(Rank(2), started("layers.0"), now).is_empty());
        assert!(docket.hear(Rank(0), started("layers.0"), now).is_empty());
        let text = verdict(docket.hear(Rank(1), started("layers.1"), now));
        let expected = "rank 1 called broadcast(\"layers.1\") where rank 0 called \
                        broadcast(\"layers.0\") (#7 on world)";
        assert_eq!(text, expected);
    }

    #[test]
    fn calls_of_everybody_are_forgotten() {
        let (mut docket, now) = docket();
        for rank in 0..3 {
            assert!(docket.hear(Rank(rank), started("layers.0"), now).is_empty());
        }
        assert!(docket.rolls.is_empty());
    }

    #[test]
    fn missing_ranks_are_found_by_asking() {
        let (mut docket, now) = docket();
        let asked = docket.hear(Rank(1), late(), now);
        assert_eq!(asked.len(), 3);
        assert!(docket.hear(Rank(2), late(), now).is_empty(), "one inquiry at a time");
        let there = Some(Some(broadcast("layers.0")));
        docket.hear(Rank(1), answer(there.clone()), now);
        docket.hear(Rank(2), answer(there), now);
        let text = verdict(docket.hear(Rank(0), answer(None), now));
        assert!(text.ends_with("timed out after 1 s; not arrived: [0]"), "{text}");
    }

    #[test]
    fn victims_are_not_blamed() {
        let (mut docket, now) = docket();
        docket.hear(Rank(1), late(), now);
        docket.hear(Rank(1), answer(Some(None)), now);
        docket.hear(Rank(2), answer(Some(None)), now);
        // Rank 0 is missing because it waits elsewhere, where rank 2 is missing.
        let elsewhere = Place { group: GroupId::WORLD.child(0, 0), sequence: 3 };
        let waits = Some(wait(elsewhere));
        let blocked = Answer { place: PLACE, started: None, waits: waits.clone() };
        let asked = docket.hear(Rank(0), ToHost::Answer(blocked), now);
        assert!(matches!(asked[0], (To::One(_), ToRank::Ask(place)) if place == elsewhere));
        for (rank, started, waits) in [(0, Some(None), waits), (1, Some(None), None)] {
            let answer = Answer { place: elsewhere, started, waits };
            assert!(docket.hear(Rank(rank), ToHost::Answer(answer), now).is_empty());
        }
        let last = Answer { place: elsewhere, started: None, waits: None };
        let text = verdict(docket.hear(Rank(2), ToHost::Answer(last), now));
        assert!(text.starts_with("rank 0: ") && text.ends_with("not arrived: [2]"), "{text}");
        assert!(text.contains("#3"), "{text}");
    }

    #[test]
    fn a_search_that_goes_on_ends_before_the_late_rank_gives_up() {
        let (mut docket, now) = docket();
        // Rank 2 does not answer, and has started the first call.
        docket.hear(Rank(2), ToHost::Beat(vec![(GroupId::WORLD, 8)]), now);
        docket.hear(Rank(1), late(), now);
        docket.hear(Rank(1), answer(Some(None)), now);
        let elsewhere = Place { group: GroupId::WORLD.child(0, 0), sequence: 3 };
        let waits = Some(wait(elsewhere));
        let blocked = Answer { place: PLACE, started: None, waits: waits.clone() };
        assert!(docket.hear(Rank(0), ToHost::Answer(blocked), now).is_empty());
        let asked = docket.tick(now + ANSWER_TIME);
        assert!(matches!(asked[0], (To::One(_), ToRank::Ask(place)) if place == elsewhere));
        for (rank, started, waits) in [(0, Some(None), waits), (1, Some(None), None)] {
            let answer = Answer { place: elsewhere, started, waits };
            docket.hear(Rank(rank), ToHost::Answer(answer), now + ANSWER_TIME);
        }
        // Verdicts take a while to be decided and to arrive.
        let text = verdict(docket.tick(now + VERDICT_TIME - Duration::from_millis(200)));
        assert!(text.ends_with("not arrived: [2]"), "{text}");
    }

    #[test]
    fn ranks_that_wait_for_each_other_end_the_search() {
        let (mut docket, now) = docket();
        docket.hear(Rank(1), late(), now);
        for rank in [1, 2] {
            docket.hear(Rank(rank), answer(Some(None)), now);
        }
        let back = Answer { place: PLACE, started: None, waits: Some(wait(PLACE)) };
        let text = verdict(docket.hear(Rank(0), ToHost::Answer(back), now));
        assert!(text.ends_with("not arrived: [0]"), "{text}");
    }

    #[test]
    fn a_failure_of_the_library_may_be_a_death() {
        let failure = || {
            let (call, text) = ("MPI_Test".into(), "process failed".into());
            let at = site(OpKind::Reduce);
            ToHost::Failed(Error::Library { rank: Rank(1), at, call, code: 5, text })
        };
        let (mut docket, now) = docket();
        assert!(docket.hear(Rank(1), failure(), now).is_empty());
        assert!(verdict(docket.hang_up(Rank(2))).contains("rank 2 is gone"));
        let (mut docket, now) = self::docket();
        docket.hear(Rank(1), failure(), now);
        assert!(docket.tick(now + DOUBT / 2).is_empty());
        assert!(verdict(docket.tick(now + DOUBT)).contains("process failed"));
    }

    #[test]
    fn asking_finds_calls_that_differ_without_verification() {
        let (mut docket, now) = docket();
        docket.hear(Rank(1), late(), now);
        for (rank, label) in ["layers.0", "layers.0", "layers.9"].into_iter().enumerate() {
            let mail = docket.hear(Rank(rank), answer(Some(Some(broadcast(label)))), now);
            if rank == 2 {
                let text = verdict(mail);
                assert!(text.contains("rank 2 called broadcast(\"layers.9\")"), "{text}");
            }
        }
    }

    #[test]
    fn who_does_not_answer_is_judged_by_the_last_heartbeat() {
        let (mut docket, now) = docket();
        docket.hear(Rank(2), ToHost::Beat(vec![(GroupId::WORLD, 8)]), now);
        docket.hear(Rank(1), late(), now);
        docket.hear(Rank(1), answer(Some(None)), now);
        assert!(docket.tick(now + ANSWER_TIME / 2).is_empty());
        let text = verdict(docket.tick(now + ANSWER_TIME));
        assert!(text.ends_with("not arrived: [0]"), "{text}");
    }

    #[test]
    fn the_first_failure_is_the_only_one() {
        let (mut docket, now) = docket();
        let first = ToHost::Failed(Error::RankLost { rank: Rank(1) });
        assert!(verdict(docket.hear(Rank(1), first, now)).contains("rank 1 is gone"));
        assert!(docket.hear(Rank(2), ToHost::Failed(Error::EmptyWorld), now).is_empty());
        assert!(docket.hang_up(Rank(0)).is_empty());
    }

    #[test]
    fn hanging_up_without_a_goodbye_is_a_death() {
        let (mut docket, now) = docket();
        docket.hear(Rank(0), ToHost::Bye, now);
        assert!(docket.hang_up(Rank(0)).is_empty());
        assert!(verdict(docket.hang_up(Rank(2))).contains("rank 2 is gone"));
    }

    #[test]
    fn silence_is_a_death() {
        let (mut docket, now) = docket();
        let later = now + Duration::from_secs(6);
        for rank in [0, 2] {
            docket.hear(Rank(rank), ToHost::Beat(Vec::new()), later);
        }
        assert!(verdict(docket.tick(later)).contains("rank 1 is gone"));
    }
}
