//! The dedicated model as a plain one: gathered, detached, with each parameter's own save mapping.

use crate::error::Result;
use crate::runtime::Runtime;
use burn::module::{Module, ModuleMapper, Param, ParamMapper};
use burn::tensor::Tensor;
use dmuon_core::{Rank, catch};

/// See [`Dedicated::full_model`](crate::Dedicated::full_model).
pub(crate) fn full_model<M: Module>(runtime: &Runtime, model: &M, root: Rank) -> Result<Option<M>> {
    runtime.release()?;
    let model = model.valid();
    let full = catch(|| {
        if runtime.rank() == root {
            return Ok(Some(model.materialize().map(&mut Plain { runtime })));
        }
        // Weights are read in the same order everywhere, so that every rank joins every broadcast.
        (0..runtime.parameters().len()).try_for_each(|index| runtime.read(index))?;
        Ok::<_, crate::Error>(None)
    })??;
    runtime.release()?;
    Ok(full)
}

/// Copies values out of packed buffers and restores the parameters' own mappings.
struct Plain<'a> {
    runtime: &'a Runtime,
}

impl ModuleMapper for Plain<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(index) = self.runtime.find(param.id) else { return param };
        let (id, value, mapper) = param.consume();
        let own = self.runtime.mapper::<ParamMapper<Tensor<D>>>(index).unwrap_or(mapper);
        let copy = Tensor::from_data(value.to_data(), &value.device());
        Param::from_mapped_value(id, copy, own)
    }
}
