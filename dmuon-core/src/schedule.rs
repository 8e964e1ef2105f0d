//! The boundary life cycle as a state machine: which unit is unsharded, resharded or reduced next.
//!
//! Pure: it is told what the model does (a boundary entered, left, read, finished) and answers with
//! the collectives to issue. It never sees a buffer, a group or a tensor.
//!
//! # The protocol
//!
//! Ranks may touch boundaries differently: one skips a unit that another uses. Collectives must
//! still be issued in one order, so each kind has its own fixed sequence on its own group:
//!
//! | sequence | order | a unit this rank skips is issued |
//! |---|---|---|
//! | forward broadcasts | running order | when a later unit is touched, or when backward begins |
//! | backward broadcasts (Z3) | reverse running order | when an earlier unit is touched, or at the end |
//! | reduces | hooked units, loose ones, the root; each in reverse running order | as soon as it is next in line |
//!
//! The running order is a guess at first (the order in which the model lists its parameters) and,
//! once all ranks have agreed on it, the order in which the last forward touched the units. A unit
//! whose turn comes before it is touched stays until it is: a wrong guess costs memory, never a
//! broadcast more or a result.
//!
//! Touching a unit again after Z3 dropped it (tied weights) broadcasts that unit alone. Ranks then
//! agree to keep it through forward from the next step on, so that a rank that skips it issues no
//! less than others. An evaluation pass broadcasts what it touches, as it touches it; ranks that do
//! otherwise are told by the group's mismatch check.

use crate::Placement;
use dmuon_partition::Mode;

/// What the caller must do, in the order returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start the unit's weight broadcasts.
    Unshard(usize),
    /// Drop this rank's copy of the unit's weights (started or arrived).
    Reshard(usize),
    /// Start the unit's gradient reduces; what this rank did not produce counts as zero.
    Reduce(usize),
}

/// Where a boundary stands in one rank's forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// The tape records: a backward may follow.
    Training,
    /// Nothing is recorded, so nothing has to stay.
    Evaluation,
}

/// Life cycle of all units of one model on one rank. Units are numbered by the plan; where a unit
/// runs is its *position*.
#[derive(Debug)]
pub struct Schedule {
    mode: Mode,
    prefetch: usize,
    placements: Vec<Placement>,
    /// Units by position.
    order: Vec<usize>,
    /// Positions by unit.
    position: Vec<usize>,
    /// Units in the order in which backward finishes them.
    reduce_order: Vec<usize>,
    /// Started or arrived, and not yet dropped.
    unsharded: Vec<bool>,
    /// Positions below this were issued in the current training forward.
    forward_cursor: usize,
    /// Whether Z2 keeps weights past their backward, for another forward of the same weights.
    keeps: bool,
    /// Whether any rank's forward touched the unit again after it was dropped: it then stays.
    revisits: Vec<bool>,
    /// The same of this rank's forward since the last step.
    revisited_now: Vec<bool>,
    /// Units in the order of their first touch in a training forward since the last step.
    touched: Vec<usize>,
    /// The unit whose weights were last touched outside any boundary.
    loose: Option<usize>,
    backward: Option<Backward>,
    /// Whether any rank's backward read the unit in the last step (until known: yes).
    reads: Vec<bool>,
    /// Whether this rank's backward has read the unit since the last step.
    read_now: Vec<bool>,
}

#[derive(Debug)]
struct Backward {
    /// Positions at or above this had their turn to be broadcast again.
    cursor: usize,
    /// How many of `reduce_order` were issued.
    reduced: usize,
}

