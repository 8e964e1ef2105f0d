//! The plan of one model as runtime structures: units, packs, parameters. Pure; talks to nobody.

use crate::error::Result;
use crate::inspect::ParameterInfo;
use crate::parameter::{MatrixLayout, MatrixView, Parameter};
use crate::route::{Route, RouteEntry, RouteReport};
use crate::select::{Matrices, matches};
use dmuon_core::{Address, Coordinate, Holder, Pack, PackedLayout, Placement, Unit};
use dmuon_partition::{BoundaryRule, CostModel, Matrix, MeshShape, Partitioner, Plan};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What the user asked for, as far as the plan depends on it.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) mesh: MeshShape,
    pub(crate) matrices: Matrices,
    pub(crate) boundaries: BoundaryRule,
    pub(crate) layouts: Vec<(String, MatrixLayout)>,
    pub(crate) cost: CostModel,
}

/// Everything that must be alike on every rank.
#[derive(Debug)]
pub(crate) struct Blueprint {
    pub(crate) plan: Plan,
    pub(crate) units: Vec<Unit>,
    /// In visit order.
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) routes: RouteReport,
}

/// What the unit outside all boundaries is called.
const ROOT: &str = "(root)";

impl Blueprint {
    /// # Errors
    /// Selection, boundaries or the plan fail; nothing was sent.
    pub(crate) fn draw(request: &Request, mut found: Vec<ParameterInfo>) -> Result<Self> {
        for parameter in &mut found {
            parameter.boundary = request.boundaries.boundary_of(&parameter.name).map(str::to_owned);
        }
        let selected = request.matrices.select(&found)?;
        let views: BTreeMap<usize, MatrixView> = selected
            .iter()
            .map(|&index| Ok((index, request.view(&found[index])?)))
            .collect::<Result<_>>()?;
        let matrices: Vec<Matrix> = views
            .iter()
            .map(|(&index, view)| {
                Matrix::new(found[index].name.clone(), view.rows, view.cols).with_batch(view.batch)
            })
            .collect();
        let boundaries = request.boundaries.assign(&matrices)?;
        let plan = Partitioner::new(request.mesh)
            .with_cost(request.cost.clone())
            .plan(&matrices, &boundaries)?;
        let owners: HashMap<usize, Coordinate> = views
            .keys()
            .enumerate()
            .map(|(matrix, &index)| (index, plan.owner_coordinate(matrix)))
            .collect();
        let placed = Placed { mesh: request.mesh, found: &found, owners: &owners };
        let (units, addresses) = placed.units();
        let parameters = placed.parameters(&units, &addresses, &views);
        let routes = placed.routes(&units, &parameters);
        Ok(Self { plan, units, parameters, routes })
    }
}

impl Request {
    fn view(&self, parameter: &ParameterInfo) -> Result<MatrixView> {
        let chosen = self.layouts.iter().rev().find(|(name, _)| matches(name, &parameter.name));
        let layout = match chosen {
            Some((_, layout)) => *layout,
            None => MatrixLayout::guess(&parameter.shape, &parameter.module),
        };
        layout.view(&parameter.shape).ok_or_else(|| crate::Error::NotAMatrix {
            selector: format!("{layout:?} for {}", self.matrices),
            names: vec![format!("{} {:?}", parameter.name, parameter.shape)],
        })
    }
}

/// Parameters with their owners, on the way to units.
struct Placed<'a> {
    mesh: MeshShape,
    found: &'a [ParameterInfo],
    owners: &'a HashMap<usize, Coordinate>,
}

