//! The cases for engines that run collectives themselves, in the canonical order; libraries neither
//! promise that order nor let ranks go on without each other.

pub(crate) mod sums;
pub(crate) mod waits;

/// Every case of the suite as a test of one engine that keeps the order.
macro_rules! for_engine {
    ($engine:ident) => {
        $crate::cases::for_engine!($engine);
        $crate::suite::conformance! { order, super::$engine:
            sums::{
                reduce_sums_in_the_canonical_order,
                all_reduce_gives_every_rank_the_same_bits,
                reduce_scatter_gives_each_rank_its_part,
            }
            waits::{
                early_return_fails_only_those_who_need_it,
            }
        }
    };
}
pub(crate) use for_engine;
