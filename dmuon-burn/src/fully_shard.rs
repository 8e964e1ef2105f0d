//! Sharding what is not dedicated: every rank keeps a part, AdamW updates it there.

use crate::binding::runtime_of;
use crate::blueprint::Request;
use crate::choice::Rest;
use crate::dedicated::Dedicated;
use crate::error::{Error, Result};
use crate::inspect::inspect;
use crate::route::Route;
use crate::rules::Rule;
use crate::setup::{ReplicatePublish, Setup};
use burn::module::Module;
use dmuon_core::{ExchangeOptions, FloatType, Mesh};
use dmuon_partition::{BoundaryRule, CostModel, Mode};

/// Shards the parameters of a model that no rank owns: embeddings, heads, norms, biases; all of a
/// model that is not dedicated.
///
/// Every boundary has one flat buffer, padded to equal parts, of which each rank of a replica keeps
/// one. A boundary's whole parameters are all-gathered when forward enters it, together with its
/// owners' broadcasts, and again in backward under
/// [`reshard_after_forward`](Self::reshard_after_forward); gradients are reduce-scattered in
/// backward and averaged between replicas. Outside boundaries, each `Hooked` block or module that
/// holds parameters is a boundary of its own.
///
/// Dedicate first, then shard:
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
/// use burn::tensor::Device;
/// use dmuon_burn::{Dedicate, FullyShard, Hooked, Route};
/// use dmuon_core::{Mesh, launch};
///
/// #[derive(Module, Debug)]
/// struct Net {
///     embedding: Embedding,
///     layers: Vec<Hooked<Linear>>,
/// }
///
/// let device = Device::flex().autodiff();
/// let net = Net {
///     embedding: EmbeddingConfig::new(12, 8).init(&device),
///     layers: vec![Hooked::new(LinearConfig::new(8, 8).init(&device))],
/// };
/// dmuon_burn::initialize(&net);
///
/// launch(2, |world| -> Result<(), dmuon_burn::Error> {
///     let mesh = Mesh::new(&world)?;
///     let net = net.clone().fork(&Device::flex().autodiff());
///     let (net, _) = Dedicate::new(&mesh).apply(net)?;
///     let (net, handle) = FullyShard::new(&mesh).apply(net)?;
///     assert_eq!(handle.routes().count(Route::AdamWSharded), (2, 104));
///     assert_eq!(net.embedding.weight.dims(), [1, 48]); // this rank's half of [12, 8]
///     Ok(())
/// })?;
/// # Ok::<(), dmuon_burn::Error>(())
/// ```
///
/// A sharded parameter stores a rank's piece, flat along the last dimension, and `val()` gives the
/// whole weight. A module whose forward asks the stored parameter for its shape, as Burn's `RmsNorm`
/// and `BatchNorm` do, would panic: theirs stay replicated, and `route(pattern,
/// Route::Replicated)` does the same for others.
#[derive(Clone, Debug)]
pub struct FullyShard {
    mesh: Mesh,
    rules: Vec<Rule>,
    boundaries: Option<BoundaryRule>,
    mode: Option<Mode>,
    prefetch: Option<usize>,
    weights: Option<FloatType>,
    gradients: Option<FloatType>,
}

impl FullyShard {
    /// Shards everything that is not dedicated. Boundaries, mode and prefetch depth are the
    /// dedicated model's; without one `layers.N`, `blocks.N`, `h.N`, `layer.N`, gathering again in
    /// backward, one boundary ahead.
    pub fn new(mesh: &Mesh) -> Self {
        Self {
            mesh: mesh.clone(),
            rules: Vec::new(),
            boundaries: None,
            mode: None,
            prefetch: None,
            weights: None,
            gradients: None,
        }
    }

    /// Gives trainable parameters that are not dedicated and whose full name matches `pattern`
    /// another route: [`Route::Replicated`], or [`Route::AdamWSharded`] against an earlier rule.
    /// Later calls win.
    #[must_use]
    pub fn route(self, pattern: impl Into<String>, route: Route) -> Self {
        self.rule(Rule::new(route).named(pattern))
    }

