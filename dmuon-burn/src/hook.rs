//! What a tape carries: one run of a boundary, and one fetch of a parameter, with their callbacks.

use crate::error::unwind;
use crate::ops::Place;
use crate::runtime::Runtime;
use crate::transport::Transport;
use burn::backend::TensorMetadata;
use burn::backend::autodiff::NodeId;
use burn::backend::tensor::{Device, FloatTensor};
use dmuon_core::{FloatType, Pass};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// One run of a boundary, or one fetch outside any, on one tape.
///
/// Only the tape holds runs. When an abandoned tape is freed its runs are gone, and with them the
/// gradients that would otherwise be waited for.
#[derive(Debug)]
pub(crate) struct Run {
    unit: usize,
    hooked: bool,
    /// Gradients still to come.
    outstanding: AtomicUsize,
    entered_backward: AtomicBool,
    left_backward: AtomicBool,
    joined: AtomicBool,
    settled: AtomicBool,
}

impl Run {
    pub(crate) fn new(unit: usize, hooked: bool) -> Self {
        Self {
            unit,
            hooked,
            outstanding: AtomicUsize::new(0),
            entered_backward: AtomicBool::new(false),
            left_backward: AtomicBool::new(false),
            joined: AtomicBool::new(false),
            settled: AtomicBool::new(false),
        }
    }

    pub(crate) fn unit(&self) -> usize {
        self.unit
    }

    pub(crate) fn is_hooked(&self) -> bool {
        self.hooked
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.outstanding.load(Relaxed) > 0
    }

    /// Whether this is the run's first event in a backward.
    pub(crate) fn joins(&self) -> bool {
        !self.joined.swap(true, Relaxed)
    }

    /// The run's backward is over.
    pub(crate) fn settle(&self) {
        self.settled.store(true, Relaxed);
    }
}

/// A run and the runtime it reports to.
#[derive(Clone)]
pub(crate) struct Hook {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) run: Arc<Run>,
}

/// An averaged gradient and the leaf it belongs to.
#[derive(Debug)]
pub(crate) struct Averaged {
    pub(crate) leaf: NodeId,
    pub(crate) place: Place,
}

impl Hook {
    /// Backward reaches an output of the boundary.
    pub(crate) fn enter_backward(&self) {
        let _span = tracing::trace_span!("enter_backward").entered();
        if !self.run.entered_backward.swap(true, Relaxed) {
            self.runtime.enter_backward(&self.run).unwrap_or_else(|error| unwind(error));
        }
    }

    /// Backward is through with the boundary.
    pub(crate) fn leave_backward(&self) {
        let _span = tracing::trace_span!("leave_backward").entered();
        if !self.run.left_backward.swap(true, Relaxed) {
            self.runtime.leave_backward(&self.run, true).unwrap_or_else(|error| unwind(error));
        }
    }

    /// The tape ends. The first run to notice settles all runs of the same backward.
    pub(crate) fn finish_backward(&self) -> Vec<Averaged> {
        let _span = tracing::trace_span!("finish_backward").entered();
        if self.run.settled.load(Relaxed) {
            return Vec::new();
        }
        self.runtime.finish_backward(&self.run).unwrap_or_else(|error| unwind(error))
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hook({})", self.runtime.unit_name(self.run.unit))
    }
}

/// One use of one parameter.
#[derive(Clone)]
pub(crate) struct Fetch {
    pub(crate) hook: Hook,
    /// Index of the parameter in the runtime.
    pub(crate) parameter: usize,
    pub(crate) pass: Pass,
    /// Which published weights forward used.
    pub(crate) version: u64,
}

impl Fetch {
    /// The whole weight, in forward. `base` is what the module stores: what this rank holds of the
    /// weight, or a placeholder.
    pub(crate) fn forward<B: Transport>(&self, base: FloatTensor<B>) -> FloatTensor<B> {
        let _span = tracing::trace_span!("fetch").entered();
        let runtime = &self.hook.runtime;
        let published = runtime.published_place(self.parameter);
        if published.is_some_and(|place| !B::is_view(&base, &place.storage, &place.slot)) {
            unwind(runtime.stale_weight(self.parameter));
        }
        let float = runtime.weight_float();
        if !runtime.moves(self.parameter) {
            return B::rounded(base, float);
        }
        let place = runtime.weight(self).unwrap_or_else(|error| unwind(error));
        match runtime.owns(self.parameter) && float == FloatType::F32 {
            true => base,
            false => B::view(&base.device(), &place.storage, &place.slot),
        }
    }

    /// The whole weight again, in backward.
    pub(crate) fn again<B: Transport>(&self, device: &Device<B>) -> FloatTensor<B> {
        let _span = tracing::trace_span!("fetch").entered();
        let place =
            self.hook.runtime.weight_in_backward(self).unwrap_or_else(|error| unwind(error));
        B::view(device, &place.storage, &place.slot)
    }

    /// Whether backward fetches the weight again instead of the tape keeping it.
    pub(crate) fn refetches(&self) -> bool {
        self.hook.runtime.refetches(self.parameter)
    }

    /// A gradient will come for this use.
    pub(crate) fn expect_gradient(&self) {
        if self.hook.run.outstanding.fetch_add(1, Relaxed) == 0 {
            self.hook.runtime.expect_gradients(&self.hook.run);
        }
    }

    /// The gradient has come. `leaf` is where the parameter's gradient belongs, `None` when frozen.
    pub(crate) fn deliver<B: Transport>(&self, leaf: Option<NodeId>, gradient: FloatTensor<B>) {
        let _span = tracing::trace_span!("deliver").entered();
        let Hook { runtime, run } = &self.hook;
        runtime.meet(self.parameter);
        if let Some(leaf) = leaf {
            runtime
                .add_gradient(self.parameter, leaf, &B::to_gradient(gradient))
                .unwrap_or_else(|error| unwind(error));
        }
        let last = run.outstanding.fetch_sub(1, Relaxed) == 1;
        let left = run.hooked && last && !run.left_backward.swap(true, Relaxed);
        runtime.leave_backward(run, left).unwrap_or_else(|error| unwind(error));
    }
}

impl fmt::Debug for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fetch({})", self.hook.runtime.parameter(self.parameter).name)
    }
}
