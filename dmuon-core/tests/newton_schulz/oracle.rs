//! The `f64` oracle: SVD of the input, and the scalar quintics applied to its singular values.

use dmuon_core::newton_schulz::{
    Coefficients, Form, Kernel, NewtonSchulz, NewtonSchulzConfig, NumericsError, Parallelism,
    Precision, Restart, Workspace,
};
use faer::Mat;
use faer::diag::DiagRef;

use crate::inputs::{KINDS, Kind, SHAPES, matrix, row_major, run, transposed};

/// Errors below are absolute per element and relative in the Frobenius norm.
///
/// Direct: a step multiplies X by a matrix that is good to 1e-7, whatever the singular value, so
/// errors only pass through the slope of the remaining quintics, at most 8·4·4·3·2 / 1.05⁵ ≈ 780.
/// Measured at most 2e-4, on a rank-one 512 × 512 matrix.
const DIRECT_ERROR: f64 = 5e-4;

/// Gram: R carries an absolute error of 6e-8 that four updates multiply by up to 1.3e5; the form
/// stops within one percent by its restart policy. Measured at most 8e-3, on rank one and on
/// condition 1e6; at most 2e-4 on Gaussian matrices.
const GRAM_ERROR: f64 = 2e-2;

/// Gram with a restart before step 2: no segment multiplies the error by more than 1e3.
/// Measured at most 3e-4.
const RESTARTED_ERROR: f64 = 1e-3;

/// Direct with bf16 products, matrices of full rank: every step rounds what it adds to `aX` by
/// 2⁻⁹ a factor, and later steps shrink it. Measured at most 8e-3, on square Gaussian matrices.
const BF16_ERROR: f64 = 1e-2;

/// The same on matrices with singular values far below the norm, relative to a result of little
/// norm. Measured at most 2.5e-2, on rank one; at most 7e-3 of an element.
const BF16_LOW_RANK_ERROR: f64 = 3e-2;

/// Bands are printed to three decimals, and the Gram form adds its 2e-4.
const BAND_ROUNDING: f64 = 1e-3;

/// A transpose changes the order in which the norm is summed, so at most the last bit of some
/// elements of X, 6e-8, which passes through the slope 780.
const TRANSPOSE_ROUNDING: f32 = 5e-5;

/// `U p(Σ / ‖Σ‖) Vᵀ`; no product of the iteration occurs in it.
fn oracle(input: &[f32], rows: usize, cols: usize, schedule: &[[f64; 3]]) -> Vec<f64> {
    let dense = Mat::from_fn(rows, cols, |i, j| f64::from(input[i * cols + j]));
    let svd = dense.thin_svd().unwrap();
    let sigma: Vec<f64> = svd.S().column_vector().iter().copied().collect();
    let norm = sigma.iter().map(|s| s * s).sum::<f64>().sqrt();
    let mapped: Vec<f64> = sigma.iter().map(|s| quintics(s / norm, schedule)).collect();
    row_major(&(svd.U() * DiagRef::from_slice(&mapped) * svd.V().transpose()))
}

fn quintics(sigma: f64, schedule: &[[f64; 3]]) -> f64 {
    schedule.iter().fold(sigma, |s, [a, b, c]| a * s + b * s.powi(3) + c * s.powi(5))
}

/// Largest error of an element, and the Frobenius error relative to the expected matrix.
fn errors(found: &[f32], expected: &[f64]) -> (f64, f64) {
    let difference: Vec<f64> = found.iter().zip(expected).map(|(&f, e)| f64::from(f) - e).collect();
    let norm = |values: &[f64]| values.iter().map(|v| v * v).sum::<f64>().sqrt();
    let largest = difference.iter().fold(0.0f64, |max, v| max.max(v.abs()));
    (largest, norm(&difference) / norm(expected))
}

/// Worst error over kinds, shapes and seeds, against a bound.
fn assert_close(set: &Coefficients, form: Form, restart: Restart, bound: f64) {
    let schedule = set.schedule(5).unwrap();
    let config = NewtonSchulzConfig::new()
        .with_coefficients(set.clone())
        .with_form(form)
        .with_restart(restart);
    for kind in KINDS {
        for (rows, cols) in SHAPES {
            for seed in 0..3 {
                let input = matrix(kind, rows, cols, seed);
                let out = run(config.clone(), &input, rows, cols);
                let (largest, relative) = errors(&out, &oracle(&input, rows, cols, &schedule));
                assert!(
                    largest < bound && relative < bound,
                    "{set:?} {form:?} {kind:?} {rows}x{cols}: {largest:.1e}, {relative:.1e}"
                );
            }
        }
    }
}

