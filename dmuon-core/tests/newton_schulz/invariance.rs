//! What the result must not depend on: scale, threads, alignment, batch, history. Bit for bit.

use std::num::NonZeroUsize;

use dmuon_core::newton_schulz::{
    Form, NewtonSchulz, NewtonSchulzConfig, Parallelism, Precision, Workspace,
};
use proptest::prelude::*;

use crate::inputs::{KINDS, Kind, SHAPES, bits, matrix, run, run_with};

/// Multiplying by 1e±9 rounds every input element by up to 6e-8, which passes through the slope
/// of the quintics, at most 780.
const DECIMAL_SCALE_ROUNDING: f32 = 1e-4;

fn config(form: Form) -> NewtonSchulzConfig {
    NewtonSchulzConfig::new().with_form(form)
}

fn threads(count: usize) -> Parallelism {
    Parallelism::Threads(NonZeroUsize::new(count).unwrap())
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
    let shapes = SHAPES.into_iter().chain([(300, 300), (200, 1100), (1100, 130)]);
    for (rows, cols) in shapes {
        let input = matrix(Kind::Gaussian, rows, cols, 11);
        for form in [Form::Direct, Form::Gram] {
            let serial = bits(&run(config(form), &input, rows, cols));
            for count in 1..=4 {
                let parallelism = threads(count);
                let out = pool.install(|| run_with(config(form), parallelism, &input, rows, cols));
                assert!(bits(&out) == serial, "{form:?} {rows}x{cols} on {count} threads");
            }
        }
    }
}

#[test]
fn alignment_does_not_change_a_bit() {
    let mut workspace = Workspace::new(Parallelism::Serial);
    for (rows, cols) in SHAPES {
        let input = matrix(Kind::Gaussian, rows, cols, 13);
        let newton_schulz = NewtonSchulz::new(config(Form::Auto)).unwrap();
        let expected = bits(&run(config(Form::Auto), &input, rows, cols));
        for offset in [1, 2, 3, 5, 9, 15] {
            let shifted = [&vec![0.0; offset], &input[..]].concat();
            let mut out = vec![0.0; input.len() + 16 - offset];
            let out = &mut out[16 - offset..];
            newton_schulz
                .orthogonalize(&mut workspace, &shifted[offset..], rows, cols, out)
                .unwrap();
            assert!(bits(out) == expected, "{rows}x{cols} at offset {offset}");
        }
    }
}

#[test]
fn bf16_products_keep_the_same_promises() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
    let config = config(Form::Direct).with_precision(Precision::Bf16Products);
    for (rows, cols) in [(65, 65), (130, 210), (210, 130), (300, 300)] {
        let input = matrix(Kind::Gaussian, rows, cols, 31);
        let expected = bits(&run(config.clone(), &input, rows, cols));
        for count in 2..=4 {
            let run = || run_with(config.clone(), threads(count), &input, rows, cols);
            assert!(bits(&pool.install(run)) == expected, "{rows}x{cols} on {count} threads");
        }
        for factor in [2f32.powi(-30), 2f32.powi(30)] {
            let scaled: Vec<f32> = input.iter().map(|v| v * factor).collect();
            assert!(bits(&run(config.clone(), &scaled, rows, cols)) == expected, "{factor:e}");
        }
        let newton_schulz = NewtonSchulz::new(config.clone()).unwrap();
        let mut workspace = Workspace::new(Parallelism::Serial);
        let shifted = [&[0.0; 5], &input[..]].concat();
        let mut out = vec![0.0; input.len() + 3];
        newton_schulz
            .orthogonalize(&mut workspace, &shifted[5..], rows, cols, &mut out[3..])
            .unwrap();
        assert!(bits(&out[3..]) == expected, "{rows}x{cols} elsewhere in memory");
    }
}

#[test]
fn a_batch_over_threads_equals_its_matrices_one_by_one() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
    for precision in [Precision::F32, Precision::Bf16Products] {
        for [batch, rows, cols] in [[7, 24, 500], [3, 500, 24], [5, 66, 70], [2, 90, 90]] {
            let config = config(Form::Auto).with_precision(precision);
            let input = matrix(Kind::Gaussian, batch * rows, cols, 37);
            let one_by_one: Vec<u32> = input
                .chunks(rows * cols)
                .flat_map(|one| bits(&run(config.clone(), one, rows, cols)))
                .collect();
            let newton_schulz = NewtonSchulz::new(config).unwrap();
            for count in 1..=4 {
                let mut workspace = Workspace::new(threads(count));
                let mut out = vec![0.0; input.len()];
                let shape = [batch, rows, cols];
                pool.install(|| {
                    newton_schulz.orthogonalize_batch(&mut workspace, &input, shape, &mut out)
                })
                .unwrap();
                assert!(bits(&out) == one_by_one, "{shape:?} on {count} threads");
            }
        }
    }
}

