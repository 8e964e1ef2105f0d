//! Which of a rank's matrices go through Newton–Schulz in one call. Pure.

use crate::parameter::{MatrixView, Parameter};
use std::collections::BTreeSet;

/// Matrices are small up to this many rows (or columns): one alone keeps no thread busy.
const SMALL: usize = 64;

/// Matrices of one shape, in plan order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    /// Parameters, and how each is seen.
    pub(crate) members: Vec<(usize, MatrixView)>,
    /// The (unit, pack) all are in; `None` for small matrices of any.
    pub(crate) pack: Option<(usize, usize)>,
}

impl Batch {
    /// Groups the matrices that `owns` accepts: those of one pack with each other, so that the pack
    /// can be published before the next is updated; small ones across packs.
    pub(crate) fn group(parameters: &[Parameter], owns: impl Fn(usize) -> bool) -> Vec<Self> {
        let mut batches: Vec<Self> = Vec::new();
        for (index, parameter) in parameters.iter().enumerate().filter(|(index, _)| owns(*index)) {
            let Some(view) = parameter.matrix else { continue };
            let is_small = view.rows.min(view.cols) <= SMALL;
            let pack = (parameter.address.unit, parameter.address.pack);
            let pack = (!is_small).then_some(pack);
            let same = |batch: &&mut Self| batch.pack == pack && batch.shape() == shape(view);
            match batches.iter_mut().find(same) {
                Some(batch) => batch.members.push((index, view)),
                None => batches.push(Self { members: vec![(index, view)], pack }),
            }
        }
        batches
    }

    /// The (unit, pack)s that have matrices of the batch.
    pub(crate) fn packs(&self, parameters: &[Parameter]) -> BTreeSet<(usize, usize)> {
        let pack = |&(index, _): &(usize, MatrixView)| {
            let address = parameters[index].address;
            (address.unit, address.pack)
        };
        self.members.iter().map(pack).collect()
    }

    /// Rows and columns of each matrix.
    fn shape(&self) -> (usize, usize) {
        shape(self.members[0].1)
    }
}

fn shape(view: MatrixView) -> (usize, usize) {
    (view.rows, view.cols)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::Route;
    use burn::module::ParamId;
    use dmuon_core::update::Fans;
    use dmuon_core::{Address, Holder};

    fn matrix(unit: usize, rows: usize, cols: usize) -> Parameter {
        let fans = Fans { fan_out: cols, fan_in: rows };
        Parameter {
            name: "w".into(),
            id: ParamId::new(),
            shape: vec![rows, cols],
            address: Address { unit, pack: 0, slot: 0 },
            holder: Holder::Everyone,
            route: Route::Muon,
            matrix: Some(MatrixView { batch: 1, rows, cols, fans }),
        }
    }

    #[test]
    fn large_matrices_are_grouped_within_their_pack_and_small_ones_across() {
        let parameters = [
            matrix(0, 128, 128),
            matrix(0, 64, 512),
            matrix(0, 128, 128),
            matrix(1, 128, 128),
            matrix(1, 64, 512),
            matrix(1, 512, 64),
        ];
        let batches = Batch::group(&parameters, |index| index != 3);
        let members: Vec<Vec<usize>> = batches
            .iter()
            .map(|batch| batch.members.iter().map(|(index, _)| *index).collect())
            .collect();
        assert_eq!(members, [vec![0, 2], vec![1, 4], vec![5]]);
        assert_eq!(batches[0].pack, Some((0, 0)));
        assert_eq!(batches[1].pack, None);
    }
}
