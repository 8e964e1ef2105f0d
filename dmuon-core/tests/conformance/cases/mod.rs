//! The cases, by what they are about; every engine runs all of them.

pub(crate) mod collectives;
pub(crate) mod failures;
pub(crate) mod flight;
pub(crate) mod groups;

/// Every case of the suite as a test of one engine.
macro_rules! for_engine {
    ($engine:ident) => {
        $crate::suite::conformance! { super::$engine:
            collectives::{
                broadcast_reaches_every_rank,
                all_gather_concatenates_in_group_order,
                all_to_all_transposes,
                barrier_has_no_output,
                doubles_sum_and_bytes_move,
                sums_are_right_to_rounding,
                halves_sum_in_single_precision_and_round_once,
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
                mesh_groups_reduce_apart,
                mesh_that_does_not_fit_is_refused_before_any_collective,
                split_orders_by_key,
                groups_of_groups_work,
                traffic_counts_others_times_payload,
            }
            failures::{
                missing_rank_is_named_within_the_deadline,
                different_calls_are_reported_on_every_rank,
                different_sizes_are_reported_with_their_sizes,
                panicking_rank_is_named_everywhere,
                raised_error_is_typed_on_its_own_rank,
                failing_rank_is_named_everywhere,
                early_return_is_noticed_while_waiting,
                abort_reaches_waiting_ranks,
                failed_groups_refuse_at_once,
                wrong_input_fails_everybody,
                bytes_are_never_summed,
                root_must_exist,
            }
        }
    };
}
pub(crate) use for_engine;
