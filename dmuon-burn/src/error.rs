//! What can go wrong on the Burn side, each error naming the parameter and the cure.

use dmuon_core::Rank;

/// A result whose error is an [`enum@Error`] unless said otherwise.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a model can't be dedicated, or can't be used the way it was.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A collective, a group or a rank failed.
    #[error(transparent)]
    Core(#[from] dmuon_core::Error),
    /// The plan can't be made.
    #[error(transparent)]
    Partition(#[from] dmuon_partition::PartitionError),
    /// The optimizer's arithmetic is misconfigured.
    #[error(transparent)]
    Numerics(#[from] dmuon_core::newton_schulz::NumericsError),
    /// A selector of matrices selects no parameter.
    #[error(
        "{selector} matches no parameter, so nothing would be dedicated; the model has: {}",
        Names(available)
    )]
    NothingSelected {
        /// The selector as given.
        selector: String,
        /// Names of the parameters there are.
        available: Vec<String>,
    },
    /// A selector of matrices selects parameters that are no matrices.
    #[error(
        "{selector} matches parameters that are no matrices: {}; Muon needs rank 2 or more: \
         narrow the selector (everything it leaves out is updated with AdamW)",
        Names(names)
    )]
    NotAMatrix {
        /// The selector as given.
        selector: String,
        /// Name and shape of each.
        names: Vec<String>,
    },
    /// A parameter is on a device that dmuon has no operations for.
    #[error(
        "\"{parameter}\" is on {device}, which this build of dmuon has no operations for: move the \
         model to another device, or enable dmuon's feature `wgpu` or `cuda`"
    )]
    UnsupportedDevice {
        /// Name of the parameter.
        parameter: String,
        /// What Burn calls the device.
        device: String,
    },
    /// A rank's parameters are on more than one device.
    #[error(
        "\"{first}\" is on {device}, but \"{second}\" is on {other}: a rank's model must be on one \
         device; fork it to one, or give each device a rank"
    )]
    SeveralDevices {
        /// Name of the first parameter.
        first: String,
        /// What Burn calls its device.
        device: String,
        /// Name of the first parameter that is elsewhere.
        second: String,
        /// What Burn calls that device.
        other: String,
    },
    /// A device can't compute in the type asked for.
    #[error(
        "\"{parameter}\" is on {device}, which can't compute in {float}: ask for another compute \
         type or precision"
    )]
    UnsupportedFloat {
        /// Name of the parameter.
        parameter: String,
        /// What Burn calls the device.
        device: String,
        /// The type.
        float: dmuon_core::FloatType,
    },
    /// A tensor could not be copied from its device.
    #[error("a tensor could not be read from its device: {cause}")]
    Readback {
        /// What Burn says.
        cause: String,
    },
    /// Memory of a packed tensor could not be lent to an engine.
    #[error(
        "a pack of \"{boundary}\" could not be handed to the engine where it is: {cause}; did \
         something fail on the device before?"
    )]
    Lend {
        /// The boundary.
        boundary: String,
        /// What Burn says.
        cause: String,
    },
    /// Parameters are not single precision.
    #[error(
        "dmuon trains f32 parameters; these are not: {}; cast the model before dedicating it",
        Names(names)
    )]
    NotF32 {
        /// Name and type of each.
        names: Vec<String>,
    },
    /// A parameter carries a reparameterization such as LoRA already.
    #[error(
        "\"{parameter}\" already has the reparameterization \"{kind}\" and Burn keeps one per \
         parameter: merge it first (`model.materialize()`), or leave that model undedicated"
    )]
    Reparameterized {
        /// Name of the parameter.
        parameter: String,
        /// What Burn calls the reparameterization.
        kind: String,
    },
    /// The model is distributed already.
    #[error(
        "\"{parameter}\" is dedicated or sharded already: dedicate a plain model, once, and then \
         shard what is left (`Dedicate`, then `FullyShard`)"
    )]
    AlreadyDistributed {
        /// Name of the first such parameter.
        parameter: String,
    },
    /// BatchNorm can't compute in half precision.
    #[error(
        "\"{parameter}\" belongs to a BatchNorm, whose running statistics Burn keeps in f32: it \
         can't compute with weights in {float}; use another norm, or f32"
    )]
    HalfBatchNorm {
        /// Name of the parameter.
        parameter: String,
        /// What weights were to be used in.
        float: dmuon_core::FloatType,
    },
    /// The model is sharded already.
    #[error("what is not dedicated in this model is sharded already: apply `FullyShard` once")]
    ShardedTwice,
    /// `FullyShard` was asked for something else than the dedicated model has.
    #[error(
        "`FullyShard` asks for {what} than the dedicated model has: both move together, so set it \
         on `Dedicate` alone"
    )]
    Contradicts {
        /// What differs.
        what: &'static str,
    },
    /// A rule gives a route that its builder can't.
    #[error("the rule \"{rule}\" can't be followed here: {cure}")]
    RuleMisplaced {
        /// The rule.
        rule: String,
        /// What to do instead.
        cure: &'static str,
    },
    /// A pattern of a group of parameters matches nothing that is trained.
    #[error(
        "the pattern \"{pattern}\" of {of} matches no trained parameter; there are: {}",
        Names(available)
    )]
    PatternMatchesNothing {
        /// Whose pattern it is.
        of: String,
        /// The pattern.
        pattern: String,
        /// Names of the parameters there are.
        available: Vec<String>,
    },
    /// A parameter is in two groups.
    #[error(
        "\"{parameter}\" is in the groups \"{first}\" and \"{second}\": narrow the patterns of one"
    )]
    InTwoGroups {
        /// Name of the parameter.
        parameter: String,
        /// One group.
        first: String,
        /// The other.
        second: String,
    },
    /// The optimizer has no such group.
    #[error("there is no group \"{group}\"; there are: {}", Names(available))]
    UnknownGroup {
        /// The name.
        group: String,
        /// Names of the groups there are.
        available: Vec<String>,
    },
    /// No route has that name.
    #[error(
        "there is no route \"{route}\"; there are muon, adamw_owned, adamw_sharded, replicated and \
         frozen"
    )]
    UnknownRoute {
        /// The name.
        route: String,
    },
    /// The model belongs to another handle than the optimizer.
    #[error(
        "the optimizer or handle belongs to this model as it was before it was sharded, or to \
         another model: use the handle that came with the model, and make the optimizer with it"
    )]
    OtherHandle,
    /// A parameter has another number of elements than this rank holds of it.
    #[error(
        "\"{parameter}\" holds {found} elements where this rank holds {expected} of it: edit \
         weights before the model is distributed, or keep a piece's shape"
    )]
    ValueShape {
        /// Name of the parameter.
        parameter: String,
        /// Elements that this rank holds.
        expected: usize,
        /// Elements that the model has.
        found: usize,
    },
    /// Two fields hold clones of one parameter, which Burn's optimizers would tear apart.
    #[error(
        "\"{first}\" and \"{second}\" are clones of one parameter; Burn would update only the \
         first: keep one field and use it twice in forward"
    )]
    SharedParameter {
        /// Name of the first field.
        first: String,
        /// Name of the second field.
        second: String,
    },
    /// Two parameters have one name, so ranks could not agree on which is which.
    #[error("two parameters are named \"{parameter}\"; rename a field")]
    DuplicateName {
        /// The name.
        parameter: String,
    },
    /// A [`Hooked`](crate::Hooked) module spans several boundaries.
    #[error(
        "a `Hooked` module holds parameters of several boundaries ({}): wrap each block by \
         itself, or name the boundary with `boundaries(..)`",
        Names(boundaries)
    )]
    HookedSpansBoundaries {
        /// Names of the boundaries.
        boundaries: Vec<String>,
    },
    /// No boundary has that name.
    #[error("there is no boundary \"{boundary}\"; there are: {}", Names(available))]
    UnknownBoundary {
        /// The name asked for.
        boundary: String,
        /// The names there are.
        available: Vec<String>,
    },
    /// Two ranks built different models.
    #[error(
        "rank {rank} has {theirs} where rank 0 has {ours} (parameter {index} in visit order): \
         every rank must build the same model"
    )]
    ModelsDiffer {
        /// The first rank that differs from rank 0.
        rank: Rank,
        /// Position of the first difference.
        index: usize,
        /// What rank 0 has there.
        ours: String,
        /// What `rank` has there.
        theirs: String,
    },
    /// Two ranks asked for different modes, prefetch depths, matrices or hooks.
    #[error(
        "rank {rank} dedicates the same parameters otherwise than rank 0: {theirs}, not {ours}; \
         every rank must call `Dedicate` alike"
    )]
    PlansDiffer {
        /// The first rank that differs from rank 0.
        rank: Rank,
        /// What rank 0 asked for.
        ours: String,
        /// What `rank` asked for.
        theirs: String,
    },
    /// The owner's module holds another weight than the one published.
    #[error(
        "rank {rank}: \"{parameter}\" is not the weight that was published last; it was stepped, \
         loaded, edited or cloned behind dmuon's back, and ranks would compute with different \
         values. Step with dmuon's optimizer or `Dedicated::step_with`, use the model that the last \
         step returned, load weights before dedicating, and publish edits with \
         `Dedicated::publish`"
    )]
    StaleWeight {
        /// The rank that holds it.
        rank: Rank,
        /// Name of the parameter.
        parameter: String,
    },
    /// Backward runs on a forward made before the last step, and Z3 no longer has those weights.
    #[error(
        "rank {rank}: backward needs \"{parameter}\" as it was before the last step, which z3 no \
         longer holds: run backward before the step, or use z2"
    )]
    OldTape {
        /// The rank.
        rank: Rank,
        /// Name of the parameter.
        parameter: String,
    },
    /// Saving would write placeholders.
    #[error(
        "rank {rank}: refusing to save \"{parameter}\": this rank may hold a placeholder of it. \
         Save what `Dedicated::full_model` returns instead"
    )]
    SaveRefused {
        /// The rank.
        rank: Rank,
        /// Name of the parameter.
        parameter: String,
    },
    /// Loading would bypass the owners.
    #[error(
        "rank {rank}: refusing to load \"{parameter}\" into a dedicated model: its owner would \
         not publish it. Load the record first, then dedicate the model"
    )]
    LoadRefused {
        /// The rank.
        rank: Rank,
        /// Name of the parameter.
        parameter: String,
    },
    /// A parameter that was frozen when the model was dedicated got a gradient.
    #[error(
        "\"{parameter}\" was frozen when the model was dedicated and is trained now: unfreeze \
         before `Dedicate::apply`"
    )]
    Unfrozen {
        /// Name of the parameter.
        parameter: String,
    },
    /// The model passed in is not the one that was dedicated.
    #[error(
        "\"{parameter}\" is missing from the model, or not the parameter that was dedicated: pass \
         the model that `Dedicate::apply` or the last step returned"
    )]
    WrongModel {
        /// Name of the parameter.
        parameter: String,
    },
    /// Ranks step otherwise than each other, so what everyone holds would drift apart.
    #[error(
        "rank {rank} steps with {theirs} where rank {other} has {ours}; no rank has stepped. Rates, \
         settings, which parameters train and have a gradient, and new values of what several ranks \
         hold must be the same on every rank"
    )]
    StepsDiffer {
        /// The first rank that differs from `other`.
        rank: Rank,
        /// The first rank that has a say.
        other: Rank,
        /// What `other` has.
        ours: String,
        /// What `rank` has.
        theirs: String,
    },
    /// A gradient does not have its parameter's shape.
    #[error("the gradient of \"{parameter}\" has {found} elements, the parameter has {expected}")]
    GradientShape {
        /// Name of the parameter.
        parameter: String,
        /// Elements of the parameter.
        expected: usize,
        /// Elements of the gradient.
        found: usize,
    },
    /// A rank that the world does not have.
    #[error("rank {rank} was asked for, but the world has {world_size} ranks")]
    NoSuchRank {
        /// The rank asked for.
        rank: Rank,
        /// How many there are.
        world_size: usize,
    },
    /// There is nothing for Muon to do.
    #[error(
        "no matrix of the dedicated model requires gradients, so Muon would do nothing: dedicate \
         a model that is being trained (not `valid()`, `no_grad()` or `freeze()`)"
    )]
    NothingToTrain,
    /// A step inside `no_sync` or `accumulate`, or after one without a backward outside it.
    #[error(
        "rank {rank}: gradients were summed inside `Dedicated::no_sync` or `accumulate` and did not \
         reach whoever steps with them: close the scope, and run the last micro-batch's forward and \
         backward outside it"
    )]
    Accumulating {
        /// The rank.
        rank: Rank,
    },
    /// A gradient is infinite or not a number.
    #[error(
        "the gradient of \"{parameter}\" is not finite (found where it is averaged, on \
         rank {rank}); no rank has \
         stepped. Lower the learning rate, or choose `NonFinite::Skip`"
    )]
    NonFiniteGradient {
        /// The rank that found it.
        rank: Rank,
        /// Name of the first such parameter.
        parameter: String,
    },
    /// The arithmetic of a parameter's update failed.
    #[error("rank {rank}: updating \"{parameter}\": {source}")]
    Update {
        /// The rank that updates it.
        rank: Rank,
        /// Name of the parameter.
        parameter: String,
        /// What failed.
        source: dmuon_core::newton_schulz::NumericsError,
    },
    /// A matrix that had a gradient was not updated by Muon.
    #[error(
        "\"{parameter}\" is routed to Muon and had a gradient, but Newton-Schulz did not run on \
         it exactly once (ran {calls} times); this is a defect of dmuon"
    )]
    NotUpdated {
        /// Name of the parameter.
        parameter: String,
        /// How often Newton-Schulz ran on it.
        calls: usize,
    },
    /// A configuration value is out of range.
    #[error("{what} is {value}: {expected}")]
    OutOfRange {
        /// Which value.
        what: &'static str,
        /// What was given.
        value: f64,
        /// What is allowed.
        expected: &'static str,
    },
}

impl From<dmuon_core::MeshError> for Error {
    fn from(error: dmuon_core::MeshError) -> Self {
        Self::Core(error.into())
    }
}

impl From<Error> for dmuon_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Core(error) => error,
            error => Self::external(error),
        }
    }
}

/// Leaves code that can't return an error (Burn's `val`, `forward` and backward steps) with one.
/// `dmuon::catch` and `dmuon::launch` turn it back into an `Err`.
pub(crate) fn unwind(error: impl Into<dmuon_core::Error>) -> ! {
    dmuon_core::raise(error.into())
}

/// Writes at most eight names.
struct Names<'a>(&'a [String]);

impl std::fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const SHOWN: usize = 8;
        f.write_str(&self.0[..self.0.len().min(SHOWN)].join(", "))?;
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