impl Placed<'_> {
    fn holder(&self, index: usize) -> Holder {
        self.owners.get(&index).map_or(Holder::Everyone, |&owner| Holder::Owner(owner))
    }

    /// Units in order of first appearance, the root last, and every parameter's address.
    fn units(&self) -> (Vec<Unit>, HashMap<usize, Address>) {
        let mut names: Vec<&str> = Vec::new();
        let mut members: HashMap<&str, Vec<usize>> = HashMap::new();
        for (index, parameter) in self.found.iter().enumerate() {
            let name = unit_name(parameter);
            members.entry(name).or_insert_with(|| {
                names.push(name);
                Vec::new()
            });
            members.entry(name).or_default().push(index);
        }
        names.sort_by_key(|&name| name == ROOT);
        let mut addresses = HashMap::new();
        let units = names.iter().enumerate().map(|(unit, &name)| {
            let (packs, slots) = self.packs(&members[name]);
            for (pack, indices) in slots.into_iter().enumerate() {
                let slots = indices.into_iter().enumerate();
                addresses.extend(slots.map(|(slot, index)| (index, Address { unit, pack, slot })));
            }
            Unit { name: name.into(), placement: self.placement(name, &members[name]), packs }
        });
        let units = units.collect();
        (units, addresses)
    }

    fn placement(&self, name: &str, members: &[usize]) -> Placement {
        match name {
            ROOT => Placement::Root,
            _ if members.iter().any(|&index| self.found[index].hooked) => Placement::Hooked,
            _ => Placement::Loose,
        }
    }

    /// One pack a holder, in order of first appearance with what everyone holds last; with each,
    /// its parameters in slot order.
    fn packs(&self, members: &[usize]) -> (Vec<Pack>, Vec<Vec<usize>>) {
        let mut holders: Vec<Holder> = Vec::new();
        for &index in members {
            let holder = self.holder(index);
            if !holders.contains(&holder) {
                holders.push(holder);
            }
        }
        holders.sort_by_key(|holder| *holder == Holder::Everyone);
        let pack = |holder: Holder| {
            let of_holder = members.iter().copied().filter(|&index| self.holder(index) == holder);
            let (trainable, frozen): (Vec<usize>, Vec<usize>) =
                of_holder.partition(|&index| self.found[index].trainable);
            let described = |indices: &[usize]| -> Vec<(Arc<str>, Vec<usize>)> {
                let describe = |&index: &usize| {
                    let ParameterInfo { name, shape, .. } = &self.found[index];
                    (name.as_str().into(), shape.clone())
                };
                indices.iter().map(describe).collect()
            };
            let layout = PackedLayout::new(described(&trainable), described(&frozen));
            (Pack { holder, layout }, [trainable, frozen].concat())
        };
        holders.into_iter().map(pack).unzip()
    }

    fn parameters(
        &self,
        units: &[Unit],
        addresses: &HashMap<usize, Address>,
        views: &BTreeMap<usize, MatrixView>,
    ) -> Vec<Parameter> {
        let parameter = |(index, info): (usize, &ParameterInfo)| {
            let address = addresses[&index];
            let view = views.get(&index).copied();
            let route = match (info.trainable, view) {
                (false, _) => Route::Frozen,
                (true, Some(_)) => Route::Muon,
                (true, None) => Route::Replicated,
            };
            Parameter {
                name: info.name.as_str().into(),
                id: info.id,
                shape: info.shape.clone(),
                address,
                holder: units[address.unit].packs[address.pack].holder,
                route,
                matrix: view.filter(|_| route == Route::Muon),
            }
        };
        self.found.iter().enumerate().map(parameter).collect()
    }

    fn routes(&self, units: &[Unit], parameters: &[Parameter]) -> RouteReport {
        let entry = |(info, parameter): (&ParameterInfo, &Parameter)| RouteEntry {
            name: info.name.clone(),
            shape: info.shape.clone(),
            route: parameter.route,
            owner: parameter.holder.owner().map(|owner| self.mesh.rank(owner).0),
            boundary: units[parameter.address.unit].name.to_string(),
            reason: reason(info, parameter),
        };
        RouteReport { entries: self.found.iter().zip(parameters).map(entry).collect() }
    }
}

fn unit_name(parameter: &ParameterInfo) -> &str {
    match parameter.boundary.as_deref() {
        None | Some("") => ROOT,
        Some(name) => name,
    }
}

fn reason(info: &ParameterInfo, parameter: &Parameter) -> &'static str {
    match parameter.route {
        Route::Muon => "selected matrix",
        Route::Frozen => "requires no gradient",
        Route::Replicated if info.shape.len() < 2 => "fewer than two dimensions",
        Route::Replicated if info.module.contains("Embedding") => "embedding",
        Route::Replicated if info.boundary.is_none() => "outside all boundaries",
        Route::Replicated => "not selected",
    }
}
