//! The plan of one model as runtime structures: units, packs, parameters. Pure; talks to nobody.

use crate::choice::{Choice, Rest};
use crate::error::Result;
use crate::inspect::ParameterInfo;
use crate::parameter::{MatrixLayout, MatrixView, Parameter};
use crate::route::{Route, RouteEntry, RouteReport};
use crate::rules::Rule;
use crate::select::{Matrices, matches};
use dmuon_core::{Address, Coordinate, Holder, Pack, PackedLayout, Placement, Unit};
use dmuon_partition::{Boundaries, BoundaryRule, CostModel, Matrix, MeshShape, Partitioner, Plan};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What the user asked for, as far as the plan depends on it.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) mesh: MeshShape,
    /// `None`: nothing is dedicated.
    pub(crate) matrices: Option<Matrices>,
    /// `Dedicate`'s.
    pub(crate) rules: Vec<Rule>,
    /// `FullyShard`'s, for what is not dedicated.
    pub(crate) shard_rules: Vec<Rule>,
    pub(crate) rest: Rest,
    pub(crate) boundaries: BoundaryRule,
    pub(crate) layouts: Vec<(String, MatrixLayout)>,
    pub(crate) cost: CostModel,
}

/// Everything that must be alike on every rank.
#[derive(Debug)]
pub(crate) struct Blueprint {
    pub(crate) plan: Plan,
    pub(crate) units: Vec<Unit>,
    /// The units in the order in which the model lists them, which is a guess at how they run.
    pub(crate) order: Vec<usize>,
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
        let (choices, unmatched) = request.choose(&found)?;
        let owned: Vec<usize> = (0..found.len()).filter(|&index| choices[index].owned).collect();
        let mut views: BTreeMap<usize, MatrixView> = BTreeMap::new();
        let mut matrices = Vec::new();
        for &index in &owned {
            let info = &found[index];
            matrices.push(match choices[index].route {
                Route::AdamWOwned => Matrix::new(&info.name, 1, info.shape.iter().product()),
                _ => {
                    let view = request.view(info)?;
                    views.insert(index, view);
                    Matrix::new(&info.name, view.rows, view.cols).with_batch(view.batch)
                }
            });
        }
        let boundaries = request.homes(&matrices, &views, &owned)?;
        let plan = Partitioner::new(request.mesh)
            .with_cost(request.cost.clone())
            .plan(&matrices, &boundaries)?;
        let owners: HashMap<usize, Coordinate> = owned
            .iter()
            .enumerate()
            .map(|(matrix, &index)| (index, plan.owner_coordinate(matrix)))
            .collect();
        let placed =
            Placed { mesh: request.mesh, found: &found, choices: &choices, owners: &owners };
        let (units, addresses) = placed.units();
        let parameters = placed.parameters(&units, &addresses, &views);
        let routes = placed.routes(&units, &parameters, unmatched);
        let order = placed.order(&units, &parameters);
        Ok(Self { plan, units, order, parameters, routes })
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
            selector: format!("{layout:?}"),
            names: vec![format!("{} {:?}", parameter.name, parameter.shape)],
        })
    }

    /// The boundaries of owned parameters. Matrices must have a home where the rule says so; what
    /// AdamW takes may lie outside all boundaries.
    fn homes(
        &self,
        matrices: &[Matrix],
        views: &BTreeMap<usize, MatrixView>,
        owned: &[usize],
    ) -> Result<Boundaries> {
        let is_matrix = |index: &usize| views.contains_key(index);
        let strict: Vec<Matrix> = matrices
            .iter()
            .zip(owned)
            .filter(|(_, index)| is_matrix(index))
            .map(|(matrix, _)| matrix.clone())
            .collect();
        self.boundaries.assign(&strict)?;
        let anywhere = self.boundaries.clone().with_strictness(dmuon_partition::Strictness::Root);
        Ok(anywhere.assign(matrices)?)
    }
}

/// Parameters with their routes and owners, on the way to units.
struct Placed<'a> {
    mesh: MeshShape,
    found: &'a [ParameterInfo],
    choices: &'a [Choice],
    owners: &'a HashMap<usize, Coordinate>,
}

