//! Dedicating a model: from a mesh and a request to a model whose matrices have owners.

use crate::binding::binding;
use crate::blueprint::{Blueprint, Request};
use crate::control::{self, Description, agree, barrier};
use crate::error::{Error, Result};
use crate::export;
use crate::hooked::Boundary;
use crate::inspect::inspect;
use crate::parameter::MatrixLayout;
use crate::route::RouteReport;
use crate::runtime::Runtime;
use crate::select::Matrices;
use crate::step::{self, Findings, Terms};
use crate::values::{Buffers, Take, collect, publish, register};
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::Tensor;
use dmuon_core::{Call, Element, ExchangeOptions, Holder, Mesh, Op, Rank};
use dmuon_partition::{BoundaryRule, CostModel, Mode, Plan};
use std::fmt;
use std::sync::Arc;

/// Gives every Muon matrix of a Burn model one owner rank.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
/// use dmuon_burn::{Dedicate, Hooked};
/// use dmuon_core::{Mesh, launch};
/// use dmuon_partition::Mode;
///
/// #[derive(Module, Debug)]
/// struct Net {
///     layers: Vec<Hooked<Linear>>,
/// }
///
/// let device = Device::flex().autodiff();
/// let layer = || Hooked::new(LinearConfig::new(8, 8).init(&device));
/// let net = Net { layers: vec![layer(), layer()] };
/// dmuon_burn::initialize(&net);
///
/// let sums = launch(2, |world| {
///     let mesh = Mesh::new(&world)?;
///     let net = net.clone().fork(&Device::flex().autodiff());
///     let (net, dedicated) = Dedicate::new(&mesh).mode(Mode::Z3).apply(net)?;
///     assert_eq!(dedicated.plan().num_matrices(), 2);
///     let x = Tensor::<2>::ones([1, 8], &Device::flex());
///     let y = net.layers.iter().fold(x, |x, layer| layer.run(x, |linear, x| linear.forward(x)));
///     Ok::<f32, dmuon_burn::Error>(y.sum().into_scalar())
/// })?;
/// assert_eq!(sums[0], sums[1]);
/// # Ok::<(), dmuon_burn::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Dedicate {
    mesh: Mesh,
    request: Request,
    options: ExchangeOptions,
    publish: ReplicatePublish,
}

/// When a step waits for new weights to reach the other replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplicatePublish {
    /// Not at all: each boundary's are awaited when the next forward enters it.
    #[default]
    Async,
    /// At the end of the step.
    Sync,
}

impl Dedicate {
    /// Dedicates hidden matrices, one owner in the whole mesh for each: boundaries `layers.N`, `blocks.N`,
    /// `h.N`, `layer.N`; mode Z2; one boundary prefetched.
    pub fn new(mesh: &Mesh) -> Self {
        Self {
            request: Request {
                mesh: mesh.shape(),
                matrices: Matrices::default(),
                boundaries: BoundaryRule::default(),
                layouts: Vec::new(),
                cost: CostModel::default(),
            },
            mesh: mesh.clone(),
            options: ExchangeOptions { mode: Mode::Z2, prefetch: 1 },
            publish: ReplicatePublish::default(),
        }
    }

    /// Selects the matrices: a name pattern (`"layers.*.weight"`), several, or a predicate.
    #[must_use]
    pub fn matrices(mut self, matrices: impl Into<Matrices>) -> Self {
        self.request.matrices = matrices.into();
        self
    }

    /// Sets the rule that finds boundaries.
    #[must_use]
    pub fn boundaries(mut self, rule: BoundaryRule) -> Self {
        self.request.boundaries = rule;
        self
    }

    /// Says how parameters whose names match `pattern` are to be read as matrices, where
    /// [`MatrixLayout::guess`] is wrong. Later calls win.
    #[must_use]
    pub fn layout(mut self, pattern: impl Into<String>, layout: MatrixLayout) -> Self {
        self.request.layouts.push((pattern.into(), layout));
        self
    }

    /// Sets what owners are balanced by.
    #[must_use]
    pub fn cost(mut self, cost: CostModel) -> Self {
        self.request.cost = cost;
        self
    }

