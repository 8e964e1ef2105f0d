//! The hooks as differentiable operations: what Burn's tape calls on its way back. No policy here.
//!
//! | operation | forward | backward |
//! |---|---|---|
//! | `root` | – | the end of the tape: the averaged gradients are registered on their leaves |
//! | `enter` | identity on the boundary's input | the boundary's weights and gradients are done |
//! | `token` | a scalar that makes what hangs on it run before `enter` | – |
//! | `fetch` | the whole weight | its gradient is packed instead of kept |
//! | `exit` | identity on the boundary's output | the boundary's weights will be read |
//!
//! Burn runs a tape by depth, deepest first. A weight with only leaves above it would have depth 1
//! and its gradient would live to the end of backward; `fetch` takes the token as second parent, so
//! its step runs right before `enter`'s. `root` has depth 1 and so runs after everything else.

use crate::hook::{Averaged, Fetch, Hook};
use crate::quiet::quietly;
use crate::transport::{PackStorage, Transport};
#[cfg(feature = "_cube")]
use burn::backend::Cube;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::retro_forward::RetroForward;
use burn::backend::autodiff::checkpoint::state::BackwardStates;
use burn::backend::autodiff::checkpoint::strategy::{BalancedCheckpointing, CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{Device, FloatTensor};
use burn::backend::{AutodiffBackend, Backend, Flex, TensorMetadata, backend_extension};
use burn::tensor::{FloatDType, Shape};
use dmuon_core::Slot;
use std::sync::{Arc, OnceLock};

/// A place in a packed buffer, for operations that make a tensor of it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) storage: PackStorage,
    pub(crate) slot: Slot,
}

/// Receives what an operation learns about a tensor that only the backend can tell.
#[derive(Clone, Debug, Default)]
pub(crate) struct Probe(Arc<OnceLock<NodeId>>);

impl Probe {
    pub(crate) fn get(&self) -> Option<NodeId> {
        self.0.get().copied()
    }
}

// Without `Fusion`: its form would run these later, on a thread that ranks share, where two that meet
// would wait for ever. As it is they run when called, where they are called, fused or not.
#[backend_extension(Flex, Cube: cfg(feature = "_cube"), Autodiff)]
pub(crate) trait HookOps: Backend {
    fn dmuon_root(anchor: FloatTensor<Self>, hook: Hook) -> FloatTensor<Self>;
    fn dmuon_enter(x: FloatTensor<Self>, root: FloatTensor<Self>, hook: Hook) -> FloatTensor<Self>;
    fn dmuon_token(x: FloatTensor<Self>) -> FloatTensor<Self>;
    fn dmuon_fetch(
        base: FloatTensor<Self>,
        token: FloatTensor<Self>,
        fetch: Fetch,
    ) -> FloatTensor<Self>;
    fn dmuon_read(base: FloatTensor<Self>, fetch: Fetch) -> FloatTensor<Self>;
    fn dmuon_exit(y: FloatTensor<Self>, hook: Hook) -> FloatTensor<Self>;
    fn dmuon_view(like: FloatTensor<Self>, place: Place) -> FloatTensor<Self>;
    fn dmuon_leaf(tensor: FloatTensor<Self>, probe: Probe) -> FloatTensor<Self>;
}

/// What the operations do without a tape.
macro_rules! without_tape {
    ($backend:ty) => {
        impl HookOps for $backend {
            fn dmuon_root(anchor: FloatTensor<Self>, _hook: Hook) -> FloatTensor<Self> {
                anchor
            }

            fn dmuon_enter(
                x: FloatTensor<Self>,
                _root: FloatTensor<Self>,
                _hook: Hook,
            ) -> FloatTensor<Self> {
                x
            }

            fn dmuon_token(x: FloatTensor<Self>) -> FloatTensor<Self> {
                Self::float_zeros([1].into(), &x.device(), x.dtype().into())
            }

            fn dmuon_fetch(
                base: FloatTensor<Self>,
                _token: FloatTensor<Self>,
                fetch: Fetch,
            ) -> FloatTensor<Self> {
                fetch.forward::<Self>(base)
            }

            fn dmuon_read(base: FloatTensor<Self>, fetch: Fetch) -> FloatTensor<Self> {
                fetch.forward::<Self>(base)
            }

            fn dmuon_exit(y: FloatTensor<Self>, _hook: Hook) -> FloatTensor<Self> {
                y
            }

            fn dmuon_view(like: FloatTensor<Self>, place: Place) -> FloatTensor<Self> {
                Self::view(&like.device(), &place.storage, &place.slot)
            }

            fn dmuon_leaf(tensor: FloatTensor<Self>, _probe: Probe) -> FloatTensor<Self> {
                tensor
            }
        }
    };
}

without_tape!(Flex);
#[cfg(feature = "_cube")]
without_tape!(Cube);

impl<B: HookOps + Transport, C: CheckpointStrategy> HookOps for Autodiff<B, C> {
    fn dmuon_root(anchor: FloatTensor<Self>, hook: Hook) -> FloatTensor<Self> {
        let (primitive, guard) = anchor.into_parts();
        let device = primitive.device();
        match Backward::<B, 1>::prepare::<C>(Root, [guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((hook, device), primitive),
            OpsKind::UnTracked(prep) => prep.finish(primitive),
        }
    }

    fn dmuon_enter(x: FloatTensor<Self>, root: FloatTensor<Self>, hook: Hook) -> FloatTensor<Self> {
        let (primitive, guard) = x.into_parts();
        let guards = [guard, root.node()];
        let dtype = primitive.dtype().into();
        let input = Input { device: primitive.device(), shape: primitive.shape(), dtype };
        match Backward::<B, 2>::prepare::<C>(Enter, guards).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((hook, input), primitive),
            OpsKind::UnTracked(prep) => prep.finish(primitive),
        }
    }

