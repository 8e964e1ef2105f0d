//! One rank's runtime of one dedicated model: what hooks call, turned into exchange of packed buffers.

use crate::blueprint::Blueprint;
use crate::error::{Error, Result};
use crate::holdings::held;
use crate::hook::{Averaged, Fetch, Run};
use crate::inspect::ParameterInfo;
use crate::ops::Place;
use crate::parameter::Parameter;
use crate::route::{Route, RouteReport};
use crate::setup::{ReplicatePublish, Setup};
use crate::transport::{self, Gradient, PackStorage, Packs};
use burn::backend::autodiff::NodeId;
use burn::module::ParamId;
use dmuon_core::{
    Buffer, Exchange, FloatType, HeldPack, Holder, Mesh, Pass, Rank, Reach, Recorder, ReducedPack,
    SharedBuffer, Slot, Unit, World,
};
use dmuon_partition::{Mode, Plan};
use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Who multiplies averaged gradients.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Factor {
    /// The user.
    Own,
    /// A loss scaler.
    LossScale,
}

/// Shared by a dedicated model's parameters, its tapes, and its optimizer.
pub(crate) struct Runtime {
    setup: Setup,
    /// The parameters as they were found, in case more of the model is distributed.
    found: Vec<ParameterInfo>,
    plan: Plan,
    routes: RouteReport,
    units: Arc<[Unit]>,
    parameters: Vec<Parameter>,
    /// By parameter: what this rank holds of it, in its own buffer of the pack.
    held: Vec<Option<Slot>>,
    by_id: HashMap<ParamId, usize>,
    /// `by_slot[unit][pack][slot]`: index of the parameter.
    by_slot: Vec<Vec<Vec<usize>>>,
    state: Mutex<State>,
}

struct State {
    exchange: Exchange<Packs>,
    /// Counts publishes.
    version: u64,
    /// `runs[unit]`: runs with gradients to come, as long as their tapes live.
    runs: Vec<Vec<Weak<Run>>>,
    /// Runs that took part in the backward under way.
    backward: Vec<Arc<Run>>,
    /// Where each parameter's gradient belongs on the tape.
    leaves: Vec<Option<NodeId>>,
    /// By parameter: where its gradient was averaged last, until a step takes that; nothing on Flex,
    /// whose tensors share that memory.
    averages: Vec<Option<Place>>,
    /// By [`Factor`].
    factors: [f32; 2],
    /// Whether the model was distributed anew, with a runtime of its own.
    superseded: bool,
    /// Whether a backward has ended since the last publish.
    had_backward: bool,
    /// Whether this rank's backward met the parameter since reads were last taken.
    met: Vec<bool>,
    /// Whether the user was told that z3 can't free something.
    warned: bool,
    /// Each parameter's own save and load mappings, which ours stand in for.
    mappers: Vec<Option<Box<dyn Any + Send>>>,
}

impl Runtime {
    pub(crate) fn new(setup: Setup, found: Vec<ParameterInfo>, blueprint: Blueprint) -> Self {
        let Blueprint { plan, units, order, parameters, routes } = blueprint;
        let slots = |unit: &Unit| {
            unit.packs.iter().map(|pack| vec![usize::MAX; pack.layout.slots().len()]).collect()
        };
        let mut by_slot: Vec<Vec<Vec<usize>>> = units.iter().map(slots).collect();
        for (index, Parameter { address, .. }) in parameters.iter().enumerate() {
            by_slot[address.unit][address.pack][address.slot] = index;
        }
        let by_id = parameters.iter().enumerate().map(|(index, p)| (p.id, index)).collect();
        let device = found.first().map(|info| &info.device);
        let memory = transport::packs(setup.mesh.world(), device);
        let mut exchange = Exchange::new(&setup.mesh, units, setup.options, memory);
        exchange.plan_order(&order);
        let num_parameters = parameters.len();
        let units = exchange.units().clone();
        let held = parameters.iter().map(|parameter| held(&setup.mesh, &units, parameter));
        Self {
            held: held.collect(),
            setup,
            found,
            plan,
            routes,
            units,
            by_id,
            by_slot,
            state: Mutex::new(State {
                version: 0,
                runs: vec![Vec::new(); exchange.units().len()],
                exchange,
                backward: Vec::new(),
                leaves: vec![None; num_parameters],
                averages: vec![None; num_parameters],
                factors: [1.0; 2],
                superseded: false,
                had_backward: false,
                met: vec![false; num_parameters],
                warned: false,
                mappers: (0..num_parameters).map(|_| None).collect(),
            }),
            parameters,
        }
    }

