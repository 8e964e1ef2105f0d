//! Moves values between a model's parameters and packed buffers: taking them out, putting them back.

use crate::binding;
use crate::context::{leaf_at, leaf_of, unloaded};
use crate::control::digest;
use crate::dedicate::ReplicatePublish;
use crate::error::{Error, Result, unwind};
use crate::frame::Attached;
use crate::ops::Place;
use crate::runtime::{Keeps, Runtime};
use crate::transport::{PackStorage, write_tensor};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, Reparameterizer};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor};
use dmuon_core::{Buffer, Holder};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Unpublished buffers for every pack this rank holds, by unit and pack.
pub(crate) struct Buffers(BTreeMap<(usize, usize), Buffer>);

impl Buffers {
    pub(crate) fn spare(runtime: &Runtime) -> Self {
        let spare = |(unit, pack)| ((unit, pack), runtime.spare(unit, pack));
        Self(runtime.held_packs().map(spare).collect())
    }

    /// The parameter's elements; `None` where this rank does not hold it.
    pub(crate) fn slot(&mut self, runtime: &Runtime, parameter: usize) -> Option<&mut [f32]> {
        let address = runtime.parameter(parameter).address;
        let buffer = self.0.get_mut(&(address.unit, address.pack))?;
        let slot = &runtime.units()[address.unit].packs[address.pack].layout.slots()[address.slot];
        Some(&mut buffer.as_f32_mut()[slot.range()])
    }

    /// Digest of what everyone holds and trains.
    pub(crate) fn digest_replicated(&self, runtime: &Runtime) -> u64 {
        let replicated = |&(&(unit, pack), _): &(&(usize, usize), &Buffer)| {
            runtime.units()[unit].packs[pack].holder == Holder::Everyone
        };
        let digests = self.0.iter().filter(replicated).flat_map(|(&(unit, pack), buffer)| {
            let slots = runtime.units()[unit].packs[pack].layout.gradient_slots();
            let elems = buffer.as_f32();
            slots.iter().map(|slot| digest(bytemuck::cast_slice(&elems[slot.range()])))
        });
        digest(&digests.flat_map(u64::to_le_bytes).collect::<Vec<u8>>())
    }

    pub(crate) fn get_mut(&mut self, unit: usize, pack: usize) -> Option<&mut Buffer> {
        self.0.get_mut(&(unit, pack))
    }

    /// Takes a pack's buffer out.
    pub(crate) fn take(&mut self, unit: usize, pack: usize) -> Option<Buffer> {
        self.0.remove(&(unit, pack))
    }
}

/// Publishes new weights and makes the model's parameters views of them. `make` writes one pack;
/// each is on its way to the other replicas before the next is made.
///
/// # Collective
/// Every rank, before the next forward.
///
/// # Errors
/// `make` fails, a group has failed, or the model lacks a parameter.
pub(crate) fn publish<M: Module>(
    runtime: &Arc<Runtime>,
    mut make: impl FnMut(usize, usize) -> Result<Option<Buffer>>,
    model: M,
) -> Result<M> {
    runtime.begin_publish()?;
    let mut storages = BTreeMap::new();
    for (unit, pack, keeps) in runtime.kept_packs() {
        match keeps {
            Keeps::Receives => runtime.receive(unit, pack)?,
            Keeps::Updates => {
                if let Some(buffer) = make(unit, pack)? {
                    storages.insert((unit, pack), runtime.publish(unit, pack, buffer)?);
                }
            }
        }
    }
    if runtime.publish_policy() == ReplicatePublish::Sync {
        runtime.drain()?;
    }
    let seen = vec![false; runtime.parameters().len()];
    let initial = runtime.version() == 1;
    let mut rebase = Rebase { runtime, storages, initial, seen };
    let model = model.map(&mut rebase);
    all_seen(runtime, &rebase.seen)?;
    Ok(model)
}

/// Adds averages to Burn's gradients, for parameters of a model that this rank's loss left out.
pub(crate) fn register<M: Module>(
    runtime: &Runtime,
    model: &M,
    averages: Vec<(usize, Place)>,
    gradients: &mut GradientsParams,
) {
    struct Register<'a> {
        runtime: &'a Runtime,
        averages: BTreeMap<usize, Place>,
        gradients: &'a mut GradientsParams,
    }
    impl ModuleVisitor for Register<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let index = self.runtime.find(param.id);
            if let Some(place) = index.and_then(|index| self.averages.remove(&index)) {
                let average = leaf_at(param.base(), place).without_autodiff();
                self.gradients.register(param.id, average);
            }
        }
    }
    if averages.is_empty() {
        return;
    }
    let averages = averages.into_iter().collect();
    model.visit(&mut Register { runtime, averages, gradients });
}