    /// Sets how long packed weights live: Z2 until the boundary's backward is done, Z3 until its
    /// forward is done and again in backward.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.options.mode = mode;
        self
    }

    /// Sets how many boundaries ahead weights are broadcast, 1 by default.
    #[must_use]
    pub fn prefetch(mut self, boundaries: usize) -> Self {
        self.options.prefetch = boundaries;
        self
    }

    /// Sets when a step waits for new weights to reach the other replicas; results are the same.
    #[must_use]
    pub fn publish(mut self, publish: ReplicatePublish) -> Self {
        self.publish = publish;
        self
    }

    /// Plans, checks that all ranks agree, and dedicates the model. Matrices keep their owner's
    /// values, other parameters rank 0's; parameters of other owners are never initialized here.
    ///
    /// # Collective
    /// Every rank, with the same model and the same request.
    ///
    /// # Errors
    /// The request does not fit the model, ranks differ (named before anything else is sent), or a
    /// group has failed.
    pub fn apply<M: Module>(self, model: M) -> Result<(M, Dedicated)> {
        let blueprint = Blueprint::draw(&self.request, inspect(&model)?)?;
        agree(self.mesh.world(), &self.describe(&blueprint))?;
        let Blueprint { plan, units, parameters, routes } = blueprint;
        let runtime =
            Arc::new(Runtime::new(&self.mesh, units, parameters, self.options, self.publish));
        initialize_in_turn(&runtime, &model)?;
        let model = attach(&runtime, model)?;
        Ok((model, Dedicated { runtime, plan: Arc::new(plan), routes: Arc::new(routes) }))
    }

    fn describe(&self, blueprint: &Blueprint) -> Description {
        let parameters = blueprint.parameters.iter().zip(&blueprint.routes.entries);
        let ExchangeOptions { mode, prefetch } = self.options;
        let hooks =
            blueprint.units.iter().map(|unit| format!("{}={:?}", unit.name, unit.placement));
        let routes = parameters.clone().map(|(parameter, entry)| {
            let detail = format!("{:?}/{:?}", parameter.holder, parameter.matrix).replace(' ', "");
            format!("{}={}/{detail}", entry.name, entry.route)
        });
        let routes = routes.collect::<Vec<_>>().join(" ");
        Description {
            parameters: parameters
                .map(|(parameter, _)| format!("\"{}\" {:?}", parameter.name, parameter.shape))
                .collect(),
            dedication: format!(
                "{mode} prefetch={prefetch} {} {routes}",
                hooks.collect::<Vec<_>>().join(" ")
            ),
        }
    }
}

