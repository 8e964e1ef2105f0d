//! bf16, which keeps eight significant bits of a number: a model cast to it, and what becomes of
//! small updates in it.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{DType, Tensor, bf16};

use crate::common::model::Gpt;

/// The same model with weights in bf16: what it computes is rounded to bf16 after each operation.
pub(crate) fn cast(model: &Gpt) -> Gpt {
    model.clone().map(&mut Cast)
}

struct Cast;

impl ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| tensor.cast(DType::BF16))
    }
}

/// The share of weights that this very update would leave as they are if they were kept in bf16:
/// it is less than half of the distance to the next number.
pub(crate) fn lost_updates(before: &[f32], after: &[f32]) -> f64 {
    let lost = |(&before, &after): (&f32, &f32)| {
        let kept = bf16::from_f32(before);
        before != after && bf16::from_f32(kept.to_f32() + (after - before)) == kept
    };
    before.iter().zip(after).filter(|&pair| lost(pair)).count() as f64 / before.len() as f64
}

/// All matrices of all blocks, one after the other.
pub(crate) fn block_matrices(model: &Gpt) -> Vec<f32> {
    let mut collect = Collect::default();
    model.visit(&mut collect);
    collect.elems
}

#[derive(Default)]
struct Collect {
    path: Vec<String>,
    elems: Vec<f32>,
}

impl ModuleVisitor for Collect {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.path.first().is_some_and(|name| name == "layers") && D == 2 {
            self.elems.extend(param.val().into_data().iter::<f32>());
        }
    }
}
