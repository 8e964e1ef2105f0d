//! Ranks wait only for those whose data they need.

use crate::{
    cases::failures::assert_all_contain,
    suite::{Engine, input, run, texts},
};
use dmuon_core::Op;

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
