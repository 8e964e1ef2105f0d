//! The plan: one owner for every matrix, and what each boundary packs for it.

use crate::{
    BalanceReport, Coordinate, CostModel, Matrix, MeshShape, PartitionError, Rank,
    fingerprint::Fingerprint, matrix::total_elems, tree::ancestors,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A matrix together with its place in the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedMatrix {
    /// Name and shape.
    #[serde(flatten)]
    pub matrix: Matrix,
    /// Index of its boundary in [`Plan::boundaries`].
    pub boundary: usize,
    /// The one rank that holds its master weight and momentum.
    pub owner: Rank,
}

/// What one owner contributes to one boundary: the content of one packed buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pack {
    /// The rank that broadcasts the weights and to which the gradients are reduced.
    pub owner: Rank,
    /// Indices of the matrices, in visit order, which is their order in the buffer.
    pub matrices: Vec<usize>,
    /// Elements of these matrices together, without alignment padding.
    pub elems: usize,
}

/// Matrices that are gathered and reduced as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boundary {
    /// Module path; the root's is empty.
    pub name: String,
    /// One pack an owner, in the order of the first matrix of each. Collectives go in this order.
    pub packs: Vec<Pack>,
    /// Elements of all packs together.
    pub elems: usize,
}

impl Boundary {
    /// The path, or `(root)` for the root boundary: a name fit for messages.
    pub fn label(&self) -> &str {
        if self.name.is_empty() { "(root)" } else { &self.name }
    }

    /// Indices of its matrices, pack by pack.
    pub fn matrices(&self) -> impl Iterator<Item = usize> {
        self.packs.iter().flat_map(|pack| pack.matrices.iter().copied())
    }
}

/// Who owns what: the same on every rank, because it follows from names and shapes alone.
///
/// Matrices are addressed by their position in the list that was planned. A plan can be stored
/// and read back with serde; what cannot be a plan is refused when it is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawPlan", into = "RawPlan")]
pub struct Plan {
    mesh: MeshShape,
    /// Invariant: boundary indices and owners exist, names are unique.
    matrices: Vec<PlannedMatrix>,
    /// Invariant: every matrix is in exactly one pack, that of its owner in its boundary.
    boundaries: Vec<Boundary>,
    /// Invariant: one list a rank, ascending; every matrix is in its owner's.
    owned: Vec<Vec<usize>>,
    /// Invariant: the indices of `matrices` and `boundaries` by name.
    matrix_index: BTreeMap<String, usize>,
    boundary_index: BTreeMap<String, usize>,
    total_elems: usize,
}

impl Plan {
    /// The mesh that was planned for.
    pub fn mesh(&self) -> MeshShape {
        self.mesh
    }

    /// Number of matrices.
    pub fn num_matrices(&self) -> usize {
        self.matrices.len()
    }

    /// All matrices, in the order in which they were given.
    pub fn matrices(&self) -> &[PlannedMatrix] {
        &self.matrices
    }

