//! Boundaries around modules: where prefetch, early release and overlapped reduces come from.

use crate::binding;
use crate::error::unwind;
use crate::frame::{Frame, inside, root};
use crate::hook::{Hook, Run};
use crate::io::{BoundaryIo, TensorMap};
use crate::ops::HookOps;
use crate::runtime::Runtime;
use burn::backend::Dispatch;
use burn::module::{
    Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor,
};
use burn::tensor::{Device, Tensor};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// One boundary of a dedicated model; does nothing until a model is dedicated.
///
/// Get one from [`Dedicated::boundary`](crate::Dedicated::boundary) where wrapping the block in a
/// [`Hooked`] is inconvenient, and run the block's forward inside it.
#[derive(Clone, Default)]
pub struct Boundary {
    bound: Option<Bound>,
}

#[derive(Clone)]
struct Bound {
    runtime: Arc<Runtime>,
    unit: usize,
}

impl Boundary {
    pub(crate) fn new(runtime: Arc<Runtime>, unit: usize) -> Self {
        Self { bound: Some(Bound { runtime, unit }) }
    }

    /// Runs `forward` with the boundary's weights here: broadcasts start when it is entered, the
    /// next boundary's with them, and in Z3 this rank's copies are dropped when it is left. In
    /// backward the boundary's gradients are reduced as soon as they are complete.
    ///
    /// # Collective
    /// Every rank runs the same boundaries in the same order, or leaves some out.
    ///
    /// # Panics
    /// Unwinds with an error when a group has failed; [`catch`](dmuon_core::catch) and
    /// [`launch`](dmuon_core::launch) turn it into an `Err`.
    pub fn run<I, O>(&self, input: I, forward: impl FnOnce(I) -> O) -> O
    where
        I: BoundaryIo,
        O: BoundaryIo,
    {
        match &self.bound {
            None => forward(input),
            Some(bound) => bound.run(input, forward),
        }
    }
}

impl fmt::Debug for Boundary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.bound {
            None => f.write_str("Boundary(unbound)"),
            Some(bound) => write!(f, "Boundary({})", bound.runtime.unit_name(bound.unit)),
        }
    }
}

impl Bound {
    fn run<I, O>(&self, input: I, forward: impl FnOnce(I) -> O) -> O
    where
        I: BoundaryIo,
        O: BoundaryIo,
    {
        let span = tracing::trace_span!("enter").entered();
        let run = Arc::new(Run::new(self.unit, true));
        let hook = Hook { runtime: self.runtime.clone(), run };
        let mut enter = Enter { hook: &hook, token: None };
        let input = input.map_tensors(&mut enter);
        let frame = Frame::new(hook.clone(), enter.token);
        if let Some(pass) = frame.pass() {
            self.runtime.enter(self.unit, pass).unwrap_or_else(|error| unwind(error));
        }
        drop(span);
        let (output, frame) = inside(frame, || forward(input));
        let _span = tracing::trace_span!("leave").entered();
        let output = output.map_tensors(&mut Exit { hook: &hook });
        if let Some(pass) = frame.and_then(|frame| frame.pass()) {
            self.runtime.leave(self.unit, pass).unwrap_or_else(|error| unwind(error));
        }
        output
    }
}

/// Hooks the first tracked input. One is enough to order backward; the others pass untouched.
struct Enter<'a> {
    hook: &'a Hook,
    token: Option<Tensor<1>>,
}

impl TensorMap for Enter<'_> {
    fn map<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        if self.token.is_some() || !tensor.is_tracked() {
            return tensor;
        }
        let root = root(&tensor.device(), self.hook);
        let entered =
            Dispatch::dmuon_enter(tensor.into_dispatch(), root.into_dispatch(), self.hook.clone());
        self.token = Some(Tensor::from_dispatch(Dispatch::dmuon_token(entered.clone())));
        Tensor::from_dispatch(entered)
    }
}

