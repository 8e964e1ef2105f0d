//! The distributed model as a plain one: masters gathered, detached, with each parameter's own save
//! mapping.

use crate::attached::exporting;
use crate::error::Result;
use crate::ops::Place;
use crate::runtime::Runtime;
use crate::transport::is_view;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamMapper};
use burn::tensor::{Tensor, TensorData};
use dmuon_core::{
    Axis, Call, Element, Holder, Op, Pack, Rank, ShardLayout, SharedBuffer, Stream, Unit,
};
use std::collections::BTreeMap;

/// See [`Dedicated::full_model`](crate::Dedicated::full_model).
pub(crate) fn full_model<M: Module>(runtime: &Runtime, model: &M, root: Rank) -> Result<Option<M>> {
    check_fresh(runtime, model)?;
    runtime.release()?;
    let mut masters = BTreeMap::new();
    for (unit, Unit { packs, .. }) in runtime.units().iter().enumerate() {
        for pack in 0..packs.len() {
            let master = gather(runtime, (unit, pack), root)?;
            masters.extend(master.filter(|_| runtime.rank() == root).map(|m| ((unit, pack), m)));
        }
    }
    if runtime.rank() != root {
        return Ok(None);
    }
    let plain = exporting(|| model.valid().materialize());
    Ok(Some(plain.map(&mut Plain { runtime, masters })))
}

/// Checks that the model holds what was published last, which is what is gathered.
///
/// # Errors
/// [`Error::StaleWeight`](crate::Error::StaleWeight), which every rank is told.
fn check_fresh<M: Module>(runtime: &Runtime, model: &M) -> Result<()> {
    struct Check<'a>(&'a Runtime, Option<usize>);
    impl ModuleVisitor for Check<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let Some(index) = self.0.find(param.id) else { return };
            let place = self.0.published_place(index).filter(|_| self.0.trains(index));
            let is_stale = |place: Place| !is_view(param.base(), &place.storage, &place.slot);
            if place.is_some_and(is_stale) {
                self.1.get_or_insert(index);
            }
        }
    }
    let mut check = Check(runtime, None);
    model.visit(&mut check);
    check.1.map_or(Ok(()), |index| Err(runtime.stale_weight(index)))
}

/// All of a pack's weights in `f32`, at least on `root`. Masters, not what weights travel in: a
/// model that is saved must lose nothing.
///
/// # Collective
/// Every rank, for every pack in plan order.
fn gather(
    runtime: &Runtime,
    (unit, pack): (usize, usize),
    root: Rank,
) -> Result<Option<SharedBuffer>> {
    let (mesh, world) = (runtime.mesh(), runtime.world());
    let Pack { holder, layout } = &runtime.units()[unit].packs[pack];
    let (own, name) = (runtime.master(unit, pack), runtime.unit_name(unit).clone());
    let work = match holder {
        Holder::Everyone => return Ok(own),
        Holder::Owner(owner) => {
            let op = Op::Broadcast { root: mesh.shape().rank(*owner).0 };
            world.group().start(Call::new(op, name, Element::F32, layout.weight_elems()), own)?
        }
        Holder::Shards
            if mesh.coordinate().replicate != mesh.shape().coordinate(root).replicate =>
        {
            return Ok(None);
        }
        Holder::Shards => {
            let part_elems = ShardLayout::new(layout, mesh.shape().shard()).part_elems();
            let call = Call::new(Op::AllGather, name, Element::F32, part_elems);
            mesh.group(Axis::Shard, Stream::Weights).start(call, own)?
        }
    };
    Ok(work.wait(world.deadline())?)
}

/// Copies values out of packed buffers and restores the parameters' own mappings.
struct Plain<'a> {
    runtime: &'a Runtime,
    /// By unit and pack.
    masters: BTreeMap<(usize, usize), SharedBuffer>,
}

impl ModuleMapper for Plain<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(index) = self.runtime.find(param.id) else { return param };
        let (id, stored, mapper) = param.consume();
        let own = self.runtime.mapper::<ParamMapper<Tensor<D>>>(index).unwrap_or(mapper);
        let copy = match self.is_the_modules_own(index) {
            true => Tensor::from_data(stored.to_data(), &stored.device()),
            false => Tensor::from_data(self.master(index), &stored.device()),
        };
        Param::from_mapped_value(id, copy, own)
    }
}

impl Plain<'_> {
    /// What every rank holds and nobody trains, such as running statistics, changes without us.
    fn is_the_modules_own(&self, index: usize) -> bool {
        !self.runtime.moves(index) && !self.runtime.trains(index)
    }

    fn master(&self, index: usize) -> TensorData {
        let parameter = self.runtime.parameter(index);
        let address = parameter.address;
        let elems = match self.masters.get(&(address.unit, address.pack)) {
            Some(master) => &master.as_f32()[self.runtime.whole_slot(index).range()],
            None => unreachable!("every pack was gathered on this rank"),
        };
        TensorData::new(elems.to_vec(), parameter.shape.clone())
    }
}
