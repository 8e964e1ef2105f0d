//! Placeholders, and keeping a parameter's device, checkpointing and training state around them.

use crate::ops::{HookOps, Place, Probe};
use burn::backend::Dispatch;
use burn::backend::autodiff::NodeId;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Shape, Tensor};

/// A tensor of the right shape that stores one zero.
pub(crate) fn placeholder<const D: usize>(shape: Shape, device: &Device) -> Tensor<D> {
    Tensor::<D>::zeros([1; D], device).expand(shape).detach()
}

/// A stand-in with the parameter's final shape and training state; nothing is initialized for it.
pub(crate) fn known<const D: usize>(param: &Param<Tensor<D>>) -> Tensor<D> {
    unloaded(param).base()
}

/// The parameter holding a placeholder, with its own mappings; nothing is initialized for it.
pub(crate) fn unloaded<const D: usize>(param: &Param<Tensor<D>>) -> Param<Tensor<D>> {
    if param.is_initialized() {
        let base = param.base();
        let stand_in = placeholder(base.shape(), &base.device());
        return param.clone().map(|base| with_training_state(stand_in, base.is_require_grad()));
    }
    // Until it is initialized, Burn describes a parameter in its saved form (a column-major linear
    // weight is transposed); loading a placeholder of that form gives the final one.
    let saved_form = placeholder(param.lazy_shape(), &param.lazy_device());
    param.clone().transform_for_load(saved_form, param.id)
}

/// `tensor` as a leaf that requires gradients, or not.
pub(crate) fn with_training_state<const D: usize>(
    tensor: Tensor<D>,
    require_grad: bool,
) -> Tensor<D> {
    match tensor.is_autodiff() {
        true => tensor.set_require_grad(require_grad),
        false => tensor,
    }
}

/// A leaf on the device of `like`, with its training state, whose elements are those at `place`.
pub(crate) fn leaf_at<const D: usize>(like: Tensor<D>, place: Place) -> Tensor<D> {
    let require_grad = like.is_require_grad();
    let view = Tensor::from_dispatch(Dispatch::dmuon_view(like.into_dispatch(), place));
    with_training_state(view, require_grad)
}

/// The node of a tensor on the tape; `None` on a device without autodiff.
pub(crate) fn leaf_of<const D: usize>(tensor: &Tensor<D>) -> Option<NodeId> {
    let probe = Probe::default();
    let _ = Dispatch::dmuon_leaf(tensor.clone().into_dispatch(), probe.clone());
    probe.get()
}

/// Initializes every parameter of a model now, in visit order.
///
/// Burn draws initial values when a parameter is first used, from one generator for the whole
/// process. Do this once, after seeding the device, before copying a model to rank threads: the
/// values then depend on the seed alone, not on which rank uses what first.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::tensor::Device;
///
/// let device = Device::flex();
/// device.seed(1);
/// let linear = LinearConfig::new(4, 4).init(&device);
/// dmuon_burn::initialize(&linear);
/// assert!(linear.weight.is_initialized());
/// ```
pub fn initialize<M: Module>(model: &M) {
    struct Initialize;
    impl ModuleVisitor for Initialize {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let _ = param.base();
        }
    }
    model.visit(&mut Initialize);
}
