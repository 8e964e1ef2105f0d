//! One rank's exchange of weights and gradients: the schedule's decisions, carried out on groups.
//!
//! The way of the data: a boundary is touched → [`Schedule`] says what to issue → [`Group`] calls
//! start on packed buffers → weights arrive as a [`PackMemory::Pack`] → gradients are packed, reduced and
//! come back as [`ReducedPack`]s on whoever holds the parameters. Where packed buffers live, and how they
//! get to a group, is a [`PackMemory`]'s affair.
//!
//! [`Group`]: crate::Group

use crate::gradients::Gradients;
use crate::weights::Weights;
use crate::{
    Action, Address, Buffer, EventKind, FloatType, Mesh, PackMemory, Pass, Placement, Reach,
    Recorder, ReducedPack, Result, Schedule, SharedBuffer, Unit,
};
use dmuon_partition::Mode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a model is exchanged: fixed before the first step, alike on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeOptions {
    /// How long packed weights live.
    pub mode: Mode,
    /// How many boundaries ahead weights are broadcast.
    pub prefetch: usize,
    /// What weights travel and are used in; masters are `f32`.
    pub weights: FloatType,
    /// What gradients travel in; they are summed in `f32`.
    pub gradients: FloatType,
}

impl ExchangeOptions {
    /// Everything in `f32`, no prefetch.
    pub fn new(mode: Mode) -> Self {
        Self { mode, prefetch: 0, weights: FloatType::F32, gradients: FloatType::F32 }
    }
}

/// A unit's weights that something outside kept alive past their release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldPack {
    /// Index of the unit.
    pub unit: usize,
    /// Index of the pack in the unit.
    pub pack: usize,
}

/// One rank's exchange for one model.
#[derive(Debug)]
pub struct Exchange<M: PackMemory> {
    units: Arc<[Unit]>,
    schedule: Schedule,
    weights: Weights<M>,
    gradients: Gradients<M>,
    recorder: Recorder,
    held: Vec<HeldPack>,
    waited: Duration,
}

impl<M: PackMemory + Clone> Exchange<M> {
    /// An exchange over `mesh` of packed buffers in `memory`. Nothing is published yet.
    pub fn new(mesh: &Mesh, units: Vec<Unit>, options: ExchangeOptions, memory: M) -> Self {
        let placements: Vec<Placement> = units.iter().map(|unit| unit.placement).collect();
        let units: Arc<[Unit]> = units.into();
        Self {
            schedule: Schedule::new(options.mode, options.prefetch, &placements),
            weights: Weights::new(memory.clone(), mesh, units.clone(), options.weights),
            gradients: Gradients::new(memory, mesh, units.clone(), options.gradients),
            recorder: mesh.world().recorder().clone(),
            units,
            held: Vec::new(),
            waited: Duration::ZERO,
        }
    }

    /// The units, in plan order.
    pub fn units(&self) -> &Arc<[Unit]> {
        &self.units
    }

    /// A buffer for the next version of a pack this rank owns; see [`publish`](Self::publish).
    pub fn spare(&self, unit: usize, pack: usize) -> Buffer {
        self.weights.spare(unit, pack)
    }

    /// Drops every copy of the old weights. What follows, in plan order over the packs of this
    /// rank's column and of everyone: [`publish`](Self::publish) or [`receive`](Self::receive).
    ///
    /// # Collective
    /// Every rank, before the next forward.
    ///
    /// # Errors
    /// A group has failed.
    pub fn begin_publish(&mut self) -> Result<()> {
        self.release()?;
        self.gradients.clear();
        Ok(())
    }

    /// Drops every copy of other ranks' weights, and whatever a backward that did not finish left.
    ///
    /// # Errors
    /// A group has failed.
    pub fn release(&mut self) -> Result<()> {
        // Nothing of an earlier version may arrive after this one.
        self.weights.drain()?;
        let actions = self.schedule.publish();
        self.carry_out(actions, Pass::Evaluation)?;
        self.gradients.abandon();
        Ok(())
    }

    /// Whether sums that were kept back wait for a backward that reaches the holders; see
    /// [`set_reach`](Self::set_reach).
    pub fn keeps_sums(&self) -> bool {
        self.gradients.keeps_sums()
    }