/// Hooks every tracked output: backward may come through any of them.
struct Exit<'a> {
    hook: &'a Hook,
}

impl TensorMap for Exit<'_> {
    fn map<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        if !tensor.is_tracked() {
            return tensor;
        }
        Tensor::from_dispatch(Dispatch::dmuon_exit(tensor.into_dispatch(), self.hook.clone()))
    }
}

/// A module that is a boundary of its own once the model around it is dedicated.
///
/// It adds nothing to parameter names, and until then costs nothing: the same model trains plainly.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
/// use dmuon_burn::Hooked;
///
/// #[derive(Module, Debug)]
/// struct Net {
///     layers: Vec<Hooked<Linear>>,
/// }
///
/// impl Net {
///     fn forward(&self, x: Tensor<2>) -> Tensor<2> {
///         self.layers.iter().fold(x, |x, layer| layer.run(x, |linear, x| linear.forward(x)))
///     }
/// }
///
/// let device = Device::flex();
/// let layers = (0..2).map(|_| Hooked::new(LinearConfig::new(4, 4).init(&device))).collect();
/// let net = Net { layers };
/// assert_eq!(net.forward(Tensor::zeros([3, 4], &device)).dims(), [3, 4]);
/// ```
#[derive(Clone)]
pub struct Hooked<M> {
    inner: M,
    boundary: Boundary,
}

impl<M> Hooked<M> {
    /// Wraps a block.
    pub fn new(inner: M) -> Self {
        Self { inner, boundary: Boundary::default() }
    }

    /// Runs the block's forward inside the boundary; see [`Boundary::run`].
    pub fn run<I, O>(&self, input: I, forward: impl FnOnce(&M, I) -> O) -> O
    where
        I: BoundaryIo,
        O: BoundaryIo,
    {
        self.boundary.run(input, |input| forward(&self.inner, input))
    }

    /// Unwraps the block.
    pub fn into_inner(self) -> M {
        self.inner
    }

    fn with<N>(self, inner: N) -> Hooked<N> {
        Hooked { inner, boundary: self.boundary }
    }
}

impl<M> Deref for Hooked<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.inner
    }
}

impl<M> DerefMut for Hooked<M> {
    fn deref_mut(&mut self) -> &mut M {
        &mut self.inner
    }
}

impl<M: fmt::Debug> fmt::Debug for Hooked<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooked")
            .field("inner", &self.inner)
            .field("boundary", &self.boundary)
            .finish()
    }
}

impl<M: Module> Module for Hooked<M> {
    fn collect_devices(&self, devices: Devices) -> Devices {
        self.inner.collect_devices(devices)
    }

    fn fork(self, device: &Device) -> Self {
        let Self { inner, boundary } = self;
        Self { inner: inner.fork(device), boundary }
    }

    fn to_device(self, device: &Device) -> Self {
        let Self { inner, boundary } = self;
        Self { inner: inner.to_device(device), boundary }
    }

    fn train(self) -> Self {
        let Self { inner, boundary } = self;
        Self { inner: inner.train(), boundary }
    }

    fn valid(&self) -> Self {
        self.clone().with(self.inner.valid())
    }

    /// Also unbinds the boundary: the weights are plain again.
    fn materialize(self) -> Self {
        Self::new(self.inner.materialize())
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        binding::visiting(|| self.inner.visit(visitor));
    }

    fn map<P: ModuleMapper>(self, mapper: &mut P) -> Self {
        let Self { inner, boundary } = self;
        let (inner, bound) = binding::mapping(|| inner.map(mapper));
        Self { inner, boundary: bound.unwrap_or(boundary) }
    }
}

impl<M: Module + ModuleDisplay> ModuleDisplayDefault for Hooked<M> {
    fn content(&self, content: Content) -> Option<Content> {
        self.inner.content(content)
    }
}

impl<M: Module + ModuleDisplay> ModuleDisplay for Hooked<M> {}