    /// The model goes on with another runtime.
    pub(crate) fn supersede(&self) {
        self.lock().superseded = true;
    }

    /// # Errors
    /// [`Error::OtherHandle`]: the model goes on with another runtime.
    pub(crate) fn check_current(&self) -> Result<()> {
        match self.lock().superseded {
            true => Err(Error::OtherHandle),
            false => Ok(()),
        }
    }

    pub(crate) fn setup(&self) -> &Setup {
        &self.setup
    }

    pub(crate) fn found(&self) -> &[ParameterInfo] {
        &self.found
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(crate) fn routes(&self) -> &RouteReport {
        &self.routes
    }

    pub(crate) fn mesh(&self) -> &Mesh {
        &self.setup.mesh
    }

    pub(crate) fn world(&self) -> &World {
        self.mesh().world()
    }

    pub(crate) fn rank(&self) -> Rank {
        self.world().rank()
    }

    pub(crate) fn recorder(&self) -> &Recorder {
        self.world().recorder()
    }

    pub(crate) fn mode(&self) -> Mode {
        self.setup.options.mode
    }

    pub(crate) fn units(&self) -> &[Unit] {
        &self.units
    }

    pub(crate) fn unit_name(&self, unit: usize) -> &Arc<str> {
        &self.units[unit].name
    }

    pub(crate) fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    pub(crate) fn parameter(&self, index: usize) -> &Parameter {
        &self.parameters[index]
    }

    /// Index of the parameter with this id in this rank's model.
    pub(crate) fn find(&self, id: ParamId) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    /// Indices of the parameters in a pack, in slot order.
    pub(crate) fn in_pack(&self, unit: usize, pack: usize) -> &[usize] {
        &self.by_slot[unit][pack]
    }

    /// What this rank holds of the parameter between passes and updates: all of it, a piece, or
    /// nothing.
    pub(crate) fn held_slot(&self, parameter: usize) -> Option<&Slot> {
        self.held[parameter].as_ref()
    }

    pub(crate) fn version(&self) -> u64 {
        self.lock().version
    }

    // ---- forward

    pub(crate) fn enter(&self, unit: usize, pass: Pass) -> Result<()> {
        Ok(self.lock().exchange.enter(unit, pass)?)
    }

    pub(crate) fn leave(&self, unit: usize, pass: Pass) -> Result<()> {
        let mut state = self.lock();
        state.exchange.leave(unit, pass)?;
        self.warn_of_held(&mut state);
        Ok(())
    }

    pub(crate) fn weight(&self, fetch: &Fetch) -> Result<Place> {
        let Parameter { address, .. } = &self.parameters[fetch.parameter];
        let mut state = self.lock();
        let inside = fetch.hook.run.is_hooked();
        let storage = state.exchange.weights(address.unit, address.pack, inside, fetch.pass)?;
        self.warn_of_held(&mut state);
        Ok(self.place(fetch.parameter, storage))
    }

    /// The whole parameter's place in `storage`, which is all of its pack.
    pub(crate) fn place(&self, parameter: usize, storage: PackStorage) -> Place {
        Place { storage, slot: self.whole_slot(parameter).clone() }
    }

    /// The place of what this rank holds of the parameter in `storage`, which is this rank's buffer
    /// of the pack.
    pub(crate) fn held_place(&self, parameter: usize, storage: PackStorage) -> Option<Place> {
        Some(Place { storage, slot: self.held_slot(parameter)?.clone() })
    }

    /// Where the values published last are that this rank holds.
    pub(crate) fn published_place(&self, parameter: usize) -> Option<Place> {
        let address = self.parameters[parameter].address;
        self.held_slot(parameter)?;
        self.held_place(parameter, self.published(address.unit, address.pack)?)
    }

    /// The storage of a pack this rank makes, in `f32`.
    pub(crate) fn published(&self, unit: usize, pack: usize) -> Option<PackStorage> {
        Some(self.lock().exchange.published(unit, pack)?.1.clone())
    }

    /// The buffer of a pack this rank makes, in `f32`.
    pub(crate) fn master(&self, unit: usize, pack: usize) -> Option<SharedBuffer> {
        Some(self.lock().exchange.published(unit, pack)?.0.clone())
    }

    /// What weights are used in.
    pub(crate) fn weight_float(&self) -> FloatType {
        self.setup.options.weights
    }

    pub(crate) fn stale_weight(&self, parameter: usize) -> Error {
        self.fail(Error::StaleWeight { rank: self.rank(), parameter: self.name(parameter) })
    }

    /// Tells the other ranks, which may be waiting for this one, before this one unwinds.
    pub(crate) fn fail(&self, error: Error) -> Error {
        self.world().fail(error.clone().into());
        error
    }

    pub(crate) fn name(&self, parameter: usize) -> String {
        self.parameters[parameter].name.to_string()
    }

    /// Warns once, on the first two ranks: one alone may own what is held, and the others see the
    /// same.
    fn warn_of_held(&self, state: &mut State) {
        for HeldPack { unit, pack } in state.exchange.take_held() {
            let first = !std::mem::replace(&mut state.warned, true);
            if first && self.rank().0 < 2 {
                let names: Vec<_> =
                    self.in_pack(unit, pack).iter().map(|&index| self.name(index)).collect();
                tracing::warn!(
                    boundary = %self.unit_name(unit),
                    parameters = %names.join(", "),
                    "the tape keeps views of these weights, so z3 can't free them after forward: \
                     create model and inputs on `device.autodiff().gradient_checkpointing()`"
                );
            }
        }
    }

    // ---- backward

    pub(crate) fn expect_gradients(&self, run: &Arc<Run>) {
        let runs = &mut self.lock().runs[run.unit()];
        runs.retain(|run| run.strong_count() > 0);
        runs.push(Arc::downgrade(run));
    }

    pub(crate) fn enter_backward(&self, run: &Arc<Run>) -> Result<()> {
        let mut state = self.lock();
        state.join(run);
        Ok(state.exchange.enter_backward(run.unit())?)
    }

    pub(crate) fn weight_in_backward(&self, fetch: &Fetch) -> Result<Place> {
        let Parameter { address, .. } = &self.parameters[fetch.parameter];
        let mut state = self.lock();
        if state.version != fetch.version {
            drop(state);
            let parameter = self.name(fetch.parameter);
            return Err(self.fail(Error::OldTape { rank: self.rank(), parameter }));
        }
        state.join(&fetch.hook.run);
        let storage = state.exchange.weights_in_backward(address.unit, address.pack)?;
        Ok(self.place(fetch.parameter, storage))
    }

    /// Backward is through with a use of the parameter.
    pub(crate) fn meet(&self, parameter: usize) {
        self.lock().met[parameter] = true;
    }

    pub(crate) fn add_gradient(
        &self,
        parameter: usize,
        leaf: NodeId,
        gradient: &Gradient,
    ) -> Result<()> {
        let Parameter { address, route, .. } = &self.parameters[parameter];
        if *route == Route::Frozen {
            return Err(self.fail(Error::Unfrozen { parameter: self.name(parameter) }));
        }
        let mut state = self.lock();
        state.leaves[parameter] = Some(leaf);
        state.exchange.add_gradient(*address, gradient);
        Ok(())
    }

    /// `left`: nothing of this run is left to do in backward.
    pub(crate) fn leave_backward(&self, run: &Arc<Run>, left: bool) -> Result<()> {
        let mut state = self.lock();
        state.join(run);
        let State { exchange, runs, .. } = &mut *state;
        let pending =
            |unit: usize| runs[unit].iter().filter_map(Weak::upgrade).any(|run| run.is_pending());
        Ok(exchange.leave_backward(run.unit(), left, pending)?)
    }

    pub(crate) fn finish_backward(&self, run: &Arc<Run>) -> Result<Vec<Averaged>> {
        let mut state = self.lock();
        state.join(run);
        self.recorder().mark(dmuon_core::EventKind::Root, self.unit_name(run.unit()));
        let reduced = state.exchange.finish_backward()?;
        state.backward.drain(..).for_each(|run| run.settle());
        let averaged = self.averages(&mut state, reduced);
        let on_leaf = |(parameter, place): (usize, Place)| {
            Some(Averaged { leaf: state.leaves[parameter]?, place })
        };
        Ok(averaged.into_iter().filter_map(on_leaf).collect())
    }

    /// Takes part in the collectives of a backward that this rank did not run, if it ran none since
    /// the last publish; returns the averages this rank holds, by parameter.
    pub(crate) fn catch_up(&self) -> Result<Vec<(usize, Place)>> {
        let mut state = self.lock();
        if state.had_backward {
            return Ok(Vec::new());
        }
        let reduced = state.exchange.finish_backward()?;
        Ok(self.averages(&mut state, reduced))
    }

    /// The averages of parameters that at least one rank produced a gradient for.
    fn averages(
        &self,
        state: &mut State,
        reduced: Vec<ReducedPack<PackStorage>>,
    ) -> Vec<(usize, Place)> {
        state.had_backward = true;
        state.averages.fill(None);
        let on_flex = self.found.first().is_none_or(|info| transport::is_flex(&info.device));
        let mut averaged = Vec::new();
        for pack in reduced {
            for (&parameter, &num_ranks) in
                self.in_pack(pack.unit, pack.pack).iter().zip(&pack.num_ranks)
            {
                if num_ranks > 0
                    && let Some(place) = self.held_place(parameter, pack.average.clone())
                {
                    if !on_flex {
                        state.averages[parameter] = Some(place.clone());
                    }
                    averaged.push((parameter, place));
                }
            }
        }
        averaged
    }

    // ---- step

    /// Where gradients were averaged last, by parameter, as far as that is known.
    pub(crate) fn take_averages(&self) -> Vec<Option<Place>> {
        self.lock().averages.iter_mut().map(Option::take).collect()
    }

    pub(crate) fn spare(&self, unit: usize, pack: usize) -> Buffer {
        self.lock().exchange.spare(unit, pack)
    }

    /// Begins a new version of the weights; every rank must call it, then publish or receive each
    /// of its kept packs in plan order.
    pub(crate) fn begin_publish(&self) -> Result<()> {
        self.lock().version += 1;
        self.skip()
    }

    pub(crate) fn publish(&self, unit: usize, pack: usize, buffer: Buffer) -> Result<PackStorage> {
        Ok(self.lock().exchange.publish(unit, pack, buffer)?)
    }

    pub(crate) fn receive(&self, unit: usize, pack: usize) -> Result<()> {
        Ok(self.lock().exchange.receive(unit, pack)?)
    }

    /// Waits for publishes on their way to this rank; at the end of a step only if asked to.
    pub(crate) fn drain(&self) -> Result<()> {
        Ok(self.lock().exchange.drain()?)
    }

    pub(crate) fn publish_policy(&self) -> ReplicatePublish {
        self.setup.publish
    }

    /// Drops this rank's copies of other ranks' weights.
    pub(crate) fn release(&self) -> Result<()> {
        Ok(self.lock().exchange.release()?)
    }

    /// Checks that no micro-batch waits for one that reaches the owners.
    pub(crate) fn check_accumulated(&self) -> Result<()> {
        let exchange = &self.lock().exchange;
        match exchange.reach() == Reach::Holder && !exchange.keeps_sums() {
            true => Ok(()),
            false => Err(Error::Accumulating { rank: self.rank() }),
        }
    }

    /// Drops what a step that is not taken leaves behind: copies of weights, gradients, and who had
    /// one.
    pub(crate) fn skip(&self) -> Result<()> {
        let mut state = self.lock();
        state.backward.clear();
        state.had_backward = false;
        state.averages.fill(None);
        Ok(state.exchange.begin_publish()?)
    }

    pub(crate) fn bind_leaf(&self, parameter: usize, leaf: Option<NodeId>) {
        self.lock().leaves[parameter] = leaf;
    }

    /// Runs `backwards` whose gradients go no further than `reach`.
    pub(crate) fn reaching<T>(&self, reach: Reach, backwards: impl FnOnce() -> T) -> T {
        struct Restore<'a>(&'a Runtime, Reach);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                let mut state = self.0.lock();
                state.exchange.set_reach(self.1);
                if std::thread::panicking() {
                    // Half a scope's sums must not reach a step that is taken all the same.
                    state.exchange.discard_gradients();
                }
            }
        }
        let before = self.lock().exchange.reach();
        self.lock().exchange.set_reach(reach);
        let _restore = Restore(self, before);
        backwards()
    }

    /// Sets one of the factors whose product averaged gradients are multiplied by.
    pub(crate) fn set_gradient_factor(&self, factor: Factor, value: f32) {
        let mut state = self.lock();
        state.factors[factor as usize] = value;
        let scale = state.factors.iter().product();
        state.exchange.set_gradient_scale(scale);
    }

    pub(crate) fn gradient_scale(&self) -> f32 {
        self.lock().exchange.gradient_scale()
    }

    pub(crate) fn take_waited(&self) -> Duration {
        self.lock().exchange.take_waited()
    }

    /// Units whose weights this rank's backward has read since the last call, or might have: what
    /// it did not meet, such as a boundary that was not entered, it may read the next time.
    pub(crate) fn take_reads(&self) -> Vec<bool> {
        let mut state = self.lock();
        let mut reads = state.exchange.take_reads();
        let unmet = state.met.iter_mut().map(|met| !std::mem::take(met));
        for (parameter, unmet) in self.parameters.iter().zip(unmet) {
            reads[parameter.address.unit] |= unmet && parameter.holder != Holder::Everyone;
        }
        reads
    }

    pub(crate) fn plan_reads(&self, reads: Vec<bool>) {
        self.lock().exchange.plan_reads(reads);
    }

    /// Units in the order in which this rank's forward touched them since the last call.
    pub(crate) fn take_order(&self) -> Vec<usize> {
        self.lock().exchange.take_order()
    }

    pub(crate) fn take_revisits(&self) -> Vec<bool> {
        self.lock().exchange.take_revisits()
    }

    pub(crate) fn plan_revisits(&self, revisits: &[bool]) {
        self.lock().exchange.plan_revisits(revisits);
    }

    pub(crate) fn plan_order(&self, touched: &[usize]) {
        self.lock().exchange.plan_order(touched);
    }

    // ---- set-up and export

    pub(crate) fn keep_mapper(&self, parameter: usize, mapper: Box<dyn Any + Send>) {
        self.lock().mappers[parameter] = Some(mapper);
    }

    /// Keeps the mappings that `before` kept.
    pub(crate) fn inherit_mapper(&self, before: &Runtime, parameter: usize) {
        let mapper = before.lock().mappers[parameter].take();
        self.lock().mappers[parameter] = mapper;
    }

    pub(crate) fn mapper<T: Clone + 'static>(&self, parameter: usize) -> Option<T> {
        self.lock().mappers[parameter].as_ref()?.downcast_ref::<T>().cloned()
    }

    /// State changes are made before or after, never around, a call that can unwind.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn join(&mut self, run: &Arc<Run>) {
        if run.joins() {
            self.backward.push(run.clone());
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("rank", &self.rank())
            .field("mode", &self.mode())
            .field("parameters", &self.parameters.len())
            .finish_non_exhaustive()
    }
}
