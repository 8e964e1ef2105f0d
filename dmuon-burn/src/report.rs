//! What a step did, so that a Muon that never ran can't go unnoticed.

use crate::control::gather_texts;
use crate::error::Result;
use dmuon_core::World;
use dmuon_core::newton_schulz::{Form, Kernel, Precision};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What one step did on one rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// Steps asked for so far, this one included, skipped ones too.
    pub step: u64,
    /// The parameter whose gradient was not finite, when the step was skipped for it.
    pub skipped: Option<String>,
    /// Matrices Newton–Schulz ran on.
    pub ns_calls: usize,
    /// Parameters updated by Muon.
    pub muon_updated: usize,
    /// Parameters of which this rank updated all, or its piece, by AdamW.
    pub adamw_updated: usize,
    /// Held parameters that no rank produced a gradient for; they were left alone.
    pub missing: Vec<String>,
    /// One entry for each matrix parameter that Muon updated here.
    pub updates: Vec<MatrixUpdate>,
    /// Norm of all averaged gradients together, each counted once; alike on every rank.
    pub gradient_norm: f64,
    /// What gradients were multiplied by where they were clipped most; 1 without clipping.
    pub clip_factor: f64,
    /// Weights received from owners since the last step, payload in bytes.
    pub broadcast_bytes: u64,
    /// Gradients of owned parameters sent to owners since the last step, payload in bytes.
    pub reduce_bytes: u64,
    /// Gradients of replicated parameters averaged since the last step, and of sharded ones between
    /// replicas, payload in bytes.
    pub all_reduce_bytes: u64,
    /// Parts of sharded weights received since the last step, payload in bytes.
    pub all_gather_bytes: u64,
    /// Gradients of sharded parameters sent to whoever holds the part since the last step, payload
    /// in bytes.
    pub reduce_scatter_bytes: u64,
    /// Time spent waiting for weights and gradients since the last step, in seconds.
    pub wait_seconds: f64,
    /// Time this rank spent in the step itself, in seconds.
    pub step_seconds: f64,
}

/// How large an update was against what its scale promises.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatrixUpdate {
    /// Full parameter name.
    pub name: String,
    /// RMS of the update, without the learning rate.
    pub rms: f64,
    /// No update is larger.
    pub upper: f64,
    /// An update of full rank is not smaller.
    pub full_rank_lower: f64,
    /// Whether the update lies below the full-rank bound: a low-rank gradient.
    pub low_rank: bool,
    /// Whether it lies above the upper bound, which is a defect.
    pub too_large: bool,
    /// How Newton–Schulz ran.
    pub method: Method,
}

/// How a matrix was orthogonalized: what was in force, whatever was asked for, so that a fallback
/// can't go unnoticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Method {
    /// What was iterated on; never [`Form::Auto`].
    pub form: Form,
    /// The arithmetic of the products.
    pub precision: Precision,
    /// What computed them on the host; `None` for tensor operations on the matrix's device.
    pub kernel: Option<Kernel>,
}

impl StepReport {
    /// This report from every rank, in rank order.
    ///
    /// # Collective
    /// Every rank, after the same step.
    ///
    /// # Errors
    /// A group has failed.
    pub fn gather(&self, world: &World) -> Result<Vec<StepReport>> {
        let text = serde_json::to_vec(self).unwrap_or_default();
        let texts = gather_texts(world, "step reports", text)?;
        Ok(texts.iter().map(|text| serde_json::from_slice(text).unwrap_or_default()).collect())
    }
}

impl fmt::Display for StepReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parameter) = &self.skipped {
            return write!(
                f,
                "step {} skipped: the gradient of \"{parameter}\" is not finite",
                self.step
            );
        }
        let Self { step, ns_calls, muon_updated, adamw_updated, missing, .. } = self;
        let low_rank = self.updates.iter().filter(|update| update.low_rank).count();
        write!(
            f,
            "step {step}: {ns_calls} Newton-Schulz calls, {muon_updated} parameters by muon \
             ({low_rank} of low rank), {adamw_updated} by adamw, {} without gradient, \
             |g| {:.3e}, waited {:.1} ms",
            missing.len(),
            self.gradient_norm,
            self.wait_seconds * 1e3
        )
    }
}