#[test]
fn a_used_workspace_gives_the_bits_of_a_fresh_one_and_stops_growing() {
    let newton_schulz = NewtonSchulz::new(config(Form::Auto)).unwrap();
    let mut workspace = Workspace::new(Parallelism::Serial);
    let mut after_first_pass = 0;
    for pass in 0..2 {
        for (rows, cols) in SHAPES.into_iter().rev() {
            let input = matrix(Kind::Gaussian, rows, cols, 17);
            let mut out = vec![0.0; input.len()];
            newton_schulz.orthogonalize(&mut workspace, &input, rows, cols, &mut out).unwrap();
            let fresh = run(config(Form::Auto), &input, rows, cols);
            assert!(bits(&out) == bits(&fresh), "{rows}x{cols}");
        }
        if pass == 0 {
            after_first_pass = workspace.allocated_bytes();
        }
    }
    assert_eq!(workspace.allocated_bytes(), after_first_pass);
}

#[test]
fn powers_of_two_cancel_for_every_kind_and_form() {
    for kind in KINDS {
        for (rows, cols) in SHAPES {
            let input = matrix(kind, rows, cols, 19);
            for form in [Form::Direct, Form::Gram] {
                let expected = bits(&run(config(form), &input, rows, cols));
                for factor in [2f32.powi(-30), 2f32.powi(-7), 2f32.powi(20)] {
                    let scaled: Vec<f32> = input.iter().map(|v| v * factor).collect();
                    // A factor that flushes elements to zero is another matrix.
                    if scaled.iter().all(|v| v.is_normal()) {
                        let out = run(config(form), &scaled, rows, cols);
                        assert!(bits(&out) == expected, "{kind:?} {form:?} {rows}x{cols}");
                    }
                }
            }
        }
    }
}

#[test]
fn decimal_factors_change_no_more_than_rounding() {
    let input = matrix(Kind::Gaussian, 17, 31, 23);
    let expected = run(config(Form::Direct), &input, 17, 31);
    for factor in [1e-9, 1e9, 1e-20, 1e30] {
        let scaled: Vec<f32> = input.iter().map(|v| v * factor).collect();
        let out = run(config(Form::Direct), &scaled, 17, 31);
        for (a, b) in out.iter().zip(&expected) {
            assert!((a - b).abs() < DECIMAL_SCALE_ROUNDING, "{factor}: {a} and {b}");
        }
    }
}

#[test]
fn zero_stays_zero_and_the_smallest_number_does_not() {
    for (rows, cols) in SHAPES {
        let out = run(config(Form::Auto), &vec![0.0; rows * cols], rows, cols);
        assert!(out.iter().all(|v| v.to_bits() == 0));
    }
    let smallest = f32::from_bits(1);
    let mut input = vec![0.0; 6];
    input[4] = -smallest;
    let out = run(config(Form::Direct), &input, 2, 3);
    assert!((-1.13..-0.84).contains(&out[4]), "{out:?}");
    assert!((0..6).all(|i| i == 4 || out[i] == 0.0), "{out:?}");
}

fn batch() -> impl Strategy<Value = ([usize; 3], Vec<f32>)> {
    (1usize..4, 1usize..20, 1usize..20).prop_flat_map(|(batch, rows, cols)| {
        let element = prop_oneof![4 => -4.0f32..4.0, 1 => Just(0.0f32)];
        let values = prop::collection::vec(element, batch * rows * cols);
        values.prop_map(move |values| ([batch, rows, cols], values))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_batch_equals_its_matrices_one_by_one((shape, input) in batch()) {
        let newton_schulz = NewtonSchulz::new(config(Form::Auto)).unwrap();
        let mut workspace = Workspace::new(Parallelism::Serial);
        let mut out = vec![0.0; input.len()];
        newton_schulz.orthogonalize_batch(&mut workspace, &input, shape, &mut out).unwrap();
        let [_, rows, cols] = shape;
        for (one, batched) in input.chunks(rows * cols).zip(out.chunks(rows * cols)) {
            prop_assert_eq!(bits(&run(config(Form::Auto), one, rows, cols)), bits(batched));
        }
    }

    #[test]
    fn scaling_by_a_power_of_two_gives_the_same_bits(
        (shape, input) in batch(),
        exponent in -30i32..=30,
    ) {
        let [batch, rows, cols] = shape;
        // Elements below 2^-90 would leave the normal numbers.
        let input: Vec<f32> = input.iter().map(|v| if v.abs() < 1e-20 { 0.0 } else { *v }).collect();
        let scaled: Vec<f32> = input.iter().map(|v| v * 2f32.powi(exponent)).collect();
        let rows = batch * rows;
        for form in [Form::Direct, Form::Gram] {
            let plain = run(config(form), &input, rows, cols);
            prop_assert_eq!(bits(&plain), bits(&run(config(form), &scaled, rows, cols)));
        }
    }
}
