//! What engines promise beyond that whose collectives are dmuon's own: sums in one order, and no wait
//! for ranks that a call does not need.

use crate::{
    cases::{collectives::NUM_ELEMS, failures::assert_all_contain},
    suite::{Engine, assert_bits, at_all_sizes, input, run, texts, value},
};
use dmuon_core::Op;

/// Every such case as a test of one engine.
macro_rules! for_engine {
    ($engine:ident) => {
        $crate::canonical::tests! { $engine:
            reduce_sums_in_the_canonical_order,
            all_reduce_gives_every_rank_the_same_bits,
            reduce_scatter_gives_each_rank_its_part,
            early_return_fails_only_those_who_need_it,
        }
    };
}
pub(crate) use for_engine;

macro_rules! tests {
    ($engine:ident: $($case:ident),* $(,)?) => {
        mod order {
            $(#[test]
            fn $case() {
                crate::canonical::$case::<super::$engine>();
            })*
        }
    };
}
pub(crate) use tests;

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

pub(crate) fn early_return_fails_only_those_who_need_it<E: Engine>() {
    let texts = texts::<E>(3, |world| {
        let (rank, group) = (world.rank().0, world.group());
        if rank == 2 {
            return Ok(());
        }
        let own = (rank == 0).then(|| input(0, 0, 4));
        run(&*group, Op::Broadcast { root: 0 }, 4, own)?;
        run(&*group, Op::AllReduce, 4, Some(input(rank, 0, 4))).map(drop)
    });
    assert_eq!(texts[2], "ok");
    assert_all_contain(
        &texts[..2],
        "rank 2 returned before all_reduce of \"layers.0\" on world #1",
    );
}
