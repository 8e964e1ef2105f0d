//! Moves values between a model's parameters and packed buffers: taking them out, putting them back.

use crate::attached::Attached;
use crate::binding;
use crate::context::{leaf_at, leaf_of, unloaded};
use crate::control::digest;
use crate::error::{Error, Result, unwind};
use crate::holdings::Keeps;
use crate::ops::Place;
use crate::runtime::Runtime;
use crate::setup::ReplicatePublish;
use crate::transport::{PackStorage, write_tensor};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, Reparameterizer};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor};
use dmuon_core::{Address, Buffer, Holder};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Unpublished buffers of packs, by unit and pack: usually those that this rank holds.
#[derive(Default)]
pub(crate) struct Buffers(BTreeMap<(usize, usize), Buffer>);

impl Buffers {
    pub(crate) fn spare(runtime: &Runtime) -> Self {
        let spare = |(unit, pack)| ((unit, pack), runtime.spare(unit, pack));
        Self(runtime.held_packs().map(spare).collect())
    }

    /// What this rank holds of the parameter; `None` where that is nothing.
    pub(crate) fn slot(&mut self, runtime: &Runtime, parameter: usize) -> Option<&mut [f32]> {
        let Address { unit, pack, .. } = runtime.parameter(parameter).address;
        let range = runtime.held_slot(parameter)?.range();
        Some(&mut self.0.get_mut(&(unit, pack))?.as_f32_mut()[range])
    }

    /// Digest of what this rank trains of the parameters with such a holder.
    pub(crate) fn digest(&self, runtime: &Runtime, holder: Holder) -> u64 {
        let of_holder = (0..runtime.parameters().len())
            .filter(|&index| runtime.holder(index) == holder && runtime.trains(index));
        let digests = of_holder.filter_map(|index| {
            let Address { unit, pack, .. } = runtime.parameter(index).address;
            let elems = self.0.get(&(unit, pack))?.as_f32();
            Some(digest(bytemuck::cast_slice(&elems[runtime.held_slot(index)?.range()])))
        });
        digest(&digests.flat_map(u64::to_le_bytes).collect::<Vec<u8>>())
    }

    /// Fills a pack's buffer with what this rank holds of the whole.
    pub(crate) fn keep(&mut self, runtime: &Runtime, (unit, pack): (usize, usize), whole: &[f32]) {
        let Some(buffer) = self.0.get_mut(&(unit, pack)) else { return };
        let out = buffer.as_f32_mut();
        let start = match runtime.units()[unit].packs[pack].holder {
            Holder::Shards => (out.len() * runtime.mesh().coordinate().shard).min(whole.len()),
            Holder::Owner(_) | Holder::Everyone => 0,
        };
        let end = (start + out.len()).min(whole.len());
        out[..end - start].copy_from_slice(&whole[start..end]);
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
        let untouched = !self.initial && !self.runtime.moves(index) && !self.runtime.trains(index);
        let storage = self.storages.get(&(address.unit, address.pack)).filter(|_| !untouched);
        let place = storage.and_then(|storage| self.runtime.held_place(index, storage.clone()));
        let Some(place) = place else { return param };
        let (id, base, mapper) = param.consume();
        let leaf = leaf_at(base, place);
        self.runtime.bind_leaf(index, leaf_of(&leaf));
        Param::from_mapped_value(id, leaf, mapper)
    }
}

/// Copies the values of the parameters this rank holds out of a model that something else stepped.
///
/// # Errors
/// The model lacks a parameter, or one has another number of elements.
pub(crate) fn collect<M: Module>(runtime: &Runtime, model: &M) -> Result<Buffers> {
    let mut collect = Collect {
        runtime,
        buffers: Buffers::spare(runtime),
        seen: vec![false; runtime.parameters().len()],
        failure: None,
    };
    model.visit(&mut collect);
    all_seen(runtime, &collect.seen)?;
    collect.failure.map_or(Ok(collect.buffers), Err)
}

