//! What is refused, and that the message says where.

use dmuon_core::newton_schulz::{
    Coefficients, NewtonSchulz, NewtonSchulzConfig, NumericsError, Parallelism, Restart, Workspace,
};

fn orthogonalize(input: &[f32], shape: [usize; 3], out: &mut [f32]) -> Result<(), NumericsError> {
    let newton_schulz = NewtonSchulz::new(NewtonSchulzConfig::new()).unwrap();
    let mut workspace = Workspace::new(Parallelism::Serial);
    newton_schulz.orthogonalize_batch(&mut workspace, input, shape, out)
}

#[test]
fn a_nan_or_infinity_is_named_by_place_and_nothing_is_written() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut input = vec![1.0; 12];
        input[6 + 5] = bad;
        let mut out = [7.0; 12];
        let error = orthogonalize(&input, [2, 2, 3], &mut out).unwrap_err();
        let NumericsError::NonFiniteInput { matrix: 1, row: 1, col: 2, value } = error else {
            panic!("{error:?}");
        };
        assert_eq!(value.to_bits(), bad.to_bits());
        assert_eq!(out[6..], [7.0; 6]);
    }
}

#[test]
fn the_first_matrix_at_fault_is_named_on_any_number_of_threads() {
    let newton_schulz = NewtonSchulz::new(NewtonSchulzConfig::new()).unwrap();
    for shape in [[6, 4, 9], [6, 70, 66]] {
        let [batch, rows, cols] = shape;
        let mut input = vec![1.0; batch * rows * cols];
        for matrix in [2, 4] {
            input[matrix * rows * cols + cols + 3] = f32::NAN;
        }
        for threads in 1..=3 {
            let parallelism = Parallelism::Threads(std::num::NonZeroUsize::new(threads).unwrap());
            let mut workspace = Workspace::new(parallelism);
            let mut out = vec![0.0; input.len()];
            let error = newton_schulz
                .orthogonalize_batch(&mut workspace, &input, shape, &mut out)
                .unwrap_err();
            let NumericsError::NonFiniteInput { matrix: 2, row: 1, col: 3, .. } = error else {
                panic!("{error:?}");
            };
        }
    }
}

#[test]
fn the_largest_numbers_are_no_infinity() {
    let mut out = [0.0; 6];
    orthogonalize(&[f32::MAX, 0.0, f32::MIN, 1.0, f32::MAX, 0.0], [1, 2, 3], &mut out).unwrap();
    assert!(out.iter().all(|v| v.is_finite()));
}

#[test]
fn slices_of_another_length_and_empty_matrices_are_refused() {
    let error = orthogonalize(&[0.0; 5], [1, 2, 3], &mut [0.0; 6]).unwrap_err();
    assert_eq!(error.to_string(), "input holds 5 elements where the shape asks for 6");
    let error = orthogonalize(&[0.0; 6], [1, 2, 3], &mut [0.0; 7]).unwrap_err();
    assert_eq!(error.to_string(), "out holds 7 elements where the shape asks for 6");
    let error = orthogonalize(&[], [1, 0, 3], &mut []).unwrap_err();
    assert_eq!(error, NumericsError::EmptyMatrix { rows: 0, cols: 3 });
    assert_eq!(orthogonalize(&[], [0, 2, 3], &mut []), Ok(()));
}

#[test]
fn settings_are_checked_once_when_the_run_is_made() {
    let config = NewtonSchulzConfig::new;
    let cases = [
        (config().with_ns_steps(0), "1 to 5 steps"),
        (config().with_ns_steps(6), "6 were asked"),
        (config().with_eps(f64::NAN), "eps"),
        (config().with_eps(-1e-7), "eps"),
        (config().with_restart(Restart::At(vec![5])), "1..5"),
    ];
    for (config, part) in cases {
        let message = NewtonSchulz::new(config).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn eps_has_no_effect() {
    let input = [1e-20, 2e-20, 3e-20, -1e-20, 0.0, 1e-20];
    let [small, large] = [0.0, 1e3]
        .map(|eps| crate::inputs::run(NewtonSchulzConfig::new().with_eps(eps), &input, 2, 3));
    assert_eq!(small, large);
}

#[test]
fn diverging_coefficients_are_an_error_and_not_a_nan() {
    let config = NewtonSchulzConfig::new()
        .with_coefficients(Coefficients::Custom(vec![[1e20, 1.0, 1.0]; 3]))
        .with_ns_steps(3);
    let newton_schulz = NewtonSchulz::new(config).unwrap();
    let mut workspace = Workspace::new(Parallelism::Serial);
    let input = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let result = newton_schulz.orthogonalize(&mut workspace, &input, 2, 3, &mut [0.0; 6]);
    assert_eq!(result, Err(NumericsError::Diverged { matrix: 0 }));
}