    /// Gives trainable parameters that are not dedicated and that the rule matches another route.
    /// Later rules win; one that matches nothing is warned of and listed in the routes.
    #[must_use]
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Sets the rule that finds boundaries, for a model that is not dedicated.
    #[must_use]
    pub fn boundaries(mut self, rule: BoundaryRule) -> Self {
        self.boundaries = Some(rule);
        self
    }

    /// Sets whether whole parameters are dropped after a boundary's forward and gathered again in
    /// backward ([`Mode::Z3`]), or stay until its backward is done ([`Mode::Z2`]).
    #[must_use]
    pub fn reshard_after_forward(mut self, reshard: bool) -> Self {
        self.mode = Some(if reshard { Mode::Z3 } else { Mode::Z2 });
        self
    }

    /// Sets how many boundaries ahead parameters are gathered.
    #[must_use]
    pub fn prefetch(mut self, boundaries: usize) -> Self {
        self.prefetch = Some(boundaries);
        self
    }

    /// Sets what weights travel and are used in; as
    /// [`Dedicate::compute_type`](crate::Dedicate::compute_type).
    #[must_use]
    pub fn compute_type(mut self, float: FloatType) -> Self {
        self.weights = Some(float);
        self
    }

    /// Sets what gradients travel in; as [`Dedicate::reduce_type`](crate::Dedicate::reduce_type).
    #[must_use]
    pub fn reduce_type(mut self, float: FloatType) -> Self {
        self.gradients = Some(float);
        self
    }

    /// Plans, checks that all ranks agree, and shards the model. A dedicated model keeps its values
    /// and its owners; use the handle returned, not `Dedicate`'s, from here on, and make the
    /// optimizer with it.
    ///
    /// # Collective
    /// Every rank, with the same model and the same request.
    ///
    /// # Errors
    /// The model is sharded already or on several devices, a setting contradicts the dedicated
    /// model's, ranks differ (named before anything else is sent), or a group has failed.
    pub fn apply<M: Module>(self, model: M) -> Result<(M, Dedicated)> {
        let (model, runtime) = match runtime_of(&model) {
            Some(before) => {
                let setup = self.over(before.setup())?;
                setup.apply_again(model, &before)?
            }
            None => {
                let found = inspect(&model)?;
                self.alone().apply(model, found)?
            }
        };
        Ok((model, Dedicated { runtime }))
    }

    /// The set-up of a model that is not dedicated.
    fn alone(self) -> Setup {
        let request = Request {
            mesh: self.mesh.shape(),
            matrices: None,
            rules: Vec::new(),
            shard_rules: self.rules,
            rest: Rest::Sharded,
            boundaries: self.boundaries.unwrap_or_default(),
            layouts: Vec::new(),
            cost: CostModel::default(),
        };
        let mode = self.mode.unwrap_or(Mode::Z3);
        let options = ExchangeOptions {
            prefetch: self.prefetch.unwrap_or(1),
            weights: self.weights.unwrap_or_default(),
            gradients: self.gradients.unwrap_or_default(),
            ..ExchangeOptions::new(mode)
        };
        Setup { mesh: self.mesh, request, options, publish: ReplicatePublish::default() }
    }

    /// The set-up of a dedicated model with the rest sharded.
    fn over(self, before: &Setup) -> Result<Setup> {
        if before.request.rest == Rest::Sharded {
            return Err(Error::ShardedTwice);
        }
        let contradicts = |what| Err(Error::Contradicts { what });
        if self.mesh.shape() != before.mesh.shape() {
            return contradicts("another mesh");
        }
        if self.mode.is_some_and(|mode| mode != before.options.mode) {
            return contradicts("another mode (`reshard_after_forward` is z3, its absence z2)");
        }
        if self.prefetch.is_some_and(|prefetch| prefetch != before.options.prefetch) {
            return contradicts("another prefetch depth");
        }
        if self.weights.is_some_and(|float| float != before.options.weights) {
            return contradicts("another compute type");
        }
        if self.gradients.is_some_and(|float| float != before.options.gradients) {
            return contradicts("another reduce type");
        }
        if self.boundaries.is_some() {
            return contradicts("boundaries of its own");
        }
        let mut setup = before.clone();
        setup.request.rest = Rest::Sharded;
        setup.request.shard_rules = self.rules;
        Ok(setup)
    }
}
