//! Sums in the canonical order, bit for bit.

use crate::suite::{Engine, assert_bits, at_all_sizes, input, run, value};
use dmuon_core::Op;

/// Nothing, one, odd, and more than one parallel task.
const NUM_ELEMS: [usize; 4] = [0, 1, 1023, (1 << 17) + 5];

/// The canonical sum by its definition.
fn naive_sum(values: &[f32]) -> f32 {
    match values {
        [value] => *value,
        _ => {
            let mut split = 1;
            while 2 * split < values.len() {
                split *= 2;
            }
            naive_sum(&values[..split]) + naive_sum(&values[split..])
        }
    }
}

fn sum_at(size: usize, at: usize) -> f32 {
    naive_sum(&(0..size).map(|rank| value(rank, at)).collect::<Vec<_>>())
}

pub(crate) fn reduce_sums_in_the_canonical_order<E: Engine>() {
    at_all_sizes::<E>(|world| {
        let (rank, size, group) = (world.rank().0, world.size(), world.group());
        for (num_elems, root) in NUM_ELEMS.into_iter().zip((0..size).rev().cycle()) {
            let own = input(rank, 0, num_elems);
            let output = run(&*group, Op::Reduce { root }, num_elems, Some(own))?;
            assert_eq!(output.is_some(), rank == root);
            if let Some(output) = output {
                assert_bits(output.as_f32(), (0..num_elems).map(|at| sum_at(size, at)));
            }
        }
        Ok(())
    });
}

pub(crate) fn all_reduce_gives_every_rank_the_same_bits<E: Engine>() {
    at_all_sizes::<E>(|world| {
        let (rank, size, group) = (world.rank().0, world.size(), world.group());
        for num_elems in NUM_ELEMS {
            let output = run(&*group, Op::AllReduce, num_elems, Some(input(rank, 0, num_elems)))?;
            let output = output.expect("every rank receives");
            assert_bits(output.as_f32(), (0..num_elems).map(|at| sum_at(size, at)));
        }
        Ok(())
    });
}

pub(crate) fn reduce_scatter_gives_each_rank_its_part<E: Engine>() {
    at_all_sizes::<E>(|world| {
        let (rank, size, group) = (world.rank().0, world.size(), world.group());
        for num_elems in NUM_ELEMS {
            let own = input(rank, 0, size * num_elems);
            let output = run(&*group, Op::ReduceScatter, num_elems, Some(own))?;
            let output = output.expect("every rank receives");
            let first = rank * num_elems;
            assert_bits(output.as_f32(), (0..num_elems).map(|at| sum_at(size, first + at)));
        }
        Ok(())
    });
}
