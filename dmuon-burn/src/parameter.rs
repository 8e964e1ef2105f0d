//! What dmuon knows of each parameter once the plan is made. Holds no values.

use crate::route::Route;
use burn::module::ParamId;
use dmuon_core::update::Fans;
use dmuon_core::{Address, Holder};
use std::sync::Arc;

/// A parameter's place in the plan.
#[derive(Clone, Debug)]
pub(crate) struct Parameter {
    pub(crate) name: Arc<str>,
    pub(crate) id: ParamId,
    pub(crate) shape: Vec<usize>,
    pub(crate) address: Address,
    pub(crate) holder: Holder,
    pub(crate) route: Route,
    /// How Newton–Schulz sees it; `None` off the Muon route.
    pub(crate) matrix: Option<MatrixView>,
}

/// A weight as a batch of matrices, with the fans of the layer it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixView {
    /// Number of matrices, e.g. experts.
    pub batch: usize,
    /// Rows of one matrix, as stored.
    pub rows: usize,
    /// Columns of one matrix, as stored.
    pub cols: usize,
    /// Outputs and inputs of the layer; storage order says nothing about them.
    pub fans: Fans,
}

/// How a weight's dimensions are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MatrixLayout {
    /// `[in, out]`, as Burn's `Linear` stores its weight; `[batch, in, out]` in three dimensions.
    InOut,
    /// `[out, in]`, as PyTorch's does; `[batch, out, in]` in three dimensions.
    OutIn,
    /// `[out, in, kernel..]`: one matrix of `out × (in·kernel)`.
    Convolution,
}

impl MatrixLayout {
    /// What a weight of this shape inside a module of this type usually means: convolutions are
    /// recognized by their type or by four and more dimensions, everything else is Burn's `[in,
    /// out]`.
    pub fn guess(shape: &[usize], module: &str) -> Self {
        match shape.len() {
            2 => Self::InOut,
            3 if !module.contains("Conv") => Self::InOut,
            _ => Self::Convolution,
        }
    }

    /// The weight as matrices; `None` below two dimensions, or for a layout that does not fit.
    pub fn view(self, shape: &[usize]) -> Option<MatrixView> {
        let (batch, matrix) = match (self, shape) {
            (Self::Convolution, _) => (1, shape),
            (_, [_, _]) => (1, shape),
            (_, [batch, matrix @ ..]) if matrix.len() == 2 => (*batch, matrix),
            _ => return None,
        };
        let fans = match self {
            Self::InOut => Fans::in_first(matrix)?,
            Self::OutIn | Self::Convolution => Fans::out_first(matrix)?,
        };
        let [rows, rest @ ..] = matrix else { return None };
        Some(MatrixView { batch, rows: *rows, cols: rest.iter().product(), fans })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(shape: &[usize], module: &str) -> MatrixView {
        MatrixLayout::guess(shape, module).view(shape).unwrap()
    }

    #[test]
    fn weights_are_seen_as_their_layers_mean_them() {
        let linear = view(&[512, 1024], "Struct:Linear");
        assert_eq!((linear.rows, linear.cols, linear.fans.fan_out), (512, 1024, 1024));
        let conv = view(&[64, 3, 5, 7], "Struct:Conv2d");
        assert_eq!((conv.batch, conv.rows, conv.cols), (1, 64, 105));
        assert_eq!((conv.fans.fan_out, conv.fans.fan_in), (64, 105));
        let conv = view(&[64, 3, 5], "Struct:Conv1d");
        assert_eq!((conv.batch, conv.rows, conv.cols), (1, 64, 15));
        let experts = view(&[8, 16, 32], "Struct:Experts");
        assert_eq!((experts.batch, experts.rows, experts.cols), (8, 16, 32));
        assert_eq!(experts.fans.fan_out, 32);
        assert_eq!(MatrixLayout::OutIn.view(&[8, 16, 32]).unwrap().fans.fan_out, 16);
        assert_eq!(MatrixLayout::InOut.view(&[8]), None);
        assert_eq!(MatrixLayout::InOut.view(&[2, 3, 4, 5]), None);
    }
}
