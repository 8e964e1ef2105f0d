//! Boundaries that are running on this thread, innermost last, and the tokens they give weights.

use crate::hook::{Fetch, Hook, Run};
use crate::ops::HookOps;
use crate::runtime::Runtime;
use burn::backend::Dispatch;
use burn::module::{Module, Reparameterization};
use burn::tensor::{Device, Tensor};
use dmuon_core::Pass;
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

thread_local! {
    static FRAMES: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) };
}

/// A running boundary.
pub(crate) struct Frame {
    hook: Hook,
    /// Makes weights run before the boundary's input in backward; made when first needed.
    token: Option<Tensor<1>>,
    pass: Option<Pass>,
}

impl Frame {
    pub(crate) fn new(hook: Hook, token: Option<Tensor<1>>) -> Self {
        let pass = token.as_ref().map(|_| Pass::Training);
        Self { hook, token, pass }
    }

    /// Which pass the boundary turned out to run in; `None` when it touched no weight.
    pub(crate) fn pass(&self) -> Option<Pass> {
        self.pass
    }
}

/// Runs `f` inside `frame` and returns the frame with what it learned.
pub(crate) fn inside<T>(frame: Frame, f: impl FnOnce() -> T) -> (T, Option<Frame>) {
    struct Pop(usize);
    impl Drop for Pop {
        fn drop(&mut self) {
            FRAMES.with_borrow_mut(|frames| frames.truncate(self.0));
        }
    }
    let depth = FRAMES.with_borrow_mut(|frames| {
        frames.push(frame);
        frames.len() - 1
    });
    let pop = Pop(depth);
    let result = f();
    let frame = FRAMES.with_borrow_mut(|frames| (frames.len() == depth + 1).then(|| frames.pop()));
    drop(pop);
    (result, frame.flatten())
}

/// The root of a run's tape: the first thing on it, and so the last to run in backward.
pub(crate) fn root(device: &Device, hook: &Hook) -> Tensor<1> {
    let anchor = Tensor::<1>::zeros([1], device).require_grad();
    Tensor::from_dispatch(Dispatch::dmuon_root(anchor.into_dispatch(), hook.clone()))
}

/// What `Param::val` goes through for a dedicated parameter.
#[derive(Module, Debug)]
pub(crate) struct Attached {
    #[module(skip)]
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

impl SlotHandle {
    fn fetch<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let runtime = &self.runtime;
        let frozen = !base.is_require_grad();
        if frozen && !runtime.is_owned(self.parameter) {
            return base;
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
        let hook = self.running(pass, |frame| frame.hook.clone()).unwrap_or_else(|| self.alone());
        let fetch = self.in_run(hook, pass);
        Tensor::from_dispatch(Dispatch::dmuon_read(base.into_dispatch(), fetch))
    }

    /// The run this use belongs to and the token that orders it: the boundary's around it, or one
    /// of its own.
    fn tape(&self, device: &Device) -> (Hook, Tensor<1>) {
        let in_frame = |frame: &mut Frame| {
            let hook = frame.hook.clone();
            let token = frame.token.get_or_insert_with(|| root(device, &hook)).clone();
            (hook, token)
        };
        self.running(Pass::Training, in_frame).unwrap_or_else(|| {
            let hook = self.alone();
            let token = root(device, &hook);
            (hook, token)
        })
    }

    /// Calls `f` with the innermost boundary, if it is the one around this parameter.
    fn running<T>(&self, pass: Pass, f: impl FnOnce(&mut Frame) -> T) -> Option<T> {
        let unit = self.runtime.parameter(self.parameter).address.unit;
        FRAMES.with_borrow_mut(|frames| {
            let frame = frames.iter_mut().rev().find(|frame| {
                Arc::ptr_eq(&frame.hook.runtime, &self.runtime) && frame.hook.run.unit() == unit
            })?;
            frame.pass = Some(pass);
            Some(f(frame))
        })
    }

    fn alone(&self) -> Hook {
        let unit = self.runtime.parameter(self.parameter).address.unit;
        Hook { runtime: self.runtime.clone(), run: Arc::new(Run::new(unit, false)) }
    }

    fn in_run(&self, hook: Hook, pass: Pass) -> Fetch {
        Fetch { hook, parameter: self.parameter, pass, version: self.runtime.version() }
    }
}