    /// Replaces the weights of a pack that this rank made, and starts sending them to the other
    /// replicas; they are awaited when the next forward needs them.
    ///
    /// # Errors
    /// A group has failed.
    pub fn publish(&mut self, unit: usize, pack: usize, buffer: Buffer) -> Result<M::Pack> {
        let bytes = buffer.len_bytes() as u64;
        self.recorder.mark_bytes(EventKind::Publish, &self.units[unit].name, bytes);
        self.weights.publish(unit, pack, buffer)
    }

    /// Takes part in the publish of a pack whose owner is in another replica.
    ///
    /// # Errors
    /// A group has failed.
    pub fn receive(&mut self, unit: usize, pack: usize) -> Result<()> {
        self.weights.receive(unit, pack)
    }

    /// Waits for every publish that is on its way to this rank.
    ///
    /// # Errors
    /// A group has failed, or an owner did not send before the deadline.
    pub fn drain(&mut self) -> Result<()> {
        let started = Instant::now();
        let drained = self.weights.drain();
        self.waited += started.elapsed();
        drained
    }

    /// The weights published last for a pack that this rank makes, in `f32`: the host's
    /// buffer, and the pack that was made of it.
    pub fn published(&self, unit: usize, pack: usize) -> Option<&(SharedBuffer, M::Pack)> {
        self.weights.published(unit, pack)
    }

    /// Forward enters the boundary around `unit`.
    ///
    /// # Errors
    /// A group has failed.
    pub fn enter(&mut self, unit: usize, pass: Pass) -> Result<()> {
        self.recorder.mark(EventKind::ForwardEnter, &self.units[unit].name);
        let actions = self.schedule.enter(unit, pass);
        self.carry_out(actions, pass)
    }

    /// Forward leaves the boundary around `unit`.
    ///
    /// # Errors
    /// A group has failed.
    pub fn leave(&mut self, unit: usize, pass: Pass) -> Result<()> {
        let actions = self.schedule.leave(unit, pass);
        self.carry_out(actions, pass)?;
        self.recorder.mark(EventKind::ForwardLeave, &self.units[unit].name);
        Ok(())
    }

    /// The weights of a pack, in forward; in `f32` if everyone holds it, as it never moves.
    /// `inside`: the boundary around the unit is running.
    ///
    /// # Errors
    /// A group has failed, or the owner did not send before the deadline.
    pub fn weights(
        &mut self,
        unit: usize,
        pack: usize,
        inside: bool,
        pass: Pass,
    ) -> Result<M::Pack> {
        // Also inside: a nested pass may have dropped what entering started.
        let actions = match inside {
            true => self.schedule.enter(unit, pass),
            false => self.schedule.touch(unit, pass),
        };
        self.carry_out(actions, pass)?;
        self.wait(unit, pack)
    }

    /// The weights of a pack, in backward, after Z3 dropped them.
    ///
    /// # Errors
    /// As [`weights`](Self::weights).
    pub fn weights_in_backward(&mut self, unit: usize, pack: usize) -> Result<M::Pack> {
        let actions = self.schedule.read_backward(unit);
        self.carry_out(actions, Pass::Training)?;
        self.wait(unit, pack)
    }

    /// Backward reaches the output of the boundary around `unit`.
    ///
    /// # Errors
    /// A group has failed.
    pub fn enter_backward(&mut self, unit: usize) -> Result<()> {
        self.recorder.mark(EventKind::BackwardEnter, &self.units[unit].name);
        let actions = self.schedule.enter_backward(unit);
        self.carry_out(actions, Pass::Training)?;
        self.gradients.advance()
    }

    /// Packs one gradient; further ones of the same parameter are added.
    pub fn add_gradient(&mut self, address: Address, gradient: &M::Gradient) {
        self.gradients.add(address, gradient);
    }