impl Placed<'_> {
    fn holder(&self, index: usize) -> Holder {
        match self.owners.get(&index) {
            Some(&owner) => Holder::Owner(owner),
            None if self.choices[index].sharded => Holder::Shards,
            None => Holder::Everyone,
        }
    }

    /// Boundaries in order of first appearance, then what is sharded outside of any, then the root;
    /// and every parameter's address. A boundary's number does not depend on what else is sharded.
    fn units(&self) -> (Vec<Unit>, HashMap<usize, Address>) {
        let mut names: Vec<&str> = Vec::new();
        let mut members: HashMap<&str, Vec<usize>> = HashMap::new();
        for index in 0..self.found.len() {
            let name = self.unit_name(index);
            members.entry(name).or_insert_with(|| {
                names.push(name);
                Vec::new()
            });
            members.entry(name).or_default().push(index);
        }
        let is_boundary = |name: &str| members[name].iter().any(|&i| self.boundary(i).is_some());
        names.sort_by_key(|&name| (!is_boundary(name), name == ROOT));
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

    fn boundary(&self, index: usize) -> Option<&str> {
        self.found[index].boundary.as_deref().filter(|name| !name.is_empty())
    }

    /// Outside all boundaries, what is sharded moves with the `Hooked` block or the module around
    /// it, so that an embedding need not be there while the head runs.
    fn unit_name(&self, index: usize) -> &str {
        let info = &self.found[index];
        if let Some(boundary) = self.boundary(index) {
            return boundary;
        }
        let around = info.hooked.as_deref().or_else(|| Some(info.name.rsplit_once('.')?.0));
        match self.holder(index) {
            Holder::Shards => around.unwrap_or(ROOT),
            Holder::Owner(_) | Holder::Everyone => ROOT,
        }
    }

    fn placement(&self, name: &str, members: &[usize]) -> Placement {
        match name {
            ROOT => Placement::Root,
            _ if members.iter().any(|&index| self.found[index].hooked.is_some()) => {
                Placement::Hooked
            }
            _ => Placement::Loose,
        }
    }

    /// One pack a holder, in order of first appearance with what is sharded and what everyone holds
    /// last; with each, its parameters in slot order.
    fn packs(&self, members: &[usize]) -> (Vec<Pack>, Vec<Vec<usize>>) {
        // Frozen parameters have no gradients: a pack of their own keeps a part's weights and
        // gradients in step.
        let kind = |index: usize| {
            let holder = self.holder(index);
            (holder, holder == Holder::Shards && !self.found[index].trainable)
        };
        let mut kinds: Vec<(Holder, bool)> = Vec::new();
        for &index in members {
            if !kinds.contains(&kind(index)) {
                kinds.push(kind(index));
            }
        }
        kinds.sort_by_key(|&(holder, frozen)| match holder {
            Holder::Owner(_) => (0, false),
            Holder::Shards => (1, frozen),
            Holder::Everyone => (2, false),
        });
        let pack = |wanted: (Holder, bool)| {
            let of_kind = members.iter().copied().filter(|&index| kind(index) == wanted);
            let (trainable, frozen): (Vec<usize>, Vec<usize>) =
                of_kind.partition(|&index| self.found[index].trainable);
            let described = |indices: &[usize]| -> Vec<(Arc<str>, Vec<usize>)> {
                let describe = |&index: &usize| {
                    let ParameterInfo { name, shape, .. } = &self.found[index];
                    (name.as_str().into(), shape.clone())
                };
                indices.iter().map(describe).collect()
            };
            let layout = PackedLayout::new(described(&trainable), described(&frozen));
            (Pack { holder: wanted.0, layout }, [trainable, frozen].concat())
        };
        kinds.into_iter().map(pack).unzip()
    }

    fn parameters(
        &self,
        units: &[Unit],
        addresses: &HashMap<usize, Address>,
        views: &BTreeMap<usize, MatrixView>,
    ) -> Vec<Parameter> {
        let parameter = |(index, info): (usize, &ParameterInfo)| {
            let address = addresses[&index];
            let route = self.choices[index].route;
            Parameter {
                name: info.name.as_str().into(),
                id: info.id,
                shape: info.shape.clone(),
                address,
                holder: units[address.unit].packs[address.pack].holder,
                route,
                matrix: views.get(&index).copied().filter(|_| route == Route::Muon),
            }
        };
        self.found.iter().enumerate().map(parameter).collect()
    }

    fn routes(
        &self,
        units: &[Unit],
        parameters: &[Parameter],
        unmatched: Vec<String>,
    ) -> RouteReport {
        let entry = |(choice, parameter): (&Choice, &Parameter)| RouteEntry {
            name: parameter.name.to_string(),
            shape: parameter.shape.clone(),
            route: parameter.route,
            owner: parameter.holder.owner().map(|owner| self.mesh.rank(owner).0),
            sharded: parameter.holder == Holder::Shards,
            boundary: units[parameter.address.unit].name.to_string(),
            reason: choice.reason.clone(),
        };
        RouteReport { entries: self.choices.iter().zip(parameters).map(entry).collect(), unmatched }
    }

    /// Units by their first parameter; those of which nothing moves come last.
    fn order(&self, units: &[Unit], parameters: &[Parameter]) -> Vec<usize> {
        let mut first = vec![usize::MAX; units.len()];
        for (index, parameter) in parameters.iter().enumerate().rev() {
            if parameter.holder != Holder::Everyone {
                first[parameter.address.unit] = index;
            }
        }
        let mut order: Vec<usize> = (0..units.len()).collect();
        order.sort_by_key(|&unit| first[unit]);
        order
    }
}
