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
mod tests;