/// Lets ranks initialize what they hold one after the other: threads share Burn's generator.
fn initialize_in_turn<M: Module>(runtime: &Runtime, model: &M) -> Result<()> {
    struct Initialize<'a>(&'a Runtime);
    impl ModuleVisitor for Initialize<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.0.find(param.id).is_some_and(|index| self.0.speaks_for(index)) {
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

/// Takes the values out of the model, shares those that everyone holds, and publishes.
fn attach<M: Module>(runtime: &Arc<Runtime>, model: M) -> Result<M> {
    let mut take = Take { runtime, buffers: Buffers::spare(runtime), not_f32: Vec::new() };
    let attach = || model.apply_reparameterization(&mut take);
    let model = binding(runtime, attach).map_err(|units| Error::HookedSpansBoundaries {
        boundaries: units.iter().map(|&unit| runtime.unit_name(unit).to_string()).collect(),
    })?;
    let Take { mut buffers, not_f32, .. } = take;
    if !not_f32.is_empty() {
        return Err(Error::NotF32 { names: not_f32 });
    }
    share_initial_values(runtime, &mut buffers)?;
    publish(runtime, |unit, pack| Ok(buffers.take(unit, pack)), model)
}

/// Broadcasts rank 0's values of the parameters that everyone holds.
fn share_initial_values(runtime: &Runtime, buffers: &mut Buffers) -> Result<()> {
    let world = runtime.world();
    for (unit, pack) in runtime.held_packs() {
        let layout = &runtime.units()[unit].packs[pack];
        if layout.holder != Holder::Everyone {
            continue;
        }
        let Some(buffer) = buffers.get_mut(unit, pack) else { continue };
        let input = world.pool().take_copy(buffer.as_slice()).freeze();
        let call = Call::new(
            Op::Broadcast { root: 0 },
            runtime.unit_name(unit).clone(),
            Element::F32,
            layout.layout.weight_elems(),
        );
        let input = (world.rank() == Rank(0)).then_some(input);
        if let Some(values) = world.group().start(call, input)?.wait(world.deadline())? {
            buffer.as_mut_slice().copy_from_slice(&values);
        }
    }
    Ok(())
}

/// A dedicated model's plan and runtime on this rank. Cheap to clone.
#[derive(Clone)]
pub struct Dedicated {
    pub(crate) runtime: Arc<Runtime>,
    plan: Arc<Plan>,
    routes: Arc<RouteReport>,
}

impl Dedicated {
    /// Who owns which matrix.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Every parameter with its route, owner, boundary and reason.
    pub fn routes(&self) -> &RouteReport {
        &self.routes
    }

    /// The mesh.
    pub fn mesh(&self) -> &Mesh {
        self.runtime.mesh()
    }

    /// Z2 or Z3.
    pub fn mode(&self) -> Mode {
        self.runtime.mode()
    }

    /// The boundary of this name, to run a block in where a [`Hooked`](crate::Hooked) is
    /// inconvenient.
    ///
    /// # Errors
    /// There is no such boundary.
    pub fn boundary(&self, name: &str) -> Result<Boundary> {
        let units = self.runtime.units();
        let unit = units.iter().position(|unit| &*unit.name == name);
        match unit {
            Some(unit) => Ok(Boundary::new(self.runtime.clone(), unit)),
            None => Err(Error::UnknownBoundary {
                boundary: name.to_owned(),
                available: units.iter().map(|unit| unit.name.to_string()).collect(),
            }),
        }
    }

    /// Steps with any of Burn's optimizers, on averaged gradients, and publishes the result.
    /// Owners step what they own, every rank steps the rest.
    ///
    /// # Collective
    /// Every rank.
    ///
    /// # Errors
    /// A group has failed, or `model` is not the one that was dedicated.
    pub fn step_with<M: Module>(
        &self,
        optimizer: &mut ModuleOptimizer,
        learning_rate: f64,
        model: M,
        mut gradients: GradientsParams,
    ) -> Result<M> {
        self.runtime.check_accumulated()?;
        // This rank's loss may not have touched the model at all; others still need it.
        let averages = self.runtime.catch_up()?;
        register(&self.runtime, &model, averages, &mut gradients);
        let model = optimizer.step(learning_rate, model, gradients);
        self.publish(model)
    }

    /// Publishes the values that the model now has, after something other than dmuon changed them.
    ///
    /// # Collective
    /// Every rank, between a step and the next forward.
    ///
    /// # Errors
    /// As [`step_with`](Self::step_with).
    pub fn publish<M: Module>(&self, model: M) -> Result<M> {
        let mut buffers = collect(&self.runtime, &model)?;
        let values = buffers.digest_replicated(&self.runtime);
        let terms = Terms { values, ..Terms::default() };
        step::agree(&self.runtime, &Findings { terms, ..Findings::default() })?;
        publish(&self.runtime, |unit, pack| Ok(buffers.take(unit, pack)), model)
    }

    /// The whole model with plain Burn parameters, for saving, exporting or generating: on rank
    /// `root`, `None` elsewhere. It is detached, on the device without autodiff, and shares nothing
    /// with the dedicated one.
    ///
    /// # Collective
    /// Every rank.
    ///
    /// # Errors
    /// A group has failed, or the model holds stale weights.
    pub fn full_model<M: Module>(&self, model: &M, root: Rank) -> Result<Option<M>> {
        let world_size = self.mesh().world().size();
        if root.0 >= world_size {
            return Err(Error::NoSuchRank { rank: root, world_size });
        }
        export::full_model(&self.runtime, model, root)
    }

    /// The sums of every rank's values, in one call and in a fixed order; for losses and counts.
    ///
    /// # Collective
    /// Every rank, with as many values.
    ///
    /// # Errors
    /// A group has failed.
    pub fn sum(&self, values: &[f64]) -> Result<Vec<f64>> {
        control::sum(self.runtime.world(), values)
    }

    /// Runs micro-batches whose gradients are summed within each replica only. `backwards` sees no
    /// gradients; they are added to those of the next backward outside, which alone reduces between
    /// replicas. The result is the sum over all of them of the mean over ranks, as when the
    /// gradients of each are added up; each rank keeps one more copy of its column's gradients.
    ///
    /// ```
    /// # use burn::{module::Module, optim::GradientsParams, tensor::{Device, Tensor}};
    /// # use burn::nn::{Linear, LinearConfig};
    /// # use dmuon_burn::{Dedicate, Error, Hooked, MuonConfig};
    /// # use dmuon_core::{Mesh, launch};
    /// # #[derive(Module, Debug)]
    /// # struct Net { layers: Vec<Hooked<Linear>> }
    /// # let device = Device::flex().autodiff();
    /// # let net = Net { layers: vec![Hooked::new(LinearConfig::new(4, 4).init(&device))] };
    /// # dmuon_burn::initialize(&net);
    /// # launch(2, |world| -> Result<(), Error> {
    /// # let device = Device::flex().autodiff();
    /// # let (net, dedicated) = Dedicate::new(&Mesh::new(&world)?).apply(net.clone().fork(&device))?;
    /// # let mut muon = MuonConfig::new().init(&dedicated)?;
    /// # let loss = |net: &Net| net.layers[0].run(Tensor::<2>::ones([2, 4], &device), |l, x| l.forward(x)).mean();
    /// dedicated.accumulate(|| {
    ///     loss(&net).backward();
    ///     loss(&net).backward();
    /// });
    /// let gradients = GradientsParams::from_grads(loss(&net).backward(), &net);
    /// let net = muon.step(0.01, net, gradients)?; // on three micro-batches
    /// # Ok(()) }).unwrap();
    /// ```
    ///
    /// # Collective
    /// Every rank, around as many backwards.
    pub fn accumulate<T>(&self, backwards: impl FnOnce() -> T) -> T {
        struct Stop<'a>(&'a Runtime);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.defer_replicate(false);
            }
        }
        self.runtime.defer_replicate(true);
        let _stop = Stop(&self.runtime);
        backwards()
    }

    /// Waits until the weights published last have reached this rank. Forwards, `full_model` and
    /// the next step do so by themselves.
    ///
    /// # Errors
    /// A group has failed, or an owner did not send before the deadline.
    pub fn drain(&self) -> Result<()> {
        self.runtime.drain()
    }

    /// Drops this rank's copies of other owners' weights, e.g. after an evaluation. Forget any
    /// forward whose backward has not run.
    ///
    /// # Errors
    /// A group has failed.
    pub fn release(&self) -> Result<()> {
        self.runtime.release()
    }
}

impl fmt::Debug for Dedicated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dedicated").field("runtime", &self.runtime).finish_non_exhaustive()
    }
}
