//! Setting a model up: from a request to parameters that are views of published buffers.

use crate::binding::binding;
use crate::blueprint::{Blueprint, Request};
use crate::control::{Description, agree, barrier};
use crate::error::{Error, Result};
use crate::inspect::{ParameterInfo, locate};
use crate::runtime::Runtime;
use crate::transport::{dtype, is_flex, is_supported};
use crate::values::{Buffers, Recut, Take, publish};
use burn::backend::GradientCheckpointingStrategy;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use dmuon_core::{Address, Buffer, Call, Element, ExchangeOptions, FloatType, Mesh, Op, Rank};
use dmuon_partition::Mode;
use std::collections::BTreeSet;
use std::sync::Arc;

/// When a step waits for new weights to reach the other replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplicatePublish {
    /// Not at all: each boundary's are awaited when the next forward enters it.
    #[default]
    Async,
    /// At the end of the step.
    Sync,
}

/// Everything that a model is distributed by.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) mesh: Mesh,
    pub(crate) request: Request,
    pub(crate) options: ExchangeOptions,
    pub(crate) publish: ReplicatePublish,
}

impl Setup {
    /// Plans, checks that all ranks agree, and distributes a plain model.
    ///
    /// # Collective
    /// Every rank, with the same model and the same request.
    pub(crate) fn apply<M: Module>(
        self,
        model: M,
        found: Vec<ParameterInfo>,
    ) -> Result<(M, Arc<Runtime>)> {
        let runtime = self.runtime(found)?;
        initialize_in_turn(&runtime, &model)?;
        let model = attach(&runtime, model)?;
        Ok((model, runtime))
    }

    /// The same for a model that has been distributed before, and whose values are kept.
    ///
    /// # Collective
    /// Every rank, with the same model and the same request.
    pub(crate) fn apply_again<M: Module>(
        self,
        model: M,
        before: &Runtime,
    ) -> Result<(M, Arc<Runtime>)> {
        before.release()?;
        let mut found = before.found().to_vec();
        locate(&mut found, &model);
        let runtime = self.runtime(found)?;
        let held = Recut::values(before, &runtime, &model)?;
        let rebind = || model.map(&mut Recut::guard(before, &runtime));
        let model = binding(&runtime, rebind).map_err(|units| spans(&runtime, &units))?;
        let model = publish_first(&runtime, held, model)?;
        before.supersede();
        Ok((model, runtime))
    }

    fn runtime(self, found: Vec<ParameterInfo>) -> Result<Arc<Runtime>> {
        check_devices(&found, self.options.weights)?;
        let is_batch_norm = |info: &&ParameterInfo| info.module.ends_with("BatchNorm");
        if let Some(info) = found.iter().find(is_batch_norm)
            && self.options.weights != FloatType::F32
        {
            let (parameter, float) = (info.name.clone(), self.options.weights);
            return Err(Error::HalfBatchNorm { parameter, float });
        }
        let blueprint = Blueprint::draw(&self.request, found.clone())?;
        agree(self.mesh.world(), &self.describe(&blueprint))?;
        for rule in &blueprint.routes.unmatched {
            tracing::warn!("the rule \"{rule}\" matches no parameter that it may decide about");
        }
        self.warn_of_views(&found);
        Ok(Arc::new(Runtime::new(self, found, blueprint)))
    }

    /// On Flex the runtime sees what a tape keeps; elsewhere it can only be guessed.
    fn warn_of_views(&self, found: &[ParameterInfo]) {
        let may_keep = |info: &ParameterInfo| {
            let strategy = info.device.gradient_checkpointing_strategy();
            !is_flex(&info.device) && strategy == Some(GradientCheckpointingStrategy::Disabled)
        };
        let is_first = self.mesh.world().rank() == Rank(0);
        if is_first && self.options.mode == Mode::Z3 && found.iter().any(may_keep) {
            tracing::warn!(
                "Burn's tape may keep views of weights on this device, which z3 then can't free \
                 after forward: create model and inputs on \
                 `device.autodiff().gradient_checkpointing()`"
            );
        }
    }

