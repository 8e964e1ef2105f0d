//! What the suite asks for, less the order of sums, on processes with the library's collectives.

use crate::{
    processes::run,
    suite::{self, Engine, PATIENCE, at_all_sizes, conformance, input, value},
};
use dmuon_core::{Collectives, EngineOptions, Op, Result, Verify, World};

struct Library;

impl Engine for Library {
    fn run(num_ranks: usize, body: fn(World) -> Result<()>) -> Vec<Result<()>> {
        let options = EngineOptions::default()
            .with_deadline(PATIENCE)
            .with_verify(Verify::Always)
            .with_collectives(Collectives::Library);
        run(num_ranks, &options, body)
    }
}

conformance! { super::Library:
    collectives::{
        broadcast_reaches_every_rank,
        all_gather_concatenates_in_group_order,
        all_to_all_transposes,
        barrier_has_no_output,
        doubles_sum_and_bytes_move,
    }
    flight::{
        many_in_flight_may_be_awaited_in_reverse,
        dropped_work_completes_for_others,
        starting_does_not_wait,
        inputs_are_free_after_the_wait,
        reduced_output_is_unique,
    }
    groups::{
        mesh_groups_are_rows_and_columns,
        mesh_that_does_not_fit_is_refused_before_any_collective,
        traffic_counts_others_times_payload,
    }
    failures::{
        missing_rank_is_named_within_the_deadline,
        different_calls_are_reported_on_every_rank,
        different_sizes_are_reported_with_their_sizes,
        panicking_rank_is_named_everywhere,
        failing_rank_is_named_everywhere,
        abort_reaches_waiting_ranks,
        failed_groups_refuse_at_once,
    }
}

const NUM_ELEMS: usize = 10_007;

/// Whatever the order, each of the n − 1 additions rounds a partial sum, which is no larger than
/// the sum of magnitudes, by half an ulp at most; twice that lies between any two orders.
fn assert_close(sums: &[f32], size: usize, first: usize) {
    for (at, sum) in sums.iter().enumerate() {
        let values = (0..size).map(|rank| f64::from(value(rank, first + at)));
        let (exact, magnitude) =
            values.fold((0.0, 0.0), |(sum, magnitude), v| (sum + v, magnitude + v.abs()));
        let tolerance = (size - 1) as f64 * f64::from(f32::EPSILON) * magnitude;
        let error = (f64::from(*sum) - exact).abs();
        assert!(error <= tolerance, "element {at}: {sum} for {exact}, tolerance {tolerance:e}");
    }
}

#[test]
fn sums_are_right_to_rounding() {
    at_all_sizes::<Library>(|world| {
        let (rank, size, group) = (world.rank().0, world.size(), world.group());
        let own = || Some(input(rank, 0, NUM_ELEMS));
        if let Some(sums) = suite::run(&*group, Op::Reduce { root: 0 }, NUM_ELEMS, own())? {
            assert_eq!(rank, 0);
            assert_close(sums.as_f32(), size, 0);
        }
        let sums = suite::run(&*group, Op::AllReduce, NUM_ELEMS, own())?;
        assert_close(sums.expect("every rank receives").as_f32(), size, 0);
        let parts = input(rank, 0, size * NUM_ELEMS);
        let sums = suite::run(&*group, Op::ReduceScatter, NUM_ELEMS, Some(parts))?;
        assert_close(sums.expect("every rank receives").as_f32(), size, rank * NUM_ELEMS);
        Ok(())
    });
}
