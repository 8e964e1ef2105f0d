//! The canonical order of every sum over ranks: a tree, the same for all engines, chunks, threads.

use bytemuck::Pod;
use rayon::prelude::*;
use std::ops::Add;

/// Elements per parallel task.
const TASK_ELEMS: usize = 1 << 16;

/// Elements per inner block: the partial sums of one block stay in the nearest cache.
const BLOCK_ELEMS: usize = 1 << 10;

/// An element that can be summed.
pub trait Summand: Pod + Send + Sync + Add<Output = Self> {}

impl Summand for f32 {}
impl Summand for f64 {}

/// Where the tree over `num_inputs >= 2` splits: the largest power of two below it.
///
/// Six inputs sum as `((0 + 1) + (2 + 3)) + (4 + 5)`.
pub fn tree_split(num_inputs: usize) -> usize {
    num_inputs.next_power_of_two() / 2
}

/// Writes the elementwise tree sum of `inputs` to `output`, reading every input once.
///
/// # Panics
/// There are no inputs, or an input and the output differ in length.
pub fn tree_sum<T: Summand>(inputs: &[&[T]], output: &mut [T]) {
    assert!(!inputs.is_empty(), "a sum needs an input");
    assert!(inputs.iter().all(|input| input.len() == output.len()), "lengths differ");
    if output.len() <= TASK_ELEMS {
        // Not worth a trip through the thread pool, which may be busy with a long product.
        return sum_task(inputs, 0, output);
    }
    output.par_chunks_mut(TASK_ELEMS).enumerate().for_each(|(task, output)| {
        let _span = tracing::trace_span!("sum").entered();
        sum_task(inputs, task * TASK_ELEMS, output);
    });
}

/// Sums one task of all inputs, which starts at element `start`.
fn sum_task<T: Summand>(inputs: &[&[T]], start: usize, output: &mut [T]) {
    for (block, output) in output.chunks_mut(BLOCK_ELEMS).enumerate() {
        sum_block(inputs, start + block * BLOCK_ELEMS, output);
    }
}

/// Sums one block of all inputs, which starts at element `start`.
fn sum_block<T: Summand>(inputs: &[&[T]], start: usize, output: &mut [T]) {
    let range = start..start + output.len();
    match inputs {
        [a] => output.copy_from_slice(&a[range]),
        [a, b] => {
            let (a, b) = (&a[range.clone()], &b[range]);
            for (out, (a, b)) in output.iter_mut().zip(a.iter().zip(b)) {
                *out = *a + *b;
            }
        }
        [a, b, c, d] => {
            let (a, b) = (&a[range.clone()], &b[range.clone()]);
            let (c, d) = (&c[range.clone()], &d[range]);
            let pairs = a.iter().zip(b).zip(c.iter().zip(d));
            for (out, ((a, b), (c, d))) in output.iter_mut().zip(pairs) {
                *out = (*a + *b) + (*c + *d);
            }
        }
        _ => {
            let (left, right) = inputs.split_at(tree_split(inputs.len()));
            let mut partial = [T::zeroed(); BLOCK_ELEMS];
            let partial = &mut partial[..output.len()];
            sum_block(left, start, output);
            sum_block(right, start, partial);
            for (out, partial) in output.iter_mut().zip(partial) {
                *out = *out + *partial;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, one element at a time.
    fn naive(inputs: &[&[f32]], at: usize) -> f32 {
        match inputs {
            [input] => input[at],
            _ => {
                let mut split = 1;
                while 2 * split < inputs.len() {
                    split *= 2;
                }
                naive(&inputs[..split], at) + naive(&inputs[split..], at)
            }
        }
    }

    fn assert_same_bits(inputs: &[Vec<f32>]) {
        let inputs: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
        let mut output = vec![f32::NAN; inputs[0].len()];
        tree_sum(&inputs, &mut output);
        for (at, out) in output.iter().enumerate() {
            assert_eq!(out.to_bits(), naive(&inputs, at).to_bits(), "element {at}");
        }
    }

    #[test]
    fn six_inputs_split_four_and_two() {
        let inputs = [1e8f32, 1.0, -1e8, 1.0, 3.0, 0.5].map(|x| [x]);
        let inputs: Vec<&[f32]> = inputs.iter().map(|x| &x[..]).collect();
        let mut output = [0.0];
        tree_sum(&inputs, &mut output);
        assert_eq!(output[0], ((1e8f32 + 1.0) + (-1e8 + 1.0)) + (3.0 + 0.5));
    }

    #[test]
    fn block_and_task_edges_do_not_matter() {
        for len in [0, 1, BLOCK_ELEMS - 1, BLOCK_ELEMS + 1, TASK_ELEMS, TASK_ELEMS + 7] {
            for num_inputs in [1, 2, 3, 4, 5, 8] {
                let inputs: Vec<Vec<f32>> = (0..num_inputs)
                    .map(|input| (0..len).map(|i| ((i * 7 + input) as f32).sin()).collect())
                    .collect();
                assert_same_bits(&inputs);
            }
        }
    }

    proptest! {
        #[test]
        fn matches_the_definition_bit_for_bit(
            inputs in (1..12usize, 0..40usize).prop_flat_map(|(num, len)| {
                let values = -1e30f32..1e30;
                prop::collection::vec(prop::collection::vec(values, len), num)
            })
        ) {
            assert_same_bits(&inputs);
        }
    }
}
