//! Deterministic input matrices and the shapes every test walks through.

use dmuon_core::newton_schulz::{NewtonSchulz, NewtonSchulzConfig, Parallelism, Workspace};
use faer::Mat;
use faer::diag::DiagRef;

/// Square, wide, tall, vectors, and sizes that are not multiples of any tile.
pub(crate) const SHAPES: [(usize, usize); 12] = [
    (1, 1),
    (1, 9),
    (9, 1),
    (2, 2),
    (3, 5),
    (5, 3),
    (17, 31),
    (64, 64),
    (64, 65),
    (65, 64),
    (129, 257),
    (257, 33),
];

/// SplitMix64: enough for test data, and the same on every machine.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in (0, 1].
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// A kind of matrix.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Gaussian,
    /// A product of two Gaussian factors.
    Rank(usize),
    /// Singular values spaced geometrically from 1 to the reciprocal.
    Condition(f64),
    /// Gaussian times a factor.
    Scale(f32),
}

pub(crate) const KINDS: [Kind; 6] = [
    Kind::Gaussian,
    Kind::Rank(1),
    Kind::Rank(8),
    Kind::Condition(1e6),
    Kind::Scale(1e-20),
    Kind::Scale(1e30),
];

pub(crate) fn matrix(kind: Kind, rows: usize, cols: usize, seed: u64) -> Vec<f32> {
    let mut rng = Rng(seed.wrapping_mul(1_000_003) ^ ((rows * 4099 + cols) as u64));
    let mut gaussian = |r: usize, c: usize| Mat::from_fn(r, c, |_, _| rng.normal());
    let dense = match kind {
        Kind::Gaussian | Kind::Scale(_) => gaussian(rows, cols),
        Kind::Rank(rank) => gaussian(rows, rank) * gaussian(rank, cols),
        Kind::Condition(condition) => {
            let svd = gaussian(rows, cols).thin_svd().unwrap();
            let m = rows.min(cols);
            let last = (m - 1).max(1) as f64;
            let sigma: Vec<f64> = (0..m).map(|i| condition.powf(-(i as f64) / last)).collect();
            svd.U() * DiagRef::from_slice(&sigma) * svd.V().transpose()
        }
    };
    let factor = if let Kind::Scale(factor) = kind { factor } else { 1.0 };
    row_major(&dense).into_iter().map(|v| v as f32 * factor).collect()
}

pub(crate) fn row_major(matrix: &Mat<f64>) -> Vec<f64> {
    (0..matrix.nrows()).flat_map(|i| (0..matrix.ncols()).map(move |j| matrix[(i, j)])).collect()
}

pub(crate) fn transposed(data: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    (0..cols).flat_map(|j| (0..rows).map(move |i| data[i * cols + j])).collect()
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

pub(crate) fn run(config: NewtonSchulzConfig, input: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    run_with(config, Parallelism::Serial, input, rows, cols)
}

pub(crate) fn run_with(
    config: NewtonSchulzConfig,
    parallelism: Parallelism,
    input: &[f32],
    rows: usize,
    cols: usize,
) -> Vec<f32> {
    let mut out = vec![f32::NAN; input.len()];
    let mut workspace = Workspace::new(parallelism);
    let newton_schulz = NewtonSchulz::new(config).unwrap();
    newton_schulz.orthogonalize(&mut workspace, input, rows, cols, &mut out).unwrap();
    out
}
