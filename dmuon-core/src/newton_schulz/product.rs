//! The two products of the iteration; a symmetric result costs one triangle and a mirror pass.

use faer::linalg::matmul::matmul;
use faer::linalg::matmul::triangular::{self, BlockStructure};
use faer::{Accum, MatMut, MatRef, Par};

/// Side of the square tiles in which a triangle is mirrored: a tile and its mirror image lie in
/// the first-level cache, so the strided half of the traffic does, too.
const TILE: usize = 32;

/// `alpha·lhs·rhs + plus.0·plus.1 + diagonal·I`, known to be symmetric.
///
/// The symmetry is the caller's promise (`X Xᵀ`, or polynomials of one matrix): only the lower
/// triangle is computed, so the result is symmetric to the bit.
#[derive(Clone, Copy)]
pub(super) struct SymmetricProduct<'a> {
    pub(super) lhs: MatRef<'a, f32>,
    pub(super) rhs: MatRef<'a, f32>,
    pub(super) alpha: f32,
    pub(super) plus: Option<(f32, &'a [f32])>,
    pub(super) diagonal: f32,
}

impl SymmetricProduct<'_> {
    /// Writes the `m × m` result, both triangles.
    pub(super) fn write(self, out: &mut [f32], par: Par) {
        let m = self.lhs.nrows();
        triangular::matmul(
            MatMut::from_row_major_slice_mut(&mut *out, m, m),
            BlockStructure::TriangularLower,
            Accum::Replace,
            self.lhs,
            BlockStructure::Rectangular,
            self.rhs,
            BlockStructure::Rectangular,
            self.alpha,
            par,
        );
        match self.plus {
            Some((factor, other)) => {
                finish(out, m, self.diagonal, |index, v| v + factor * other[index])
            }
            None => finish(out, m, self.diagonal, |_, v| v),
        }
    }
}

/// `out ← lhs · rhs`.
pub(super) fn product(out: MatMut<'_, f32>, lhs: MatRef<'_, f32>, rhs: MatRef<'_, f32>, par: Par) {
    matmul(out, Accum::Replace, lhs, rhs, 1.0, par);
}

/// Applies `map` and the diagonal to the lower triangle and mirrors it, in one pass over tiles.
fn finish(out: &mut [f32], m: usize, diagonal: f32, map: impl Fn(usize, f32) -> f32) {
    let mut tile = [0.0f32; TILE * TILE];
    for row in (0..m).step_by(TILE) {
        let rows = TILE.min(m - row);
        for col in (0..=row).step_by(TILE) {
            let cols = TILE.min(m - col);
            for i in 0..rows {
                let start = (row + i) * m + col;
                let end = if row == col { i + 1 } else { cols };
                for (j, v) in out[start..start + end].iter_mut().enumerate() {
                    *v = map(start + j, *v);
                    tile[i * TILE + j] = *v;
                }
            }
            for j in 0..cols {
                let skip = if row == col { j + 1 } else { 0 };
                let start = (col + j) * m + row;
                let mirrored = out[start..start + rows].iter_mut().enumerate().skip(skip);
                mirrored.for_each(|(i, v)| *v = tile[i * TILE + j]);
            }
        }
    }
    if diagonal != 0.0 {
        out.iter_mut().step_by(m + 1).for_each(|v| *v += diagonal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_triangle_is_finished_and_mirrored_at_every_tile_edge() {
        for m in [1, 2, TILE - 1, TILE, TILE + 1, 2 * TILE + 3] {
            let lower = |i: usize, j: usize| (i * m + j) as f32;
            let mut out = vec![f32::NAN; m * m];
            for i in 0..m {
                (0..=i).for_each(|j| out[i * m + j] = lower(i, j));
            }
            finish(&mut out, m, 0.5, |index, v| v + index as f32);
            for i in 0..m {
                for j in 0..m {
                    let expected = 2.0 * lower(i.max(j), i.min(j)) + if i == j { 0.5 } else { 0.0 };
                    assert_eq!(out[i * m + j], expected, "m {m} at [{i}, {j}]");
                }
            }
        }
    }
}