impl Schedule {
    /// A schedule for one unit per placement, which run in order of their numbers as far as
    /// anyone knows.
    pub fn new(mode: Mode, prefetch: usize, placements: &[Placement]) -> Self {
        let num_units = placements.len();
        let mut schedule = Self {
            mode,
            prefetch,
            placements: placements.to_vec(),
            order: (0..num_units).collect(),
            position: vec![0; num_units],
            reduce_order: Vec::new(),
            unsharded: vec![false; num_units],
            forward_cursor: 0,
            keeps: false,
            revisits: vec![false; num_units],
            revisited_now: vec![false; num_units],
            touched: Vec::new(),
            loose: None,
            backward: None,
            reads: vec![true; num_units],
            read_now: vec![false; num_units],
        };
        schedule.plan_order(&[]);
        schedule
    }

    /// Z2 or Z3.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Chooses whether Z2 keeps weights past their backward, because another forward of the same
    /// weights follows; alike on every rank, and between passes.
    pub fn keep(&mut self, keeps: bool) {
        self.keeps = keeps && self.mode == Mode::Z2;
    }

    /// Whether the unit's weights were started or have arrived on this rank.
    pub fn is_unsharded(&self, unit: usize) -> bool {
        self.unsharded[unit]
    }

    /// Whether a backward is under way.
    pub fn in_backward(&self) -> bool {
        self.backward.is_some()
    }

    /// A weight of `unit` is needed in forward, by the boundary around it.
    pub fn enter(&mut self, unit: usize, pass: Pass) -> Vec<Action> {
        let mut actions = Vec::new();
        if let Some(loose) = self.loose.take_if(|loose| *loose != unit) {
            self.reshard_after(loose, pass, &mut actions);
        }
        self.unshard_forward(unit, pass, &mut actions);
        actions
    }

    /// A weight of `unit` is needed in forward, outside any boundary: it stays until the next unit
    /// is touched.
    pub fn touch(&mut self, unit: usize, pass: Pass) -> Vec<Action> {
        let actions = self.enter(unit, pass);
        self.loose = Some(unit);
        actions
    }

    /// The boundary around `unit` was left in forward.
    pub fn leave(&mut self, unit: usize, pass: Pass) -> Vec<Action> {
        let mut actions = Vec::new();
        self.reshard_after(unit, pass, &mut actions);
        actions
    }

    /// Backward reached the boundary's output: its weights will be read soon.
    pub fn enter_backward(&mut self, unit: usize) -> Vec<Action> {
        let mut actions = self.begin_backward();
        if self.mode == Mode::Z3 && self.reads[unit] {
            self.unshard_backward(unit, &mut actions);
        }
        actions
    }

    /// Backward reads a weight of `unit` (Z3: the tape kept none).
    pub fn read_backward(&mut self, unit: usize) -> Vec<Action> {
        let mut actions = self.begin_backward();
        self.read_now[unit] = true;
        self.unshard_backward(unit, &mut actions);
        actions
    }

    /// This rank's backward is through with `unit`, or produced another of its gradients.
    ///
    /// `left` says that nothing in backward will read the unit's weights through this boundary
    /// run again; `pending(u)` whether gradients of unit `u` are still to come on this rank.
    pub fn leave_backward(
        &mut self,
        unit: usize,
        left: bool,
        pending: impl Fn(usize) -> bool,
    ) -> Vec<Action> {
        let mut actions = self.begin_backward();
        if left && !self.keeps && (self.mode == Mode::Z3 || !pending(unit)) {
            self.reshard(unit, &mut actions);
        }
        let reduced = self.backward.as_ref().map_or(0, |backward| backward.reduced);
        let ready = self.reduce_order[reduced..].iter().take_while(|&&unit| !pending(unit)).count();
        self.reduce(ready, &mut actions);
        actions
    }

    /// The end of the tape: everything that another rank may still wait for is issued.
    pub fn finish_backward(&mut self) -> Vec<Action> {
        let mut actions = self.begin_backward();
        if self.mode == Mode::Z3 {
            self.pass_rest_of_backward(&mut actions);
        }
        self.reduce(usize::MAX, &mut actions);
        match self.keeps {
            true => self.rewind(),
            false => self.reset(&mut actions),
        }
        actions
    }