    fn dmuon_token(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let guard = x.node();
        let token = B::dmuon_token(x.into_primitive());
        Backward::<B, 1>::prepare::<C>(Token, [guard]).compute_bound().stateless(token)
    }

    fn dmuon_fetch(
        base: FloatTensor<Self>,
        token: FloatTensor<Self>,
        fetch: Fetch,
    ) -> FloatTensor<Self> {
        let leaf = base.id();
        let tracked = base.is_tracked();
        let guards = [base.node(), token.node()];
        // Memory bound whatever the device's own strategy says: consumers then store how to get the
        // weight again, not the weight.
        let prep = Backward::<B, 2>::prepare::<BalancedCheckpointing>(FetchStep, guards);
        let prep = if fetch.refetches() {
            // Only tracked tensors can be checkpointed parents; a frozen base is none.
            let parents: Vec<_> = tracked.then_some(&base).into_iter().chain([&token]).collect();
            let retro = Refetch::<B> {
                fetch: fetch.clone(),
                device: base.primitive().device(),
                parents: parents.iter().map(|parent| parent.id()).collect(),
            };
            prep.memory_bound().retro_forward(retro).parents(parents).stateful()
        } else {
            prep.compute_bound().stateful()
        };
        let weight = B::dmuon_fetch(base.into_primitive(), token.into_primitive(), fetch.clone());
        match prep {
            OpsKind::Tracked(prep) => {
                fetch.expect_gradient();
                prep.finish((fetch, tracked.then_some(leaf)), weight)
            }
            OpsKind::UnTracked(prep) => prep.finish(weight),
        }
    }

    fn dmuon_read(base: FloatTensor<Self>, fetch: Fetch) -> FloatTensor<Self> {
        <Self as AutodiffBackend>::from_inner(B::dmuon_read(base.into_primitive(), fetch))
    }

    fn dmuon_exit(y: FloatTensor<Self>, hook: Hook) -> FloatTensor<Self> {
        let (primitive, guard) = y.into_parts();
        match Backward::<B, 1>::prepare::<C>(Exit, [guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(hook, primitive),
            OpsKind::UnTracked(prep) => prep.finish(primitive),
        }
    }

    fn dmuon_view(like: FloatTensor<Self>, place: Place) -> FloatTensor<Self> {
        <Self as AutodiffBackend>::from_inner(B::dmuon_view(like.into_primitive(), place))
    }

    fn dmuon_leaf(tensor: FloatTensor<Self>, probe: Probe) -> FloatTensor<Self> {
        // A probe is made for one tensor, so it cannot be set already.
        let _ = probe.0.set(tensor.id());
        tensor
    }
}

#[derive(Debug)]
struct Root;

impl<B: HookOps + Transport> Backward<B, 1> for Root {
    type State = (Hook, Device<B>);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (hook, device) = ops.state;
        for Averaged { leaf, place } in hook.finish_backward() {
            grads.register::<B>(leaf, B::view(&device, &place.storage, &place.slot));
        }
    }
}

#[derive(Debug)]
struct Enter;

/// What a gradient of the boundary's input looks like.
#[derive(Clone, Debug)]
struct Input<D> {
    device: D,
    shape: Shape,
    dtype: FloatDType,
}

impl<B: HookOps + Transport> Backward<B, 2> for Enter {
    type State = (Hook, Input<Device<B>>);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (hook, input) = ops.state;
        hook.leave_backward();
        if let [Some(parent), _] = &ops.parents {
            // A boundary that ignores its input leaves no gradient, but whatever made the input is
            // on the tape because of the token, and Burn panics where a gradient is missing.
            let gradient = quietly(|| grads.consume::<B>(&ops.node))
                .unwrap_or_else(|| B::float_zeros(input.shape, &input.device, input.dtype));
            grads.register::<B>(parent.id, gradient);
        }
    }
}

#[derive(Debug)]
struct Token;

impl<B: Backend> Backward<B, 1> for Token {
    type State = ();

    fn backward(self, _: Ops<(), 1>, _: &mut Gradients, _: &mut Checkpointer) {}
}

#[derive(Debug)]
struct FetchStep;

impl<B: HookOps + Transport> Backward<B, 2> for FetchStep {
    /// The fetch, and the leaf where its gradient belongs unless the parameter is frozen.
    type State = (Fetch, Option<NodeId>);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (fetch, leaf) = ops.state;
        let gradient = grads.consume::<B>(&ops.node);
        fetch.deliver::<B>(leaf, gradient);
    }
}

/// Z3: gets a weight again when backward asks for it.
#[derive(Debug)]
struct Refetch<B: Backend> {
    fetch: Fetch,
    device: Device<B>,
    parents: Vec<NodeId>,
}

impl<B: HookOps + Transport> RetroForward for Refetch<B> {
    fn forward(&self, states: &mut BackwardStates, out: NodeId) {
        for parent in &self.parents {
            // Each checkpointed parent must be taken once, or its state stays for good.
            let _ = states.get_state::<FloatTensor<B>>(parent);
        }
        states.save(out, self.fetch.again::<B>(&self.device));
    }
}

#[derive(Debug)]
struct Exit;

impl<B: HookOps + Transport> Backward<B, 1> for Exit {
    type State = Hook;

    fn backward(self, ops: Ops<Hook, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        ops.state.enter_backward();
        if let [Some(parent)] = &ops.parents {
            grads.register::<B>(parent.id, gradient);
        }
    }
}
