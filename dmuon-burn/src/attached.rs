//! What `Param::val` goes through for a distributed parameter: from the stored base to the weight.

use crate::binding;
use crate::frame::{Frame, root, running};
use crate::hook::{Fetch, Hook, Run};
use crate::ops::HookOps;
use crate::runtime::Runtime;
use burn::backend::Dispatch;
use burn::module::{
    Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor,
    Reparameterization,
};
use burn::tensor::{Device, FloatDType, Tensor};
use dmuon_core::{FloatType, Pass};
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

thread_local! {
    /// Whether values are about to be replaced, so that none need be fetched.
    static EXPORTING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` with parameters that give what they store instead of whole weights.
pub(crate) fn exporting<T>(f: impl FnOnce() -> T) -> T {
    struct Stop;
    impl Drop for Stop {
        fn drop(&mut self) {
            EXPORTING.set(false);
        }
    }
    EXPORTING.set(true);
    let _stop = Stop;
    f()
}

/// dmuon's reparameterization of a parameter.
#[derive(Module, Debug)]
pub(crate) struct Attached {
    slot: SlotHandle,
}

/// The runtime and the index of the parameter in it.
#[derive(Clone)]
pub(crate) struct SlotHandle {
    runtime: Arc<Runtime>,
    parameter: usize,
}

impl fmt::Debug for SlotHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.runtime.parameter(self.parameter).name)
    }
}

impl Attached {
    pub(crate) fn new(runtime: Arc<Runtime>, parameter: usize) -> Self {
        Self { slot: SlotHandle { runtime, parameter } }
    }
}

impl Reparameterization for Attached {
    const NAME: &'static str = "dmuon";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        self.slot.fetch(base)
    }
}

/// Without parameters of its own; traversals learn its runtime, or replace it.
impl Module for SlotHandle {
    fn collect_devices(&self, devices: Devices) -> Devices {
        devices
    }

    fn fork(self, _device: &Device) -> Self {
        self
    }

    fn to_device(self, _device: &Device) -> Self {
        self
    }

    fn train(self) -> Self {
        self
    }

    fn valid(&self) -> Self {
        self.clone()
    }

    fn materialize(self) -> Self {
        self
    }

    fn visit<V: ModuleVisitor>(&self, _visitor: &mut V) {
        binding::show(&self.runtime);
    }

    fn map<P: ModuleMapper>(self, _mapper: &mut P) -> Self {
        let Self { runtime, parameter } = self;
        Self { runtime: binding::rebound().unwrap_or(runtime), parameter }
    }
}

impl ModuleDisplayDefault for SlotHandle {
    fn content(&self, content: Content) -> Option<Content> {
        Some(content)
    }
}

impl ModuleDisplay for SlotHandle {}

impl SlotHandle {
    fn fetch<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let runtime = &self.runtime;
        let frozen = !base.is_require_grad();
        if EXPORTING.get() {
            return base;
        }
        if frozen && !runtime.moves(self.parameter) {
            return match runtime.weight_float() {
                FloatType::F32 => base,
                FloatType::F16 => base.cast(FloatDType::F16),
                FloatType::Bf16 => base.cast(FloatDType::BF16),
            };
        }
        if !base.is_autodiff() {
            return self.read(base, Pass::Evaluation);
        }
        // The tape must not keep a frozen weight either, but only tracked operations can be run
        // again; in z3 its gradient is computed and thrown away.
        if frozen && !runtime.refetches(self.parameter) {
            return self.read(base, Pass::Training);
        }
        let (hook, token) = self.tape(&base.device());
        let fetch = self.in_run(hook, Pass::Training);
        Tensor::from_dispatch(Dispatch::dmuon_fetch(
            base.into_dispatch(),
            token.into_dispatch(),
            fetch,
        ))
    }

    fn read<const D: usize>(&self, base: Tensor<D>, pass: Pass) -> Tensor<D> {
        let in_frame = |frame: &mut Frame| frame.hook();
        let hook = self.running(pass, in_frame).unwrap_or_else(|| self.alone());
        let fetch = self.in_run(hook, pass);
        Tensor::from_dispatch(Dispatch::dmuon_read(base.into_dispatch(), fetch))
    }

    /// The run this use belongs to and the token that orders it: the boundary's around it, or one
    /// of its own.
    fn tape(&self, device: &Device) -> (Hook, Tensor<1>) {
        self.running(Pass::Training, |frame| frame.tape(device)).unwrap_or_else(|| {
            let hook = self.alone();
            let token = root(device, &hook);
            (hook, token)
        })
    }

    /// Calls `f` with the innermost boundary, if it is the one around this parameter.
    fn running<T>(&self, pass: Pass, f: impl FnOnce(&mut Frame) -> T) -> Option<T> {
        let unit = self.runtime.parameter(self.parameter).address.unit;
        running(&self.runtime, unit, pass, f)
    }

    fn alone(&self) -> Hook {
        let unit = self.runtime.parameter(self.parameter).address.unit;
        Hook { runtime: self.runtime.clone(), run: Arc::new(Run::new(unit, false)) }
    }

    fn in_run(&self, hook: Hook, pass: Pass) -> Fetch {
        Fetch { hook, parameter: self.parameter, pass, version: self.runtime.version() }
    }
}
