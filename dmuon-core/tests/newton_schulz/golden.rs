//! Golden values: one 2 × 3 matrix, printed to six decimals.

use dmuon_core::newton_schulz::{
    Coefficients, Form, NewtonSchulz, NewtonSchulzConfig, Parallelism, Workspace,
};

/// Six printed decimals, 5e-7, and what the direct form rounds: its first quintic makes 1 out of
/// terms that sum to 42 in size, so some 42 roundings of 6e-8, which are then halved or doubled.
const DIRECT_ROUNDING: f32 = 3e-6;

/// The Gram form squares the matrix first: rounding of 6e-8 in a Gram matrix whose small
/// eigenvalue is 0.0066 is a relative 1e-5 in that eigenvalue, and of that order in the result.
const GRAM_ROUNDING: f32 = 3e-5;

const INPUT: [f32; 6] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];

/// Newton's cubic (3/2, −1/2) converges to the polar factor itself.
const CUBIC: [f64; 3] = [1.5, -0.5, 0.0];

fn assert_golden(set: Coefficients, ns_steps: usize, expected: [f32; 6]) {
    for (form, tolerance) in [(Form::Direct, DIRECT_ROUNDING), (Form::Gram, GRAM_ROUNDING)] {
        let config = NewtonSchulzConfig::new()
            .with_coefficients(set.clone())
            .with_ns_steps(ns_steps)
            .with_form(form);
        let mut out = [0.0; 6];
        let mut workspace = Workspace::new(Parallelism::Serial);
        let newton_schulz = NewtonSchulz::new(config).unwrap();
        newton_schulz.orthogonalize(&mut workspace, &INPUT, 2, 3, &mut out).unwrap();
        for (found, expected) in out.iter().zip(expected) {
            assert!((found - expected).abs() < tolerance, "{set:?} {form:?}: {out:?}");
        }
    }
}

#[test]
fn jordan_matches_its_golden_values() {
    let golden = [-0.568290, 0.057742, 0.683774, 0.563355, 0.405613, 0.247871];
    assert_golden(Coefficients::Jordan, 5, golden);
}

#[test]
fn you_matches_its_golden_values() {
    let golden = [-0.591518, 0.110997, 0.813512, 0.707256, 0.560562, 0.413868];
    assert_golden(Coefficients::You, 5, golden);
}

#[test]
fn polar_express_matches_its_golden_values() {
    let golden = [-0.491937, 0.143898, 0.779733, 0.710710, 0.606444, 0.502179];
    assert_golden(Coefficients::PolarExpress, 5, golden);
}

#[test]
fn a_converged_custom_schedule_is_the_polar_factor() {
    let golden = [-0.577792, 0.115117, 0.808025, 0.706746, 0.565757, 0.424769];
    assert_golden(Coefficients::Custom(vec![CUBIC; 16]), 16, golden);
}
