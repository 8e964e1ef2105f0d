//! The handle of a distributed model: what a training loop asks of it besides forward and step.

use crate::binding::check_handle;
use crate::config::in_range;
use crate::control;
use crate::error::{Error, Result, unwind};
use crate::export;
use crate::held::survey;
use crate::hooked::Boundary;
use crate::route::RouteReport;
use crate::runtime::{Factor, Runtime};
use crate::step::{self, Findings, Terms};
use crate::values::{collect, publish, register};
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::Module;
use burn::optim::{GradientsParams, ModuleOptimizer};
use dmuon_core::{Holder, Mesh, Rank, Reach};
use dmuon_partition::{Mode, Plan};
use std::fmt;
use std::sync::Arc;

/// This rank's handle of a model that [`Dedicate`](crate::Dedicate) or
/// [`FullyShard`](crate::FullyShard) distributed. Cheap to clone.
///
/// A handle belongs to the model that came with it: after `FullyShard`, use the new one.
#[derive(Clone)]
pub struct Dedicated {
    pub(crate) runtime: Arc<Runtime>,
}

impl Dedicated {
    /// Who owns which matrix.
    pub fn plan(&self) -> &Plan {
        self.runtime.plan()
    }

    /// Every parameter with its route, owner, boundary and reason.
    pub fn routes(&self) -> &RouteReport {
        self.runtime.routes()
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
        self.runtime.check_current()?;
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

    /// Steps with one of Burn's optimizers, on averaged gradients, and publishes the result. Owners
    /// step what they own, every rank its pieces of what is sharded and all of the rest.
    ///
    /// Of a sharded parameter the optimizer sees this rank's piece, as a row. Optimizers that treat
    /// every element by itself (SGD, Adam, AdamW, Lion, ..; clipping by value) do what they do to
    /// the whole. Those that look at a whole tensor (clipping by norm, LAMB, Adafactor, LBFGS, Burn's
    /// Muon) compute something else from pieces: give what they step `Route::Replicated`. Settings
    /// other than the rate must be alike on every rank; dmuon can't see them.
    ///
    /// # Collective
    /// Every rank.
    ///
    /// # Errors
    /// A group has failed, or `model` is not the one that was dedicated.
    pub fn step_with<M: Module>(
        &self,
        optimizer: &mut ModuleOptimizer,
        learning_rate: impl Into<ModuleLearningRate>,
        model: M,
        mut gradients: GradientsParams,
    ) -> Result<M> {
        check_handle(&self.runtime, &model)?;
        self.runtime.check_accumulated()?;
        // This rank's loss may not have touched the model at all; others still need it.
        let averages = self.runtime.catch_up()?;
        register(&self.runtime, &model, averages, &mut gradients);
        let rates: ModuleLearningRate = learning_rate.into();
        let terms = Terms {
            rates: [rates.base(); 2],
            scale: self.runtime.gradient_scale(),
            ..Terms::default()
        };
        let stances = survey(&self.runtime, &model, &gradients);
        step::agree(&self.runtime, &Findings { terms, stances, ..Findings::default() })?;
        let model = optimizer.step(rates, model, gradients);
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
        check_handle(&self.runtime, &model)?;
        let mut buffers = collect(&self.runtime, &model)?;
        let terms = Terms {
            values: buffers.digest(&self.runtime, Holder::Everyone),
            scale: self.runtime.gradient_scale(),
            sharded_values: buffers.digest(&self.runtime, Holder::Shards),
            ..Terms::default()
        };
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
        check_handle(&self.runtime, model)?;
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
        self.runtime.check_current().unwrap_or_else(|error| unwind(error));
        self.runtime.reaching(Reach::Replica, backwards)
    }

    /// Runs micro-batches without any communication of gradients: they are summed on this rank, in
    /// fp32, and go with those of the next backward outside, which alone reduces. The result is the
    /// mean over ranks of each rank's sum, to the bit. `backwards` sees no gradients.
    ///
    /// A rank keeps the sums of *all* parameters meanwhile, where the model is: 4 bytes an element.
    /// In Z2 it also keeps the whole weights from the first forward to the last backward, so that they
    /// are broadcast once. [`accumulate`](Self::accumulate) keeps less and reduces more.
    ///
    /// # Collective
    /// Every rank, around as many backwards.
    pub fn no_sync<T>(&self, backwards: impl FnOnce() -> T) -> T {
        self.runtime.check_current().unwrap_or_else(|error| unwind(error));
        self.runtime.reaching(Reach::Rank, backwards)
    }

    /// Multiplies every averaged gradient by `factor` from the next backward on, as part of the
    /// reduce: 1 divided by the number of micro-batches for a mean over them, or by a loss scale.
    ///
    /// # Collective
    /// Every rank, alike; the next step checks that.
    ///
    /// # Errors
    /// The factor is not above 0 or not finite in single precision.
    pub fn set_gradient_scaling_factor(&self, factor: f64) -> Result<()> {
        let above_zero = |factor: f64| factor > 0.0;
        in_range("the gradient scaling factor", factor, "must be above 0", above_zero)?;
        self.runtime.check_current()?;
        self.runtime.set_gradient_factor(Factor::Own, factor as f32);
        Ok(())
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
