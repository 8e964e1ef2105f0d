//! Distributed Muon with owned matrices, for models trained with Burn.
//!
//! Muon updates a weight by the orthogonal factor of its momentum and needs the whole matrix for
//! it. dmuon gives every such matrix one *owner rank*: the owner keeps weight and momentum and runs
//! Newton–Schulz; the others borrow the weight while a boundary of the model runs.
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::GradientsParams;
//! use burn::tensor::{Device, Tensor};
//! use dmuon::prelude::*;
//!
//! #[derive(Module, Debug)]
//! struct Net {
//!     layers: Vec<Hooked<Linear>>,
//! }
//!
//! impl Net {
//!     fn forward(&self, x: Tensor<2>) -> Tensor<2> {
//!         self.layers.iter().fold(x, |x, layer| layer.run(x, |linear, x| linear.forward(x)))
//!     }
//! }
//!
//! fn train(world: World, net: Net) -> dmuon::Result<f32> {
//!     // Z3 needs the checkpointing to free memory.
//!     let device = Device::flex().autodiff().gradient_checkpointing();
//!     let mesh = Mesh::new(&world)?;
//!     let (mut net, dedicated) =
//!         Dedicate::new(&mesh).mode(Mode::Z3).apply(net.fork(&device))?;
//!     let mut muon = MuonConfig::new().init(&dedicated)?;
//!     let mut last = f32::NAN;
//!     for _ in 0..3 {
//!         // Each rank has its own batch.
//!         let x = Tensor::<2>::ones([4, 8], &device).mul_scalar(1.0 + world.rank().0 as f32);
//!         let loss = net.forward(x).square().mean();
//!         last = loss.clone().into_scalar();
//!         let gradients = GradientsParams::from_grads(loss.backward(), &net);
//!         net = muon.step(0.02, net, gradients)?;
//!     }
//!     Ok(last)
//! }
//!
//! let device = Device::flex().autodiff().gradient_checkpointing();
//! device.seed(1);
//! let layer = || Hooked::new(LinearConfig::new(8, 8).init(&device));
//! let net = Net { layers: vec![layer(), layer()] };
//! dmuon::initialize(&net);
//! let losses = dmuon::launch(2, |world| train(world, net.clone()))?;
//! assert!(losses.iter().all(|loss| loss.is_finite()));
//! # Ok::<(), dmuon::Error>(())
//! ```
//!
//! # Features
//!
//! They only add. `mpi`, `cuda`, `hccl`: ranks as processes, over MPI, NCCL or HCCL. `wgpu`, `cuda`:
//! models on devices of Burn's Cube backend, whose weights and gradients travel through host memory
//! unless the engine takes that of the device, as NCCL does. `fusion`: Burn fuses operations there.
#![forbid(unsafe_code)]

/// The README's program, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The programs of the page on training, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../docs/training.md")]
struct Training;

/// A glob import hides no name that Burn's derives lean on.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::Linear;
/// use dmuon::*;
///
/// #[derive(Module, Debug)]
/// struct Net {
///     layers: Vec<Hooked<Linear>>,
/// }
/// ```
#[cfg(doctest)]
struct Glob;

mod launch;

pub use dmuon_burn::{
    AdamW, Arithmetic, Boundary, BoundaryIo, Dedicate, Dedicated, Error, FullyShard, Hooked,
    LossScaler, Matrices, MatrixLayout, MatrixUpdate, MatrixView, Method, Muon, MuonConfig,
    NonFinite, OptimizerGroup, ParameterInfo, Rates, ReplicatePublish, Result, Route, RouteEntry,
    RouteReport, Rule, StepRates, StepReport, TensorMap, UpdateScale, initialize,
};
pub use dmuon_core::newton_schulz;
pub use dmuon_core::{
    EngineOptions, EventKind, FloatType, Holding, Mesh, MeshShape, OpKind, Rank, World, catch,
};
pub use dmuon_partition as partition;
pub use dmuon_partition::{BoundaryRule, CostModel, Mode, Plan, Strictness};
pub use launch::{is_first_process, launch, launch_with, local_rank};

/// Everything below the main road: groups, buffers, the exchange and its schedule.
pub use dmuon_core as runtime;

/// Reading how a process was launched, and engines between processes.
pub use dmuon_hccl as hccl;

/// What a training program needs.
pub mod prelude {
    pub use crate::{
        Boundary, BoundaryRule, Dedicate, Dedicated, FloatType, FullyShard, Hooked, Matrices, Mesh,
        Mode, Muon, MuonConfig, NonFinite, OptimizerGroup, Rank, Rates, ReplicatePublish, Route,
        Rule, StepReport, Strictness, UpdateScale, World,
    };
}