    /// The index of the matrix of this full name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.matrix_index.get(name).copied()
    }

    /// The owner of a matrix.
    ///
    /// # Panics
    /// No matrix has this index.
    pub fn owner(&self, matrix: usize) -> Rank {
        self.matrices[matrix].owner
    }

    /// The owner of a matrix, as a place in the mesh.
    ///
    /// # Panics
    /// No matrix has this index.
    pub fn owner_coordinate(&self, matrix: usize) -> Coordinate {
        self.mesh.coordinate(self.owner(matrix))
    }

    /// Indices of the matrices that a rank owns, in visit order.
    ///
    /// # Panics
    /// The mesh has no such rank.
    pub fn owned_by(&self, rank: Rank) -> &[usize] {
        &self.owned[rank.0]
    }

    /// All boundaries, in order of first appearance: the plan order of collectives.
    pub fn boundaries(&self) -> &[Boundary] {
        &self.boundaries
    }

    /// The index of the boundary with this module path; the root's path is empty.
    pub fn find_boundary(&self, path: &str) -> Option<usize> {
        self.boundary_index.get(path).copied()
    }

    /// The index of the lowest boundary around a parameter of any kind, planned or not: norms,
    /// biases and embeddings have a place too. `None` outside all boundaries.
    pub fn boundary_of(&self, name: &str) -> Option<usize> {
        ancestors(name).chain([""]).find_map(|path| self.find_boundary(path))
    }

    /// Elements of all matrices together (`P_M`).
    pub fn total_elems(&self) -> usize {
        self.total_elems
    }

    /// How evenly the plan spreads the work, under any cost model.
    ///
    /// # Errors
    /// As [`CostModel::costs`].
    pub fn balance(&self, cost: &CostModel) -> Result<BalanceReport, PartitionError> {
        BalanceReport::new(self, cost)
    }

    /// A hash of mesh, names, shapes, boundaries and owners, the same on every machine.
    ///
    /// # Collective
    /// None here: ranks compare their fingerprints, in one small collective of the caller's, to be
    /// sure that they planned alike.
    pub fn fingerprint(&self) -> u64 {
        let mesh = Fingerprint::new()
            .text("dmuon plan 1")
            .number(self.mesh.replicate())
            .number(self.mesh.shard())
            .number(self.boundaries.len());
        let names = self.boundaries.iter().fold(mesh, |hash, boundary| hash.text(&boundary.name));
        self.matrices
            .iter()
            .fold(names, |hash, planned| {
                let Matrix { name, batch, rows, cols } = &planned.matrix;
                let hash = hash.text(name).number(*batch).number(*rows).number(*cols);
                hash.number(planned.boundary).number(planned.owner.0)
            })
            .finish()
    }

    /// Builds the derived tables.
    ///
    /// # Errors
    /// Indices or owners that do not exist, repeated names, shapes without elements.
    pub(crate) fn new(
        mesh: MeshShape,
        boundaries: Vec<String>,
        matrices: Vec<PlannedMatrix>,
    ) -> Result<Self, PartitionError> {
        let mut plan = Self {
            mesh,
            total_elems: total_elems(matrices.iter().map(|planned| &planned.matrix))?,
            boundary_index: index(boundaries.iter())?,
            matrix_index: index(matrices.iter().map(|planned| &planned.matrix.name))?,
            owned: vec![Vec::new(); mesh.world_size()],
            boundaries: boundaries
                .into_iter()
                .map(|name| Boundary { name, packs: Vec::new(), elems: 0 })
                .collect(),
            matrices: Vec::with_capacity(matrices.len()),
        };
        let mut packs = BTreeMap::new();
        for planned in matrices {
            plan.push(planned, &mut packs)?;
        }
        Ok(plan)
    }

    /// Appends a matrix; `packs` finds the pack of a (boundary, owner) pair.
    fn push(
        &mut self,
        planned: PlannedMatrix,
        packs: &mut BTreeMap<(usize, Rank), usize>,
    ) -> Result<(), PartitionError> {
        let (matrix, num_boundaries) = (self.matrices.len(), self.boundaries.len());
        let PlannedMatrix { boundary: index, owner, matrix: Matrix { name, .. } } = &planned;
        let (index, owner, mesh) = (*index, *owner, self.mesh);
        let Some(boundary) = self.boundaries.get_mut(index) else {
            return Err(PartitionError::BoundaryIndex { matrix, index, num_boundaries });
        };
        let Some(owned) = self.owned.get_mut(owner.0) else {
            return Err(PartitionError::OwnerOutsideMesh { name: name.clone(), owner, mesh });
        };
        let pack = *packs.entry((index, owner)).or_insert_with(|| {
            boundary.packs.push(Pack { owner, matrices: Vec::new(), elems: 0 });
            boundary.packs.len() - 1
        });
        let elems = planned.matrix.elems();
        boundary.packs[pack].matrices.push(matrix);
        boundary.packs[pack].elems += elems;
        boundary.elems += elems;
        owned.push(matrix);
        self.matrices.push(planned);
        Ok(())
    }
}

fn index<'a>(
    names: impl Iterator<Item = &'a String>,
) -> Result<BTreeMap<String, usize>, PartitionError> {
    let mut index = BTreeMap::new();
    for (position, name) in names.enumerate() {
        if index.insert(name.clone(), position).is_some() {
            return Err(PartitionError::DuplicateName { name: name.clone() });
        }
    }
    Ok(index)
}

/// What of a plan is stored: the rest follows.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RawPlan {
    mesh: MeshShape,
    boundaries: Vec<String>,
    matrices: Vec<PlannedMatrix>,
}

impl TryFrom<RawPlan> for Plan {
    type Error = PartitionError;

    fn try_from(raw: RawPlan) -> Result<Self, PartitionError> {
        Self::new(raw.mesh, raw.boundaries, raw.matrices)
    }
}

impl From<Plan> for RawPlan {
    fn from(plan: Plan) -> Self {
        let boundaries = plan.boundaries.into_iter().map(|boundary| boundary.name).collect();
        Self { mesh: plan.mesh, boundaries, matrices: plan.matrices }
    }
}