/// Checks that a traversal met every parameter.
pub(crate) fn all_seen(runtime: &Runtime, seen: &[bool]) -> Result<()> {
    match seen.iter().position(|seen| !seen) {
        None => Ok(()),
        Some(parameter) => Err(Error::WrongModel { parameter: runtime.name(parameter) }),
    }
}

/// Turns parameters into views of published storage.
struct Rebase<'a> {
    runtime: &'a Runtime,
    storages: BTreeMap<(usize, usize), PackStorage>,
    /// Whether this is the first publish.
    initial: bool,
    seen: Vec<bool>,
}

impl ModuleMapper for Rebase<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(index) = self.runtime.find(param.id) else { return param };
        self.seen[index] = true;
        let address = self.runtime.parameter(index).address;
        // After the first publish, what is frozen everywhere (a norm's running statistics) is the
        // module's own affair.
        let untouched =
            !self.initial && !self.runtime.is_owned(index) && !self.runtime.trains(index);
        let storage = self.storages.get(&(address.unit, address.pack));
        let Some(storage) = storage.filter(|_| !untouched) else { return param };
        let (id, base, mapper) = param.consume();
        let leaf = leaf_at(base, self.runtime.place(index, storage.clone()));
        self.runtime.bind_leaf(index, leaf_of(&leaf));
        Param::from_mapped_value(id, leaf, mapper)
    }
}

/// Copies the values of the parameters this rank holds out of a model that something else stepped.
///
/// # Errors
/// The model lacks a parameter.
pub(crate) fn collect<M: Module>(runtime: &Runtime, model: &M) -> Result<Buffers> {
    let mut collect = Collect {
        runtime,
        buffers: Buffers::spare(runtime),
        seen: vec![false; runtime.parameters().len()],
    };
    model.visit(&mut collect);
    all_seen(runtime, &collect.seen)?;
    Ok(collect.buffers)
}

struct Collect<'a> {
    runtime: &'a Runtime,
    buffers: Buffers,
    seen: Vec<bool>,
}

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(index) = self.runtime.find(param.id) else { return };
        self.seen[index] = true;
        if let Some(slot) = self.buffers.slot(self.runtime, index) {
            write_tensor(param.base(), slot);
        }
    }
}

/// The first pass over a model: takes the values this rank holds, leaves placeholders, attaches
/// dmuon, and guards saving and loading.
pub(crate) struct Take<'a> {
    pub(crate) runtime: &'a Arc<Runtime>,
    pub(crate) buffers: Buffers,
    pub(crate) not_f32: Vec<String>,
}

impl Reparameterizer for &mut Take<'_> {
    type Reparam = Attached;

    fn reparameterize<const D: usize>(
        &mut self,
        _path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Attached>) {
        let runtime = self.runtime;
        let Some(index) = runtime.find(param.id) else { return (param, None) };
        binding::meet(runtime.parameter(index).address.unit);
        let stand_in = unloaded(&param);
        if runtime.speaks_for(index)
            && let Some(slot) = self.buffers.slot(runtime, index)
        {
            let value = param.base();
            match value.dtype() {
                DType::F32 => write_tensor(value, slot),
                other => self.not_f32.push(format!("{} {other:?}", runtime.name(index))),
            }
        }
        let param = match runtime.is_owned(index) {
            true => guarded(runtime, index, stand_in),
            false => stand_in,
        };
        (param, Some(Attached::new(runtime.clone(), index)))
    }
}

/// Refuses to save or load the parameter; its own mappings are kept for the full model.
fn guarded<const D: usize>(
    runtime: &Arc<Runtime>,
    index: usize,
    param: Param<Tensor<D>>,
) -> Param<Tensor<D>> {
    let (id, base, mapper) = param.consume();
    runtime.keep_mapper(index, Box::new(mapper.clone()));
    let (rank, parameter) = (runtime.rank(), runtime.name(index));
    let save = Error::SaveRefused { rank, parameter: parameter.clone() };
    let load = Error::LoadRefused { rank, parameter };
    Param::from_mapped_value(id, base, mapper)
        .save_mapper(move |_| unwind(save.clone()))
        .load_mapper(move |_| unwind(load.clone()))
}
