//! The products on faer, which runs anywhere; a symmetric result costs one triangle and a mirror.

use faer::linalg::matmul::matmul;
use faer::linalg::matmul::triangular::{self, BlockStructure};
use faer::{Accum, MatMut, MatRef, Par};

use super::{Team, View};

/// Side of the square tiles in which a triangle is mirrored: a tile and its mirror image lie in
/// the first-level cache, so the strided half of the traffic does, too.
const TILE: usize = 32;

/// `out ← X Xᵀ`.
pub(crate) fn gram(view: View, x: &[f32], out: &mut [f32], team: Team) {
    let x = wide(view, x);
    triangle(x, x.transpose(), 1.0, out, team);
    finish(out, view.m(), |_, v| v);
}

/// `out ← alpha · L R + beta · R`, symmetric.
pub(crate) fn square(
    l: &[f32],
    r: &[f32],
    [alpha, beta]: [f32; 2],
    m: usize,
    out: &mut [f32],
    team: Team,
) {
    let order = |data| MatRef::from_row_major_slice(data, m, m);
    triangle(order(l), order(r), alpha, out, team);
    finish(out, m, |index, v| v + beta * r[index]);
}

/// `out ← alpha · Q X + beta · X`.
pub(crate) fn apply(
    view: View,
    q: &[f32],
    x: &[f32],
    [alpha, beta]: [f32; 2],
    out: &mut [f32],
    team: Team,
) {
    let q = MatRef::from_row_major_slice(q, view.m(), view.m());
    let accum = if beta == 0.0 { Accum::Replace } else { Accum::Add };
    if accum == Accum::Add {
        out.iter_mut().zip(x).for_each(|(out, x)| *out = beta * x);
    }
    let out = MatMut::from_row_major_slice_mut(out, view.rows, view.cols);
    let out = if view.is_tall() { out.transpose_mut() } else { out };
    matmul(out, accum, q, wide(view, x), alpha, par(team));
}

fn wide(view: View, data: &[f32]) -> MatRef<'_, f32> {
    let matrix = MatRef::from_row_major_slice(data, view.rows, view.cols);
    if view.is_tall() { matrix.transpose() } else { matrix }
}

fn par(team: Team) -> Par {
    if team == Team::SOLO { Par::Seq } else { Par::Rayon(team.0) }
}

/// Writes the lower triangle of `alpha · lhs · rhs`.
fn triangle(lhs: MatRef<'_, f32>, rhs: MatRef<'_, f32>, alpha: f32, out: &mut [f32], team: Team) {
    let m = lhs.nrows();
    triangular::matmul(
        MatMut::from_row_major_slice_mut(out, m, m),
        BlockStructure::TriangularLower,
        Accum::Replace,
        lhs,
        BlockStructure::Rectangular,
        rhs,
        BlockStructure::Rectangular,
        alpha,
        par(team),
    );
}

/// Applies `map` to the lower triangle and mirrors it, in one pass over tiles.
fn finish(out: &mut [f32], m: usize, map: impl Fn(usize, f32) -> f32) {
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
            finish(&mut out, m, |index, v| v + index as f32);
            for i in 0..m {
                for j in 0..m {
                    let expected = 2.0 * lower(i.max(j), i.min(j));
                    assert_eq!(out[i * m + j], expected, "m {m} at [{i}, {j}]");
                }
            }
        }
    }
}