const SETS: [Coefficients; 3] =
    [Coefficients::PolarExpress, Coefficients::You, Coefficients::Jordan];

#[test]
fn the_direct_form_agrees_with_the_svd() {
    SETS.iter().for_each(|set| assert_close(set, Form::Direct, Restart::None, DIRECT_ERROR));
}

#[test]
fn the_gram_form_agrees_with_the_svd() {
    SETS.iter().for_each(|set| assert_close(set, Form::Gram, Restart::Auto, GRAM_ERROR));
}

#[test]
fn a_restart_buys_the_gram_form_two_digits() {
    let restart = || Restart::At(vec![2]);
    SETS.iter().for_each(|set| assert_close(set, Form::Gram, restart(), RESTARTED_ERROR));
}

/// Shapes that take bf16 products where the CPU has them.
const BF16_SHAPES: [(usize, usize); 6] =
    [(65, 65), (129, 129), (129, 257), (257, 129), (96, 640), (300, 301)];

#[test]
fn bf16_products_agree_with_the_svd_to_two_digits() {
    for (set, kind) in SETS.iter().flat_map(|set| KINDS.map(|kind| (set, kind))) {
        let schedule = set.schedule(5).unwrap();
        let config = NewtonSchulzConfig::new()
            .with_coefficients(set.clone())
            .with_form(Form::Direct)
            .with_precision(Precision::Bf16Products);
        let bound = match kind {
            Kind::Gaussian | Kind::Scale(_) => BF16_ERROR,
            Kind::Rank(_) | Kind::Condition(_) => BF16_LOW_RANK_ERROR,
        };
        for (rows, cols) in BF16_SHAPES {
            let input = matrix(kind, rows, cols, 1);
            let out = run(config.clone(), &input, rows, cols);
            let (largest, relative) = errors(&out, &oracle(&input, rows, cols, &schedule));
            assert!(
                largest < BF16_ERROR && relative < bound,
                "{set:?} {kind:?} {rows}x{cols}: {largest:.1e}, {relative:.1e}"
            );
        }
    }
}

#[test]
fn the_gram_form_stays_in_f32_where_bf16_products_are_allowed() {
    let config = NewtonSchulzConfig::new().with_form(Form::Gram);
    let allowed = config.clone().with_precision(Precision::Bf16Products);
    let newton_schulz = NewtonSchulz::new(allowed.clone()).unwrap();
    for (rows, cols) in BF16_SHAPES {
        let input = matrix(Kind::Gaussian, rows, cols, 1);
        assert_eq!(newton_schulz.precision(rows, cols), Precision::F32);
        assert_eq!(
            run(allowed.clone(), &input, rows, cols),
            run(config.clone(), &input, rows, cols)
        );
    }
}

#[test]
fn the_portable_kernel_agrees_with_the_svd() {
    let schedule = Coefficients::PolarExpress.schedule(5).unwrap();
    for (form, bound) in [(Form::Direct, DIRECT_ERROR), (Form::Gram, GRAM_ERROR)] {
        let config =
            NewtonSchulzConfig::new().with_form(form).with_precision(Precision::Bf16Products);
        let portable = NewtonSchulz::new(config).unwrap().with_portable_kernel();
        for ((rows, cols), kind) in SHAPES.iter().flat_map(|&s| KINDS.map(|kind| (s, kind))) {
            assert_eq!(portable.kernel(rows, cols), Kernel::Portable);
            assert_eq!(portable.precision(rows, cols), Precision::F32);
            let input = matrix(kind, rows, cols, 2);
            let mut out = vec![f32::NAN; input.len()];
            let mut workspace = Workspace::new(Parallelism::Serial);
            portable.orthogonalize(&mut workspace, &input, rows, cols, &mut out).unwrap();
            let (largest, relative) = errors(&out, &oracle(&input, rows, cols, &schedule));
            assert!(
                largest < bound && relative < bound,
                "{form:?} {kind:?} {rows}x{cols}: {largest:.1e}, {relative:.1e}"
            );
        }
    }
}

/// Ten steps that converge: Polar Express, continued with the quintic it tends to.
fn ten_steps() -> Coefficients {
    let mut triples = Coefficients::PolarExpress.schedule(5).unwrap();
    triples.extend([[15.0 / 8.0, -5.0 / 4.0, 3.0 / 8.0]; 5]);
    Coefficients::Custom(triples)
}

