//! Boundaries that are running on this thread, innermost last, and the tokens they give weights.

use crate::hook::Hook;
use crate::ops::HookOps;
use crate::runtime::Runtime;
use burn::backend::Dispatch;
use burn::tensor::{Device, Tensor};
use dmuon_core::Pass;
use std::cell::RefCell;
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

    pub(crate) fn hook(&self) -> Hook {
        self.hook.clone()
    }

    /// The run, and the token that orders weights in it.
    pub(crate) fn tape(&mut self, device: &Device) -> (Hook, Tensor<1>) {
        let token = self.token.get_or_insert_with(|| root(device, &self.hook)).clone();
        (self.hook.clone(), token)
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

/// Calls `f` with the innermost running boundary around `unit`, if there is one.
pub(crate) fn running<T>(
    runtime: &Arc<Runtime>,
    unit: usize,
    pass: Pass,
    f: impl FnOnce(&mut Frame) -> T,
) -> Option<T> {
    FRAMES.with_borrow_mut(|frames| {
        let frame = frames.iter_mut().rev().find(|frame| {
            Arc::ptr_eq(&frame.hook.runtime, runtime) && frame.hook.run.unit() == unit
        })?;
        frame.pass = Some(pass);
        Some(f(frame))
    })
}
