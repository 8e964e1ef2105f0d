//! What owning a matrix costs: the weight by which owners are balanced.

use crate::{Matrix, PartitionError, newton_schulz_flops};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The unit in which owners are balanced.
///
/// ```
/// use dmuon_partition::{CostModel, Matrix};
///
/// let matrix = Matrix::new("layers.0.mlp.up.weight", 2048, 512);
/// let flops = CostModel::NewtonSchulz.cost(&matrix)?;
/// assert_eq!(flops, (3 * 2048 + 17 * 512) as f64 * 512.0 * 512.0);
/// # Ok::<(), dmuon_partition::PartitionError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CostModel {
    /// Operations of five Newton–Schulz steps in the cheapest form of the shape:
    /// `batch · min(15m²n + 5m³, 3m²n + 17m³)`.
    #[default]
    NewtonSchulz,
    /// Number of elements: balances memory and traffic instead of arithmetic.
    Elements,
    /// Cost by matrix name, in any one unit (seconds, say). Every planned matrix needs an entry;
    /// entries of others are ignored. All ranks must hold the same numbers, so measure on one
    /// rank and broadcast, or average.
    Measured(BTreeMap<String, f64>),
}

impl CostModel {
    /// The cost of one matrix, in the unit of the model.
    ///
    /// # Errors
    /// A measured cost that is missing, negative, infinite or not a number.
    pub fn cost(&self, matrix: &Matrix) -> Result<f64, PartitionError> {
        let cost = match self {
            Self::NewtonSchulz => {
                matrix.batch as f64 * newton_schulz_flops(matrix.rows, matrix.cols)
            }
            Self::Elements => matrix.elems() as f64,
            Self::Measured(costs) => *costs
                .get(&matrix.name)
                .ok_or_else(|| PartitionError::NotMeasured { names: vec![matrix.name.clone()] })?,
        };
        if cost.is_finite() && cost >= 0.0 {
            return Ok(cost);
        }
        Err(PartitionError::BadCost { name: matrix.name.clone(), cost })
    }

    /// The costs of all matrices, in their order.
    ///
    /// # Errors
    /// As [`cost`](Self::cost), but one error names every matrix without a measurement.
    pub fn costs<'a>(
        &self,
        matrices: impl IntoIterator<Item = &'a Matrix>,
    ) -> Result<Vec<f64>, PartitionError> {
        let mut missing = Vec::new();
        let mut costs = Vec::new();
        for matrix in matrices {
            match self.cost(matrix) {
                Ok(cost) => costs.push(cost),
                Err(PartitionError::NotMeasured { names }) => missing.extend(names),
                Err(other) => return Err(other),
            }
        }
        if missing.is_empty() {
            Ok(costs)
        } else {
            Err(PartitionError::NotMeasured { names: missing })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(cost: f64) -> CostModel {
        CostModel::Measured(BTreeMap::from([("w".to_owned(), cost)]))
    }

    #[test]
    fn a_batch_costs_as_much_as_its_matrices_one_by_one() {
        let one = Matrix::new("w", 96, 40);
        for model in [CostModel::NewtonSchulz, CostModel::Elements] {
            let eight = model.cost(&one.clone().with_batch(8)).unwrap();
            assert_eq!(eight, 8.0 * model.cost(&one).unwrap());
        }
    }

    #[test]
    fn costs_that_cannot_be_balanced_are_refused() {
        let matrix = Matrix::new("w", 2, 2);
        for cost in [f64::NAN, f64::INFINITY, -1.0] {
            let error = measured(cost).cost(&matrix).unwrap_err();
            assert!(matches!(error, PartitionError::BadCost { .. }), "{error}");
        }
        assert_eq!(measured(0.0).cost(&matrix).unwrap(), 0.0);
    }

    #[test]
    fn every_unmeasured_matrix_is_named_at_once() {
        let matrices = ["a", "w", "b"].map(|name| Matrix::new(name, 2, 2));
        let error = measured(1.0).costs(&matrices).unwrap_err();
        let names = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(error, PartitionError::NotMeasured { names });
    }
}