#[test]
fn automatic_restarts_keep_a_long_schedule_within_the_gram_error() {
    let config = NewtonSchulzConfig::new().with_coefficients(ten_steps()).with_ns_steps(10);
    let schedule = ten_steps().schedule(10).unwrap();
    for kind in [Kind::Gaussian, Kind::Condition(1e3)] {
        let input = matrix(kind, 17, 31, 0);
        let out = run(config.clone().with_form(Form::Gram), &input, 17, 31);
        let (largest, _) = errors(&out, &oracle(&input, 17, 31, &schedule));
        assert!(largest < GRAM_ERROR, "{kind:?}: {largest:.1e}");
    }
}

#[test]
fn a_long_schedule_without_restarts_diverges_as_an_error_where_automatic_ones_do_not() {
    let config = NewtonSchulzConfig::new()
        .with_coefficients(Coefficients::Jordan)
        .with_ns_steps(12)
        .with_form(Form::Gram);
    let input = matrix(Kind::Rank(1), 17, 31, 0);
    // Jordan's quintic orbits around 1, below 1.203, and never settles.
    let size = run(config.clone(), &input, 17, 31).iter().map(|v| v * v).sum::<f32>().sqrt();
    assert!(size < 1.21 * 17f32.sqrt(), "{size}");
    let unguarded = NewtonSchulz::new(config.with_restart(Restart::None)).unwrap();
    let mut workspace = Workspace::new(Parallelism::Serial);
    let mut out = vec![0.0; input.len()];
    let result = unguarded.orthogonalize(&mut workspace, &input, 17, 31, &mut out);
    assert_eq!(result, Err(NumericsError::Diverged { matrix: 0 }));
}

#[test]
fn output_singular_values_lie_in_the_stated_bands() {
    for (set, low, high) in
        [(Coefficients::PolarExpress, 0.846, 1.124), (Coefficients::You, 0.978, 1.145)]
    {
        for (rows, cols) in [(17, 31), (64, 64), (129, 65)] {
            let input = matrix(Kind::Condition(50.0), rows, cols, 1);
            let config = NewtonSchulzConfig::new().with_coefficients(set.clone());
            let out = run(config, &input, rows, cols);
            let dense = Mat::from_fn(rows, cols, |i, j| f64::from(out[i * cols + j]));
            for sigma in dense.singular_values().unwrap() {
                assert!(
                    (low - BAND_ROUNDING..high + BAND_ROUNDING).contains(&sigma),
                    "{set:?} {rows}x{cols}: {sigma}"
                );
            }
        }
    }
}

#[test]
fn every_number_of_steps_is_honoured() {
    let input = matrix(Kind::Gaussian, 17, 31, 3);
    for form in [Form::Direct, Form::Gram] {
        let mut seen: Vec<Vec<f32>> = Vec::new();
        for ns_steps in 1..=5 {
            let config = NewtonSchulzConfig::new().with_ns_steps(ns_steps).with_form(form);
            let out = run(config, &input, 17, 31);
            let schedule = Coefficients::PolarExpress.schedule(ns_steps).unwrap();
            let (largest, _) = errors(&out, &oracle(&input, 17, 31, &schedule));
            assert!(largest < GRAM_ERROR, "{ns_steps} steps: {largest:.1e}");
            assert!(!seen.contains(&out), "{ns_steps} steps gave an earlier result");
            seen.push(out);
        }
    }
}

#[test]
fn both_forms_agree() {
    for (rows, cols) in SHAPES {
        let input = matrix(Kind::Gaussian, rows, cols, 5);
        let [direct, gram] = [Form::Direct, Form::Gram]
            .map(|form| run(NewtonSchulzConfig::new().with_form(form), &input, rows, cols));
        let direct: Vec<f64> = direct.into_iter().map(f64::from).collect();
        let (largest, relative) = errors(&gram, &direct);
        assert!(largest.max(relative) < GRAM_ERROR, "{rows}x{cols}: {largest:.1e}");
    }
}

#[test]
fn the_transpose_of_the_input_gives_the_transpose_of_the_output() {
    for (rows, cols) in SHAPES {
        let input = matrix(Kind::Gaussian, rows, cols, 7);
        let out = run(NewtonSchulzConfig::new(), &input, rows, cols);
        let turned = run(NewtonSchulzConfig::new(), &transposed(&input, rows, cols), cols, rows);
        for (a, b) in transposed(&out, rows, cols).into_iter().zip(turned) {
            assert!((a - b).abs() < TRANSPOSE_ROUNDING, "{rows}x{cols}: {a} and {b}");
        }
    }
}
