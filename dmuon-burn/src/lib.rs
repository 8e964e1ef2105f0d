//! Dedicated ownership for Burn models: every Muon matrix has one owner rank, and the model's own
//! code does not change.
//!
//! The way through the rooms: [`Dedicate`] inspects a model and plans; [`Hooked`] and [`Boundary`]
//! mark where weights come and go; hooks on Burn's tape pack and reduce gradients; [`Muon`] updates
//! what this rank owns and publishes it.
#![deny(unsafe_code)]

mod attached;
mod batch;
mod binding;
mod blueprint;
mod choice;
mod clip;
mod config;
mod context;
mod control;
mod dedicate;
mod dedicated;
mod error;
mod export;
mod frame;
mod fully_shard;
mod groups;
mod held;
mod holdings;
mod hook;
mod hooked;
mod inspect;
mod io;
mod loss_scale;
mod muon;
mod ops;
mod orthogonalize;
mod parameter;
mod quiet;
mod rates;
mod report;
mod route;
mod rules;
mod runtime;
mod select;
mod setup;
mod step;
mod transport;
mod update;
mod values;

pub use config::{MuonConfig, NonFinite};
pub use context::initialize;
pub use dedicate::Dedicate;
pub use dedicated::Dedicated;
pub use dmuon_core::update::{AdamW, UpdateScale};
pub use error::{Error, Result};
pub use fully_shard::FullyShard;
pub use groups::OptimizerGroup;
pub use hooked::{Boundary, Hooked};
pub use inspect::ParameterInfo;
pub use io::{BoundaryIo, TensorMap};
pub use loss_scale::LossScaler;
pub use muon::Muon;
pub use orthogonalize::Arithmetic;
pub use parameter::{MatrixLayout, MatrixView};
pub use rates::{Rates, StepRates};
pub use report::{MatrixUpdate, Method, StepReport};
pub use route::{Route, RouteEntry, RouteReport};
pub use rules::Rule;
pub use select::Matrices;
pub use setup::ReplicatePublish;