struct Collect<'a> {
    runtime: &'a Runtime,
    buffers: Buffers,
    seen: Vec<bool>,
    failure: Option<Error>,
}

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(index) = self.runtime.find(param.id) else { return };
        self.seen[index] = true;
        if let Some(slot) = self.buffers.slot(self.runtime, index) {
            let (found, expected) = (param.base().shape().num_elements(), slot.len());
            if found == expected {
                return write_tensor(param.base(), slot);
            }
            let parameter = self.runtime.name(index);
            self.failure.get_or_insert(Error::ValueShape { parameter, expected, found });
        }
    }
}

/// The first pass over a model: takes the values this rank provides, leaves placeholders, attaches
/// dmuon, and guards saving and loading.
pub(crate) struct Take<'a> {
    runtime: &'a Arc<Runtime>,
    /// What this rank owns.
    pub(crate) held: Buffers,
    /// Whole packs that no rank owns and this one provides.
    pub(crate) provided: Buffers,
    pub(crate) not_f32: Vec<String>,
}

impl<'a> Take<'a> {
    pub(crate) fn new(runtime: &'a Arc<Runtime>) -> Self {
        let mut provided = Buffers::default();
        for (unit, pack, layout) in runtime.unowned_packs() {
            if runtime.provider(Address { unit, pack, slot: 0 }) == runtime.rank() {
                let len_bytes = layout.weight_elems() * size_of::<f32>();
                provided.0.insert((unit, pack), runtime.world().pool().take_zeroed(len_bytes));
            }
        }
        Self { runtime, held: Buffers::spare(runtime), provided, not_f32: Vec::new() }
    }

    /// Where the parameter's initial values go on this rank.
    fn slot(&mut self, index: usize) -> Option<&mut [f32]> {
        if self.runtime.owns(index) {
            return self.held.slot(self.runtime, index);
        }
        let address = self.runtime.parameter(index).address;
        let buffer = self.provided.0.get_mut(&(address.unit, address.pack))?;
        Some(&mut buffer.as_f32_mut()[self.runtime.whole_slot(index).range()])
    }
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
        if let Some(slot) = self.slot(index) {
            let value = param.base();
            match value.dtype() {
                DType::F32 => write_tensor(value, slot),
                other => self.not_f32.push(format!("{} {other:?}", runtime.name(index))),
            }
        }
        let param = match runtime.moves(index) {
            true => guarded(runtime, index, stand_in),
            false => stand_in,
        };
        (param, Some(Attached::new(runtime.clone(), index)))
    }
}

/// Cuts a model that was distributed before anew.
pub(crate) struct Recut<'a> {
    before: &'a Runtime,
    after: &'a Arc<Runtime>,
}

impl<'a> Recut<'a> {
    /// What this rank holds after, out of what it held before: owners keep what they own, and what
    /// is cut into parts was held by everyone.
    ///
    /// # Errors
    /// As [`collect`].
    pub(crate) fn values<M: Module>(
        before: &Runtime,
        after: &Runtime,
        model: &M,
    ) -> Result<Buffers> {
        let old = collect(before, model)?;
        let mut new = Buffers::spare(after);
        for index in 0..after.parameters().len() {
            let address = before.parameter(index).address;
            let Some(held) = before.held_slot(index) else { continue };
            let Some(buffer) = old.0.get(&(address.unit, address.pack)) else { continue };
            let value = &buffer.as_f32()[held.range()];
            if let Some(slot) = new.slot(after, index) {
                slot.copy_from_slice(&value[after.held_elems(index)]);
            }
        }
        Ok(new)
    }

    /// Rebinds parameters and boundaries and guards what was not guarded.
    pub(crate) fn guard(before: &'a Runtime, after: &'a Arc<Runtime>) -> Self {
        Self { before, after }
    }
}

impl ModuleMapper for Recut<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(index) = self.after.find(param.id) else { return param };
        binding::meet(self.after.parameter(index).address.unit);
        match (self.before.moves(index), self.after.moves(index)) {
            (false, true) => guarded(self.after, index, unloaded(&param)),
            (true, _) => {
                // Guarded already; what is kept of its own mappings moves on.
                self.after.inherit_mapper(self.before, index);
                param
            }
            (false, false) => param,
        }
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
