//! What a boundary takes and returns: any bundle of tensors. Knows no hook.

use burn::tensor::{Bool, Int, Tensor};

/// Applied to every float tensor of a bundle, whatever its rank.
pub trait TensorMap {
    /// Maps one tensor.
    fn map<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D>;
}

/// A bundle of tensors that can cross a boundary.
///
/// Implemented for tensors, tuples, arrays, vectors and options of them. Implement it for your own
/// input and output types by mapping their float tensors in a fixed order:
///
/// ```
/// use burn::tensor::{Int, Tensor};
/// use dmuon_burn::{BoundaryIo, TensorMap};
///
/// struct Batch {
///     tokens: Tensor<2, Int>,
///     memory: Tensor<3>,
/// }
///
/// impl BoundaryIo for Batch {
///     fn map_tensors(self, map: &mut impl TensorMap) -> Self {
///         Batch { memory: map.map(self.memory), ..self }
///     }
/// }
/// ```
pub trait BoundaryIo: Sized {
    /// Maps every float tensor, in a fixed order.
    fn map_tensors(self, map: &mut impl TensorMap) -> Self;
}

impl<const D: usize> BoundaryIo for Tensor<D> {
    fn map_tensors(self, map: &mut impl TensorMap) -> Self {
        map.map(self)
    }
}

impl<T: BoundaryIo> BoundaryIo for Option<T> {
    fn map_tensors(self, map: &mut impl TensorMap) -> Self {
        self.map(|io| io.map_tensors(map))
    }
}

impl<T: BoundaryIo> BoundaryIo for Vec<T> {
    fn map_tensors(self, map: &mut impl TensorMap) -> Self {
        self.into_iter().map(|io| io.map_tensors(map)).collect()
    }
}

impl<T: BoundaryIo, const N: usize> BoundaryIo for [T; N] {
    fn map_tensors(self, map: &mut impl TensorMap) -> Self {
        self.map(|io| io.map_tensors(map))
    }
}

macro_rules! opaque {
    ($([$($generics:tt)*] $type:ty),* $(,)?) => {$(
        impl<$($generics)*> BoundaryIo for $type {
            fn map_tensors(self, _map: &mut impl TensorMap) -> Self {
                self
            }
        }
    )*};
}
opaque!([const D: usize] Tensor<D, Int>, [const D: usize] Tensor<D, Bool>, [] (), [] bool, [] usize, [] f32, [] f64);

macro_rules! tuples {
    ($(($($name:ident),+)),* $(,)?) => {$(
        impl<$($name: BoundaryIo),+> BoundaryIo for ($($name,)+) {
            fn map_tensors(self, map: &mut impl TensorMap) -> Self {
                #[expect(non_snake_case, reason = "one identifier names the type and its value")]
                let ($($name,)+) = self;
                ($($name.map_tensors(map),)+)
            }
        }
    )*};
}
tuples!((A), (A, B), (A, B, C), (A, B, C, E), (A, B, C, E, F), (A, B, C, E, F, G));