    /// New weights: every copy of the old ones is dropped, and the next pass starts afresh.
    pub fn publish(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        self.reset(&mut actions);
        actions
    }

    /// Units this rank's backward has read since the last call.
    pub fn take_reads(&mut self) -> Vec<bool> {
        std::mem::replace(&mut self.read_now, vec![false; self.reads.len()])
    }

    /// Sets which units any rank's backward reads; the others are no longer broadcast in backward.
    pub fn plan_reads(&mut self, reads: Vec<bool>) {
        debug_assert_eq!(reads.len(), self.reads.len());
        self.reads = reads;
    }

    /// Units this rank's forward has touched again after they were dropped, since the last call.
    pub fn take_revisits(&mut self) -> Vec<bool> {
        std::mem::replace(&mut self.revisited_now, vec![false; self.revisits.len()])
    }

    /// Adds to the units that stay through forward; alike on every rank, and between steps.
    pub fn plan_revisits(&mut self, revisits: &[bool]) {
        self.revisits.iter_mut().zip(revisits).for_each(|(stays, again)| *stays |= again);
    }

    /// Units in the order in which this rank's training forward touched them first, since the last
    /// call.
    pub fn take_order(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.touched)
    }

    /// Makes the units of `touched` run in that order; units it leaves out keep their positions.
    /// Alike on every rank, and between steps.
    pub fn plan_order(&mut self, touched: &[usize]) {
        // A unit that nobody touched this time may be touched the next, and where it was.
        let mut in_order = touched.iter().copied();
        let next = |unit: &usize| match touched.contains(unit) {
            true => in_order.next().unwrap_or(*unit),
            false => *unit,
        };
        self.order = self.order.iter().map(next).collect();
        for (position, &unit) in self.order.iter().enumerate() {
            self.position[unit] = position;
        }
        self.reduce_order = self.order.iter().rev().copied().collect();
        self.reduce_order.sort_by_key(|&unit| self.placements[unit]);
    }

    fn unshard_forward(&mut self, unit: usize, pass: Pass, actions: &mut Vec<Action>) {
        let at = self.position[unit];
        let until = (at + 1 + self.prefetch).min(self.order.len());
        if pass == Pass::Evaluation {
            (at..until).for_each(|position| self.unshard(self.order[position], actions));
            return;
        }
        if !self.touched.contains(&unit) {
            self.touched.push(unit);
        }
        if at < self.forward_cursor && !self.unsharded[unit] {
            self.revisited_now[unit] = true;
        }
        for early in self.forward_cursor..at {
            self.unshard(self.order[early], actions);
        }
        self.unshard(unit, actions);
        for ahead in self.forward_cursor.max(at + 1)..until {
            self.unshard(self.order[ahead], actions);
        }
        self.forward_cursor = self.forward_cursor.max(until);
    }

    fn begin_backward(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.backward.is_some() {
            return actions;
        }
        let num_units = self.unsharded.len();
        for skipped in self.forward_cursor..num_units {
            self.pass_by(self.order[skipped], &mut actions);
        }
        self.forward_cursor = num_units;
        self.loose = None;
        if self.mode == Mode::Z3 {
            (0..num_units).for_each(|unit| self.reshard(unit, &mut actions));
        }
        self.backward = Some(Backward { cursor: num_units, reduced: 0 });
        actions
    }

    fn unshard_backward(&mut self, unit: usize, actions: &mut Vec<Action>) {
        let at = self.position[unit];
        for early in (at + 1..self.backward_cursor()).rev() {
            if self.reads[self.order[early]] {
                // It may be read yet, where the running order is a guess.
                self.unshard(self.order[early], actions);
            }
        }
        self.lower_backward_cursor(at + 1);
        self.unshard(unit, actions);
        let ahead = at.saturating_sub(self.prefetch);
        for position in (ahead..at.min(self.backward_cursor())).rev() {
            if self.reads[self.order[position]] {
                self.unshard(self.order[position], actions);
            }
        }
        self.lower_backward_cursor(ahead);
    }

    /// Takes part in the backward broadcasts that are left, for ranks that read what this one does
    /// not.
    fn pass_rest_of_backward(&mut self, actions: &mut Vec<Action>) {
        for skipped in (0..self.backward_cursor()).rev() {
            if self.reads[self.order[skipped]] {
                self.pass_by(self.order[skipped], actions);
            }
        }
        self.lower_backward_cursor(0);
    }

    fn backward_cursor(&self) -> usize {
        self.backward.as_ref().map_or(0, |backward| backward.cursor)
    }

    fn lower_backward_cursor(&mut self, to: usize) {
        if let Some(backward) = &mut self.backward {
            backward.cursor = backward.cursor.min(to);
        }
    }

    fn reduce(&mut self, at_most: usize, actions: &mut Vec<Action>) {
        let Some(backward) = &mut self.backward else {
            return;
        };
        let until = backward.reduced.saturating_add(at_most).min(self.reduce_order.len());
        let issued = &self.reduce_order[backward.reduced..until];
        actions.extend(issued.iter().map(|&unit| Action::Reduce(unit)));
        backward.reduced = until;
    }

    fn reshard_after(&mut self, unit: usize, pass: Pass, actions: &mut Vec<Action>) {
        let stays = self.mode == Mode::Z2 || self.revisits[unit];
        if !stays || pass == Pass::Evaluation {
            self.reshard(unit, actions);
        }
    }

    fn reset(&mut self, actions: &mut Vec<Action>) {
        (0..self.unsharded.len()).for_each(|unit| self.reshard(unit, actions));
        self.rewind();
    }

    fn rewind(&mut self) {
        self.forward_cursor = 0;
        self.loose = None;
        self.backward = None;
    }

    /// Takes part in a broadcast that only other ranks need.
    fn pass_by(&mut self, unit: usize, actions: &mut Vec<Action>) {
        if !self.unsharded[unit] {
            self.unshard(unit, actions);
            // What others keep is not broadcast to them again, so this rank keeps it, too.
            if !self.keeps {
                self.reshard(unit, actions);
            }
        }
    }

    fn unshard(&mut self, unit: usize, actions: &mut Vec<Action>) {
        if !std::mem::replace(&mut self.unsharded[unit], true) {
            actions.push(Action::Unshard(unit));
        }
    }

    fn reshard(&mut self, unit: usize, actions: &mut Vec<Action>) {
        if std::mem::replace(&mut self.unsharded[unit], false) {
            actions.push(Action::Reshard(unit));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Action::{Reduce, Reshard, Unshard};
    use super::*;

    const TRAIN: Pass = Pass::Training;

    fn schedule(mode: Mode, prefetch: usize) -> Schedule {
        Schedule::new(mode, prefetch, &[Placement::Hooked; 3])
    }

    /// One ordinary step; returns all actions of forward and of backward.
    fn step(schedule: &mut Schedule, touched: &[usize]) -> (Vec<Action>, Vec<Action>) {
        let mut forward = Vec::new();
        for &unit in touched {
            forward.extend(schedule.enter(unit, TRAIN));
            forward.extend(schedule.leave(unit, TRAIN));
        }
        let mut backward = Vec::new();
        for (done, &unit) in touched.iter().rev().enumerate() {
            backward.extend(schedule.enter_backward(unit));
            if schedule.mode() == Mode::Z3 {
                backward.extend(schedule.read_backward(unit));
            }
            let left = &touched[..touched.len() - 1 - done];
            backward.extend(schedule.leave_backward(unit, true, |unit| left.contains(&unit)));
        }
        backward.extend(schedule.finish_backward());
        (forward, backward)
    }

    fn unshards(actions: &[Action]) -> Vec<usize> {
        let unit = |action: &Action| match action {
            Unshard(unit) => Some(*unit),
            _ => None,
        };
        actions.iter().filter_map(unit).collect()
    }

    fn reduces(actions: &[Action]) -> Vec<usize> {
        let unit = |action: &Action| match action {
            Reduce(unit) => Some(*unit),
            _ => None,
        };
        actions.iter().filter_map(unit).collect()
    }

    #[test]
    fn z2_broadcasts_once_and_keeps_until_the_units_backward() {
        let (forward, backward) = step(&mut schedule(Mode::Z2, 0), &[0, 1, 2]);
        assert_eq!(forward, [Unshard(0), Unshard(1), Unshard(2)]);
        assert_eq!(backward, [Reshard(2), Reduce(2), Reshard(1), Reduce(1), Reshard(0), Reduce(0)]);
    }

    #[test]
    fn z3_broadcasts_twice_and_prefetches_the_neighbour() {
        let (forward, backward) = step(&mut schedule(Mode::Z3, 1), &[0, 1, 2]);
        assert_eq!(
            forward,
            [Unshard(0), Unshard(1), Reshard(0), Unshard(2), Reshard(1), Reshard(2)]
        );
        assert_eq!(
            backward,
            [
                Unshard(2),
                Unshard(1),
                Reshard(2),
                Reduce(2),
                Unshard(0),
                Reshard(1),
                Reduce(1),
                Reshard(0),
                Reduce(0)
            ]
        );
    }

    #[test]
    fn ranks_that_skip_units_issue_the_same_sequences() {
        for (mode, prefetch) in
            [(Mode::Z2, 0), (Mode::Z2, 1), (Mode::Z3, 0), (Mode::Z3, 1), (Mode::Z3, 5)]
        {
            let all = step(&mut schedule(mode, prefetch), &[0, 1, 2]);
            for touched in [&[0, 1][..], &[0, 2], &[1, 2], &[1], &[]] {
                let some = step(&mut schedule(mode, prefetch), touched);
                let of = |(forward, backward): &(Vec<Action>, Vec<Action>)| {
                    ([unshards(forward), unshards(backward)].concat(), reduces(backward))
                };
                assert_eq!(of(&some), of(&all), "{mode:?} prefetch {prefetch} {touched:?}");
            }
        }
    }

    #[test]
    fn a_step_leaves_nothing_unsharded() {
        for mode in [Mode::Z2, Mode::Z3] {
            let mut schedule = schedule(mode, 1);
            step(&mut schedule, &[0, 2]);
            assert!((0..3).all(|unit| !schedule.is_unsharded(unit)));
            assert!(!schedule.in_backward());
        }
    }

    #[test]
    fn a_unit_nobody_reads_is_not_broadcast_in_backward() {
        let mut schedule = schedule(Mode::Z3, 1);
        step(&mut schedule, &[0, 1, 2]);
        let mut reads = schedule.take_reads();
        assert_eq!(reads, [true; 3]);
        reads[0] = false;
        schedule.plan_reads(reads);
        for unit in 0..3 {
            schedule.enter(unit, TRAIN);
            schedule.leave(unit, TRAIN);
        }
        let mut backward = Vec::new();
        for unit in [2, 1] {
            backward.extend(schedule.enter_backward(unit));
            backward.extend(schedule.read_backward(unit));
            backward.extend(schedule.leave_backward(unit, true, |other| other < unit));
        }
        backward.extend(schedule.enter_backward(0));
        backward.extend(schedule.finish_backward());
        assert_eq!(unshards(&backward), [2, 1]);
        assert_eq!(reduces(&backward), [2, 1, 0]);
        assert_eq!(schedule.take_reads(), [false, true, true]);
    }

    #[test]
    fn a_unit_read_against_the_plan_is_still_broadcast() {
        let mut schedule = schedule(Mode::Z3, 0);
        schedule.plan_reads(vec![false; 3]);
        for unit in 0..3 {
            schedule.enter(unit, TRAIN);
            schedule.leave(unit, TRAIN);
        }
        assert!(unshards(&schedule.enter_backward(2)).is_empty());
        assert_eq!(unshards(&schedule.read_backward(1)), [1]);
    }

    #[test]
    fn a_unit_entered_twice_is_reduced_once_after_its_last_gradient() {
        for mode in [Mode::Z2, Mode::Z3] {
            let mut schedule = Schedule::new(mode, 0, &[Placement::Hooked]);
            let mut forward = Vec::new();
            for _ in 0..2 {
                forward.extend(schedule.enter(0, TRAIN));
                forward.extend(schedule.leave(0, TRAIN));
            }
            assert_eq!(unshards(&forward).len(), if mode == Mode::Z2 { 1 } else { 2 });
            let first = schedule.leave_backward(0, true, |_| true);
            assert!(reduces(&first).is_empty());
            let second = schedule.leave_backward(0, true, |_| false);
            assert_eq!(reduces(&second), [0]);
            assert!(reduces(&schedule.finish_backward()).is_empty());
        }
    }

    #[test]
    fn loose_units_are_reduced_after_hooked_ones() {
        use Placement::{Hooked, Loose, Root};
        let mut schedule = Schedule::new(Mode::Z2, 0, &[Loose, Hooked, Hooked, Root, Loose]);
        assert_eq!(schedule.reduce_order, [2, 1, 4, 0, 3]);
        schedule = Schedule::new(Mode::Z2, 0, &[Hooked, Hooked, Loose]);
        (0..2).for_each(|unit| drop(schedule.enter(unit, TRAIN)));
        schedule.touch(2, TRAIN);
        assert_eq!(reduces(&schedule.leave_backward(1, true, |unit| unit != 1)), [1]);
        assert_eq!(reduces(&schedule.leave_backward(0, true, |unit| unit == 2)), [0]);
        assert_eq!(reduces(&schedule.leave_backward(2, false, |_| false)), [2]);
    }

    #[test]
    fn loose_units_stay_until_the_next_unit_is_touched() {
        let mut schedule = Schedule::new(Mode::Z3, 0, &[Placement::Loose; 3]);
        assert_eq!(schedule.touch(0, TRAIN), [Unshard(0)]);
        assert_eq!(schedule.touch(0, TRAIN), []);
        assert_eq!(schedule.touch(1, TRAIN), [Reshard(0), Unshard(1)]);
        assert_eq!(schedule.begin_backward(), [Unshard(2), Reshard(2), Reshard(1)]);
    }

    #[test]
    fn evaluation_keeps_nothing_in_either_mode() {
        for mode in [Mode::Z2, Mode::Z3] {
            let mut schedule = schedule(mode, 1);
            let mut actions = Vec::new();
            for unit in 0..3 {
                actions.extend(schedule.enter(unit, Pass::Evaluation));
                actions.extend(schedule.leave(unit, Pass::Evaluation));
            }
            assert_eq!(unshards(&actions), [0, 1, 2]);
            assert!((0..3).all(|unit| !schedule.is_unsharded(unit)));
        }
    }

    #[test]
    fn an_abandoned_forward_does_not_disturb_the_next_step() {
        for mode in [Mode::Z2, Mode::Z3] {
            let mut schedule = schedule(mode, 1);
            for unit in 0..2 {
                schedule.enter(unit, TRAIN);
                schedule.leave(unit, TRAIN);
            }
            let (_, backward) = step(&mut schedule, &[0, 1, 2]);
            assert_eq!(reduces(&backward), [2, 1, 0]);
            let mut fresh = self::schedule(mode, 1);
            assert_eq!(step(&mut schedule, &[0, 1, 2]), step(&mut fresh, &[0, 1, 2]));
        }
    }

    #[test]
    fn the_order_of_the_last_forward_is_learned() {
        let mut schedule = schedule(Mode::Z3, 1);
        let touched = [2, 0, 1];
        let guessed = step(&mut schedule, &touched).0;
        assert_eq!(unshards(&guessed), [0, 1, 2]);
        let order = schedule.take_order();
        assert_eq!(order, touched);
        schedule.plan_order(&order);
        let (forward, backward) = step(&mut schedule, &touched);
        assert_eq!(unshards(&forward), touched);
        assert_eq!(unshards(&backward), [1, 0, 2]);
        assert_eq!(reduces(&backward), [1, 0, 2]);
    }

    #[test]
    fn ranks_issue_the_same_whatever_the_order_in_which_they_touch() {
        for (mode, prefetch) in [(Mode::Z2, 0), (Mode::Z2, 1), (Mode::Z3, 0), (Mode::Z3, 1)] {
            let all = step(&mut schedule(mode, prefetch), &[0, 1, 2]).0;
            for touched in [&[2, 0, 1][..], &[2, 1, 0], &[1, 0], &[2], &[]] {
                let mut schedule = schedule(mode, prefetch);
                let mut actions = Vec::new();
                for &unit in touched {
                    actions.extend(schedule.enter(unit, TRAIN));
                    actions.extend(schedule.leave(unit, TRAIN));
                }
                actions.extend(schedule.begin_backward());
                assert_eq!(unshards(&actions), unshards(&all), "{mode:?} {touched:?}");
            }
        }
    }

    #[test]
    fn a_unit_touched_again_stays_through_forward_once_that_is_agreed() {
        let mut schedule = schedule(Mode::Z3, 0);
        let forward = |schedule: &mut Schedule| {
            let mut actions = Vec::new();
            for unit in [0, 1, 2, 0] {
                actions.extend(schedule.enter(unit, TRAIN));
                actions.extend(schedule.leave(unit, TRAIN));
            }
            actions
        };
        assert_eq!(unshards(&forward(&mut schedule)), [0, 1, 2, 0]);
        schedule.finish_backward();
        let revisits = schedule.take_revisits();
        assert_eq!(revisits, [true, false, false]);
        schedule.plan_revisits(&revisits);
        assert_eq!(unshards(&forward(&mut schedule)), [0, 1, 2]);
        assert!(schedule.is_unsharded(0) && !schedule.is_unsharded(1));
        schedule.begin_backward();
        assert!(!schedule.is_unsharded(0));
    }

    #[test]
    fn kept_weights_are_broadcast_once_for_several_passes() {
        let all = [0, 1, 2];
        for touched in [&all[..], &[1], &[]] {
            let mut schedule = schedule(Mode::Z2, 1);
            schedule.keep(true);
            let mut seen = Vec::new();
            for _ in 0..2 {
                let (forward, backward) = step(&mut schedule, touched);
                assert!(forward.iter().chain(&backward).all(|a| !matches!(a, Reshard(_))));
                assert_eq!(reduces(&backward), [2, 1, 0]);
                seen.extend(unshards(&[forward, backward].concat()));
            }
            schedule.keep(false);
            let (forward, backward) = step(&mut schedule, touched);
            seen.extend(unshards(&[forward, backward].concat()));
            assert_eq!(seen, all, "{touched:?}");
            assert!(all.iter().all(|&unit| !schedule.is_unsharded(unit)));
        }
    }

    #[test]
    fn units_that_nobody_touched_keep_their_positions() {
        let mut schedule = schedule(Mode::Z2, 0);
        for (touched, order) in [(&[1, 2][..], [0, 1, 2]), (&[2, 0], [2, 1, 0]), (&[], [2, 1, 0])] {
            schedule.plan_order(touched);
            assert_eq!(schedule.order, order);
            assert!((0..3).all(|unit| schedule.order[schedule.position[unit]] == unit));
        }
    }

    #[test]
    fn publishing_drops_every_copy() {
        let mut schedule = schedule(Mode::Z2, 1);
        schedule.enter(0, TRAIN);
        assert_eq!(schedule.publish(), [Reshard(0), Reshard(1)]);
    }
}