    fn describe(&self, blueprint: &Blueprint) -> Description {
        let parameters = blueprint.parameters.iter().zip(&blueprint.routes.entries);
        let ExchangeOptions { mode, prefetch, weights, gradients } = self.options;
        let hooks =
            blueprint.units.iter().map(|unit| format!("{}={:?}", unit.name, unit.placement));
        let routes = parameters.clone().map(|(parameter, entry)| {
            let detail = format!("{:?}/{:?}", parameter.holder, parameter.matrix).replace(' ', "");
            format!("{}={}/{detail}", entry.name, entry.route)
        });
        let routes = routes.collect::<Vec<_>>().join(" ");
        let shape = self.mesh.shape();
        let mesh = format!("{}x{}", shape.replicate(), shape.shard());
        Description {
            parameters: parameters
                .map(|(parameter, _)| format!("\"{}\" {:?}", parameter.name, parameter.shape))
                .collect(),
            dedication: format!(
                "mesh={mesh} {mode} prefetch={prefetch} weights={weights} gradients={gradients} {} \
                 {routes}",
                hooks.collect::<Vec<_>>().join(" ")
            ),
        }
    }
}

/// Checks, before ranks talk, that every parameter is where dmuon can handle it.
fn check_devices(found: &[ParameterInfo], float: FloatType) -> Result<()> {
    for ParameterInfo { name, device, .. } in found {
        let (parameter, place) = (name.clone(), format!("{device:?}"));
        if !is_supported(device) {
            return Err(Error::UnsupportedDevice { parameter, device: place });
        }
        if !device.supports_dtype(dtype(float)) {
            return Err(Error::UnsupportedFloat { parameter, device: place, float });
        }
    }
    let elsewhere = |info: &&ParameterInfo| info.device != found[0].device;
    match found.iter().find(elsewhere) {
        None => Ok(()),
        Some(info) => Err(Error::SeveralDevices {
            first: found[0].name.clone(),
            device: format!("{:?}", found[0].device),
            second: info.name.clone(),
            other: format!("{:?}", info.device),
        }),
    }
}

/// Lets ranks initialize what they provide one after the other: threads share Burn's generator.
fn initialize_in_turn<M: Module>(runtime: &Runtime, model: &M) -> Result<()> {
    struct Initialize<'a>(&'a Runtime);
    impl ModuleVisitor for Initialize<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.0.find(param.id).is_some_and(|index| self.0.provides(index)) {
                let _ = param.base();
            }
        }
    }
    let world = runtime.world();
    for turn in 0..world.size() {
        if world.rank() == Rank(turn) {
            model.visit(&mut Initialize(runtime));
        }
        barrier(world, "initialization in turn")?;
    }
    Ok(())
}

/// Takes the values out of the model, hands out those that no rank owns, and publishes.
fn attach<M: Module>(runtime: &Arc<Runtime>, model: M) -> Result<M> {
    let mut take = Take::new(runtime);
    let attach = || model.apply_reparameterization(&mut take);
    let model = binding(runtime, attach).map_err(|units| spans(runtime, &units))?;
    let Take { mut held, provided, not_f32, .. } = take;
    if !not_f32.is_empty() {
        return Err(Error::NotF32 { names: not_f32 });
    }
    hand_out(runtime, provided, &mut held)?;
    publish_first(runtime, held, model)
}

fn publish_first<M: Module>(runtime: &Arc<Runtime>, mut held: Buffers, model: M) -> Result<M> {
    publish(runtime, |unit, pack| Ok(held.take(unit, pack)), model)
}

fn spans(runtime: &Runtime, units: &BTreeSet<usize>) -> Error {
    let name = |&unit: &usize| runtime.unit_name(unit).to_string();
    Error::HookedSpansBoundaries { boundaries: units.iter().map(name).collect() }
}

/// Broadcasts the initial values of the packs that no rank owns, from whoever provides them; each
/// rank keeps what it holds.
fn hand_out(runtime: &Runtime, mut provided: Buffers, held: &mut Buffers) -> Result<()> {
    let world = runtime.world();
    for (unit, pack, layout) in runtime.unowned_packs() {
        let provider = runtime.provider(Address { unit, pack, slot: 0 });
        let (op, name) = (Op::Broadcast { root: provider.0 }, runtime.unit_name(unit).clone());
        let call = Call::new(op, name, Element::F32, layout.weight_elems());
        let input = provided.take(unit, pack).map(Buffer::freeze);
        if let Some(whole) = world.group().start(call, input)?.wait(world.deadline())? {
            held.keep(runtime, (unit, pack), whole.as_f32());
        }
    }
    Ok(())
}