    /// Backward is through with a run of `unit` (`left`), or has produced one of its gradients.
    /// `pending(u)`: whether this rank still has gradients of unit `u` to come.
    ///
    /// # Errors
    /// A group has failed.
    pub fn leave_backward(
        &mut self,
        unit: usize,
        left: bool,
        pending: impl Fn(usize) -> bool,
    ) -> Result<()> {
        if left {
            self.recorder.mark(EventKind::BackwardLeave, &self.units[unit].name);
        }
        let actions = self.schedule.leave_backward(unit, left, pending);
        self.carry_out(actions, Pass::Training)
    }

    /// Ends a backward: issues what is missing, waits, returns the averages this rank holds.
    ///
    /// # Errors
    /// A group has failed, or a rank did not take part before the deadline.
    pub fn finish_backward(&mut self) -> Result<Vec<ReducedPack<M::Pack>>> {
        let actions = self.schedule.finish_backward();
        self.carry_out(actions, Pass::Training)?;
        let started = Instant::now();
        let reduced = self.gradients.wait();
        self.waited += started.elapsed();
        reduced
    }

    /// Chooses how far the gradients of the backwards that follow go. Those that do not reach the
    /// holders return no averages; the next backward that goes further adds their sums to its own.
    /// While they stay on the rank, Z2 keeps whole weights from one forward to the next.
    ///
    /// # Collective
    /// Every rank, before the same forward.
    pub fn set_reach(&mut self, reach: Reach) {
        self.gradients.set_reach(reach);
        self.schedule.keep(reach == Reach::Rank);
    }

    /// How far gradients go.
    pub fn reach(&self) -> Reach {
        self.gradients.reach()
    }

    /// Sets what averaged gradients are multiplied by; alike on every rank.
    pub fn set_gradient_scale(&mut self, scale: f32) {
        self.gradients.set_scale(scale);
    }

    /// What averaged gradients are multiplied by.
    pub fn gradient_scale(&self) -> f32 {
        self.gradients.scale()
    }

    /// Units this rank's backward has read since the last call.
    pub fn take_reads(&mut self) -> Vec<bool> {
        self.schedule.take_reads()
    }

    /// Sets which units any rank's backward reads; alike on every rank.
    pub fn plan_reads(&mut self, reads: Vec<bool>) {
        self.schedule.plan_reads(reads);
    }

    /// Units this rank's forward has touched again after they were dropped, since the last call.
    pub fn take_revisits(&mut self) -> Vec<bool> {
        self.schedule.take_revisits()
    }

    /// Adds to the units that stay through forward; alike on every rank, and between steps.
    pub fn plan_revisits(&mut self, revisits: &[bool]) {
        self.schedule.plan_revisits(revisits);
    }

    /// Forgets gradients that were kept back, or that a backward left behind.
    pub fn discard_gradients(&mut self) {
        self.gradients.clear();
    }

    /// Units in the order in which this rank's forward touched them first, since the last call.
    pub fn take_order(&mut self) -> Vec<usize> {
        self.schedule.take_order()
    }

    /// Makes the units of `touched` run in that order; alike on every rank, and between steps.
    pub fn plan_order(&mut self, touched: &[usize]) {
        self.schedule.plan_order(touched);
    }

    /// Packs that were held past their release in a training forward since the last call.
    pub fn take_held(&mut self) -> Vec<HeldPack> {
        std::mem::take(&mut self.held)
    }

    /// Time spent waiting for weights and gradients since the last call.
    pub fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }

    fn wait(&mut self, unit: usize, pack: usize) -> Result<M::Pack> {
        let started = Instant::now();
        let arrived = self.weights.wait(unit, pack);
        self.waited += started.elapsed();
        arrived?.ok_or_else(|| {
            crate::Error::message(format!(
                "the weights of \"{}\" were used before the first publish",
                self.units[unit].name
            ))
        })
    }

    fn carry_out(&mut self, actions: Vec<Action>, pass: Pass) -> Result<()> {
        for action in actions {
            match action {
                Action::Unshard(unit) => self.weights.unshard(unit)?,
                Action::Reduce(unit) => self.gradients.reduce(unit)?,
                Action::Reshard(unit) => {
                    let held = self.weights.reshard(unit);
                    if pass == Pass::Training && !self.schedule.in_backward() {
                        self.held.extend(held.into_iter().map(|pack| HeldPack { unit, pack }));
                    }
                }
            }
        }
        Ok(())
    }
}
