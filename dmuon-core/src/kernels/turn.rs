//! The transpose of a matrix that fits in a cache, for kernels that read along one side only.

/// Side of a tile: rows of a cache line on either side.
const TILE: usize = 16;

/// Writes the transpose of row-major `rows × cols` values.
pub(crate) fn turn(values: &[f32], cols: usize, out: &mut [f32]) {
    let rows = values.len() / cols;
    for (row, band) in (0..rows).step_by(TILE).zip(values.chunks(TILE * cols)) {
        let height = band.len() / cols;
        for col in (0..cols).step_by(TILE) {
            let width = TILE.min(cols - col);
            let mut tile = [[0.0; TILE]; TILE];
            for (i, values) in band.chunks_exact(cols).enumerate() {
                let values = &values[col..col + width];
                tile.iter_mut().zip(values).for_each(|(line, &value)| line[i] = value);
            }
            for (j, line) in (col..).zip(&tile[..width]) {
                out[j * rows + row..][..height].copy_from_slice(&line[..height]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turning_twice_gives_the_matrix_back() {
        for (rows, cols) in [(1, 1), (3, 50), (16, 16), (33, 17), (100, 4)] {
            let values: Vec<f32> = (0..rows * cols).map(|i| i as f32).collect();
            let (mut turned, mut back) = (vec![0.0; values.len()], vec![0.0; values.len()]);
            turn(&values, cols, &mut turned);
            assert_eq!(turned[(cols - 1) * rows], values[cols - 1]);
            turn(&turned, rows, &mut back);
            assert_eq!(back, values);
        }
    }
}
