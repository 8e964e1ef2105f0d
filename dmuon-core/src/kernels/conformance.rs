//! One suite for all kernels: their products against sums in `f64`, over shapes that fit no tile.

use std::num::NonZeroUsize;

use super::{Engine, Kernel, Panels, Precision, Products, Team, View};

/// Square, wide and tall; below, at and above the sides of tiles, panels, blocks and slabs.
const SHAPES: [(usize, usize); 16] = [
    (2, 2),
    (3, 40),
    (12, 32),
    (17, 31),
    (24, 1100),
    (64, 64),
    (61, 700),
    (65, 65),
    (65, 80),
    (96, 515),
    (130, 1030),
    (80, 2049),
    (1100, 70),
    (700, 61),
    (129, 129),
    (530, 66),
];

/// Each of `k` additions rounds by up to 2⁻²⁴ of a partial sum. The noise has a mean square of
/// 1/12, so sums stay below `1 + k/12`, and roundings add up as a random walk does; twice that.
/// Factors in bf16 are rounded in the oracle, too.
fn rounding(k: usize) -> f64 {
    let k = k as f64;
    2.0 * 2f64.powi(-24) * (1.0 + k / 12.0) * (1.0 + k.sqrt())
}

/// Every kernel of this machine, in every precision it has.
fn ways(view: View) -> Vec<(Engine, Precision)> {
    let (portable, here) = (Engine::PORTABLE, Engine::detect());
    let mut ways = vec![(portable, Precision::F32)];
    if here.kernel(view) != Kernel::Portable {
        ways.push((here, Precision::F32));
    }
    if here.precision(Precision::Bf16Products, view) == Precision::Bf16Products {
        ways.push((here, Precision::Bf16Products));
    }
    ways
}

fn noise(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..len).map(|_| next()).collect()
}

/// A factor as the products see it.
fn factor(value: f32, precision: Precision) -> f64 {
    if !precision.is_bf16() {
        return f64::from(value);
    }
    let bits = value.to_bits();
    let rounded = bits + 0x7fff + (bits >> 16 & 1);
    f64::from(f32::from_bits(rounded & 0xffff_0000))
}

/// Runs a check with the products of every kernel, alone and in a team.
fn each_way(check: impl Fn(&mut Products<'_>, Kernel)) {
    for (rows, cols) in SHAPES {
        let view = View::new(rows, cols);
        for (engine, precision) in ways(view) {
            if engine.wants_turned(view) {
                continue;
            }
            for threads in [1, 3] {
                let team = Team(NonZeroUsize::new(threads).unwrap());
                let panels = &mut Panels::default();
                let mut products = Products { engine, view, precision, panels, team };
                check(&mut products, engine.kernel(view));
            }
        }
    }
}

/// Compares `[i, j]` of row-major values for all `i` and `j < width(i)`.
fn assert_close(
    (found, cols): (&[f32], usize),
    expected: impl Fn(usize, usize) -> f64,
    width: impl Fn(usize) -> usize,
    (terms, what): (usize, &str),
) {
    let bound = rounding(terms);
    for (i, row) in found.chunks(cols).enumerate() {
        for (j, &value) in row.iter().enumerate().take(width(i)) {
            let error = (f64::from(value) - expected(i, j)).abs();
            assert!(error < bound, "{what} at [{i}, {j}]: {error:.1e}");
        }
    }
}

fn sum(len: usize, term: impl Fn(usize) -> f64) -> f64 {
    (0..len).map(term).sum()
}

#[test]
fn gram_matrices_agree_with_the_oracle() {
    each_way(|products, kernel| {
        let View { rows, cols } = products.view;
        let (m, n) = (rows.min(cols), rows.max(cols));
        let x = noise(m * n, 1);
        let at = |i: usize, k: usize| if rows > cols { k * cols + i } else { i * cols + k };
        let precision = products.precision;
        let x_at = |i, k| factor(x[at(i, k)], precision);
        let expected = |i, j| sum(n, |k| x_at(i, k) * x_at(j, k));
        let mut out = vec![f32::NAN; m * m];
        products.gram(&x, &mut out);
        let what = format!("{rows}x{cols} on {kernel:?} in {precision:?}");
        assert_close((&out, m), expected, |i| i + 1, (n, &what));
    });
}

#[test]
fn products_of_symmetric_matrices_agree_with_the_oracle() {
    each_way(|products, kernel| {
        let m = products.view.m();
        let symmetric = |seed| {
            let mut values = noise(m * m, seed);
            for i in 0..m {
                for j in 0..i {
                    // Packed products read the lower triangle alone; the others read both.
                    let packed = kernel == Kernel::Avx512;
                    values[j * m + i] = if packed { f32::NAN } else { values[i * m + j] };
                }
            }
            values
        };
        let (l, r) = (symmetric(2), symmetric(3));
        let lower = |values: &[f32], i: usize, j: usize| values[i.max(j) * m + i.min(j)];
        let precision = products.precision;
        let f = |value| factor(value, precision);
        let mut out = vec![0.0; m * m];
        for (left, right) in [(&l, &r), (&l, &l)] {
            products.square(left, right, [0.5, 2.0], &mut out);
            let expected = |i, j| {
                let product = sum(m, |k| f(lower(left, i, k)) * f(lower(right, k, j)));
                0.5 * product + 2.0 * f64::from(lower(right, i, j))
            };
            let what = format!("{m} on {kernel:?} in {precision:?}");
            assert_close((&out, m), expected, |i| i + 1, (m, &what));
        }
    });
}

#[test]
fn products_with_the_matrix_agree_with_the_oracle() {
    each_way(|products, kernel| {
        let View { rows, cols } = products.view;
        let m = products.view.m();
        let mut q = noise(m * m, 4);
        for i in 0..m {
            (0..i).for_each(|j| q[j * m + i] = q[i * m + j]);
        }
        let x = noise(rows * cols, 5);
        let precision = products.precision;
        let f = |value| factor(value, precision);
        let mut out = vec![f32::NAN; rows * cols];
        for beta in [0.0, 3.0] {
            products.apply(&q, &x, [0.5, beta], &mut out);
            let expected = |i: usize, j: usize| {
                let product = if rows > cols {
                    sum(m, |k| f(x[i * cols + k]) * f(q[k * m + j]))
                } else {
                    sum(m, |k| f(q[i * m + k]) * f(x[k * cols + j]))
                };
                0.5 * product + f64::from(beta) * f64::from(x[i * cols + j])
            };
            let what = format!("{rows}x{cols} on {kernel:?} in {precision:?}");
            assert_close((&out, cols), expected, |_| cols, (m, &what));
        }
    });
}
