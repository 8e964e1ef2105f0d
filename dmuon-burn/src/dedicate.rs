//! Dedicating a model: from a mesh and a request to a model whose matrices have owners.

use crate::blueprint::Request;
use crate::choice::Rest;
use crate::dedicated::Dedicated;
use crate::error::Result;
use crate::inspect::inspect;
use crate::parameter::MatrixLayout;
use crate::route::Route;
use crate::rules::Rule;
use crate::select::Matrices;
use crate::setup::{ReplicatePublish, Setup};
use burn::module::Module;
use dmuon_core::{ExchangeOptions, FloatType, Mesh};
use dmuon_partition::{BoundaryRule, CostModel, Mode};

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
    setup: Setup,
}

impl Dedicate {
    /// Dedicates hidden matrices, one owner in the whole mesh for each: boundaries `layers.N`, `blocks.N`,
    /// `h.N`, `layer.N`; mode Z2; one boundary prefetched.
    pub fn new(mesh: &Mesh) -> Self {
        let request = Request {
            mesh: mesh.shape(),
            matrices: Some(Matrices::default()),
            rules: Vec::new(),
            shard_rules: Vec::new(),
            rest: Rest::Replicated,
            boundaries: BoundaryRule::default(),
            layouts: Vec::new(),
            cost: CostModel::default(),
        };
        Self {
            setup: Setup {
                request,
                mesh: mesh.clone(),
                options: ExchangeOptions { prefetch: 1, ..ExchangeOptions::new(Mode::Z2) },
                publish: ReplicatePublish::default(),
            },
        }
    }

    /// Selects the matrices: a name pattern (`"layers.*.weight"`), several, or a predicate.
    #[must_use]
    pub fn matrices(mut self, matrices: impl Into<Matrices>) -> Self {
        self.setup.request.matrices = Some(matrices.into());
        self
    }

    /// Sets the rule that finds boundaries.
    #[must_use]
    pub fn boundaries(mut self, rule: BoundaryRule) -> Self {
        self.setup.request.boundaries = rule;
        self
    }

    /// Says how parameters whose names match `pattern` are to be read as matrices, where
    /// [`MatrixLayout::guess`] is wrong. Later calls win.
    #[must_use]
    pub fn layout(mut self, pattern: impl Into<String>, layout: MatrixLayout) -> Self {
        self.setup.request.layouts.push((pattern.into(), layout));
        self
    }

    /// Sets what owners are balanced by.
    #[must_use]
    pub fn cost(mut self, cost: CostModel) -> Self {
        self.setup.request.cost = cost;
        self
    }

    /// Sets how long packed weights live: Z2 until the boundary's backward is done, Z3 until its
    /// forward is done and again in backward.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.setup.options.mode = mode;
        self
    }

    /// Sets how many boundaries ahead weights are broadcast, 1 by default.
    #[must_use]
    pub fn prefetch(mut self, boundaries: usize) -> Self {
        self.setup.options.prefetch = boundaries;
        self
    }

    /// Sets what weights travel and are used in: `val()` of every parameter of the model then gives
    /// that type, and activations must have it, too; casting them, and the loss, is the model's own
    /// affair. Stored values, momentum, updates and sums stay `f32`.
    #[must_use]
    pub fn compute_type(mut self, float: FloatType) -> Self {
        self.setup.options.weights = float;
        self
    }

    /// Sets what gradients travel in, `f32` by default; they are summed in `f32` all the same, and
    /// each reduce rounds its result once more.
    #[must_use]
    pub fn reduce_type(mut self, float: FloatType) -> Self {
        self.setup.options.gradients = float;
        self
    }

    /// Sets when a step waits for new weights to reach the other replicas; results are the same.
    #[must_use]
    pub fn publish(mut self, publish: ReplicatePublish) -> Self {
        self.setup.publish = publish;
        self
    }

    /// Gives trainable parameters whose full name matches `pattern` another route:
    /// [`Route::Muon`], [`Route::AdamWOwned`] or [`Route::Replicated`]. Later calls win.
    #[must_use]
    pub fn route(self, pattern: impl Into<String>, route: Route) -> Self {
        self.rule(Rule::new(route).named(pattern))
    }

    /// Gives trainable parameters that the rule matches another route. Later rules win; one that
    /// matches nothing is warned of and listed in the routes.
    #[must_use]
    pub fn rule(mut self, rule: Rule) -> Self {
        self.setup.request.rules.push(rule);
        self
    }

    /// Plans, checks that all ranks agree, and dedicates the model. Matrices keep their owner's
    /// values, other parameters rank 0's; parameters of other owners are never initialized here.
    /// What is not dedicated stays replicated; see [`FullyShard`](crate::FullyShard).
    ///
    /// # Collective
    /// Every rank, with the same model and the same request.
    ///
    /// # Errors
    /// The request does not fit the model, the model is on a device that dmuon does not know or on
    /// several, ranks differ (named before anything else is sent), or a group has failed.
    pub fn apply<M: Module>(self, model: M) -> Result<(M, Dedicated)> {
        let found = inspect(&model)?;
        let (model, runtime) = self.setup.apply(model, found)?;
        Ok((model, Dedicated { runtime }))
    }
}
