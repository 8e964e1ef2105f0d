//! What ranks learn when one of them is late, wrong, broken or gone.

use crate::suite::{Engine, PATIENCE, input, outcomes, run, texts};
use dmuon_core::{Buffer, Call, Element, Error, Op, Rank, Result, World, raise};
use std::{thread, time::Duration};

/// A deadline for waits that are meant to fail.
const SHORT: Duration = Duration::from_millis(200);

fn barrier(world: &World) -> Result<()> {
    run(&*world.group(), Op::Barrier, 0, None).map(drop)
}

pub(crate) fn assert_all_contain(texts: &[String], expected: &str) {
    for (rank, text) in texts.iter().enumerate() {
        assert!(text.contains(expected), "rank {rank} got {text:?} for {expected:?}");
    }
}

pub(crate) fn missing_rank_is_named_within_the_deadline<E: Engine>() {
    let texts = texts::<E>(4, |world| {
        let root = 2;
        let call = Call::new(Op::Broadcast { root }, "layers.0", Element::F32, 4);
        if world.rank().0 == root {
            // Stays in the world until another rank has given up on it.
            while world.group().health().is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
            return world.group().start(call, Some(input(root, 0, 4))).map(drop);
        }
        world.group().start(call, None)?.wait(SHORT).map(drop)
    });
    let expected = "broadcast of \"layers.0\" on world #0 timed out after 0.2 s; not arrived: [2]";
    assert_all_contain(&texts, expected);
    assert!(texts.iter().all(|text| *text == texts[0]), "one cause for all: {texts:?}");
}

pub(crate) fn different_calls_are_reported_on_every_rank<E: Engine>() {
    let texts = texts::<E>(3, |world| {
        let (rank, group) = (world.rank().0, world.group());
        let (op, label) = match rank {
            1 => (Op::Broadcast { root: 1 }, "layers.3"),
            _ => (Op::Reduce { root: 0 }, "layers.2"),
        };
        group
            .start(Call::new(op, label, Element::F32, 4), Some(input(rank, 0, 4)))?
            .wait(PATIENCE)?;
        barrier(&world)
    });
    let called = "called broadcast(\"layers.3\")";
    assert!(
        texts[0].contains("where rank 0 called reduce(\"layers.2\")") && texts[0].contains(called)
            || texts[0].contains("where rank 1 called broadcast(\"layers.3\")"),
        "{texts:?}"
    );
    assert_all_contain(&texts, &texts[0]);
}

pub(crate) fn different_sizes_are_reported_with_their_sizes<E: Engine>() {
    let texts = texts::<E>(2, |world| {
        let num_elems = 4 + world.rank().0;
        let own = input(0, 0, num_elems);
        run(&*world.group(), Op::AllReduce, num_elems, Some(own)).map(drop)
    });
    assert_all_contain(&texts, "rank 1 called all_reduce(\"layers.0\", 5 f32, 5 payload)");
    assert_all_contain(&texts, "where rank 0 called all_reduce(\"layers.0\", 4 f32, 4 payload)");
}

pub(crate) fn panicking_rank_is_named_everywhere<E: Engine>() {
    let texts = texts::<E>(4, |world| {
        assert!(world.rank().0 != 1, "out of luck");
        barrier(&world)
    });
    assert_all_contain(&texts, "rank 1 panicked: out of luck");
}

pub(crate) fn raised_error_is_typed_on_its_own_rank<E: Engine>() {
    let outcomes = outcomes::<E>(2, |world| {
        if world.rank().0 == 1 {
            raise(Error::EmptyWorld);
        }
        barrier(&world)
    });
    assert!(matches!(outcomes[1], Err(Error::EmptyWorld)), "{outcomes:?}");
    let Err(afar @ Error::RankFailed { rank: Rank(1), .. }) = &outcomes[0] else {
        panic!("{outcomes:?}");
    };
    assert!(matches!(afar.root_cause(), Error::EmptyWorld));
}

pub(crate) fn failing_rank_is_named_everywhere<E: Engine>() {
    let texts = texts::<E>(4, |world| {
        if world.rank().0 == 3 {
            return Err(Error::message("no more data"));
        }
        barrier(&world)
    });
    assert_eq!(texts[3], "no more data");
    assert_all_contain(&texts[..3], "rank 3 failed: no more data");
}

pub(crate) fn early_return_is_noticed_while_waiting<E: Engine>() {
    let texts = texts::<E>(4, |world| {
        if world.rank().0 == 0 {
            thread::sleep(SHORT);
            return Ok(());
        }
        run(&*world.group(), Op::Broadcast { root: 0 }, 4, None).map(drop)
    });
    assert_all_contain(&texts[1..], "rank 0 returned before broadcast of \"layers.0\" on world #0");
}

pub(crate) fn abort_reaches_waiting_ranks<E: Engine>() {
    let texts = texts::<E>(3, |world| {
        if world.rank().0 == 1 {
            thread::sleep(SHORT);
            world.fail(Error::message("the loss is not finite"));
            return world.group().health();
        }
        barrier(&world)
    });
    assert_all_contain(&texts, "rank 1 failed: the loss is not finite");
}

pub(crate) fn failed_groups_refuse_at_once<E: Engine>() {
    let texts = texts::<E>(2, |world| {
        let side = world.group().split(world.rank().0, 0, "alone")?;
        if world.rank().0 == 0 {
            world.fail(Error::message("first"));
            world.fail(Error::message("second"));
        }
        while world.group().health().is_ok() {
            thread::sleep(Duration::from_millis(5));
        }
        let refused = side.start(Call::barrier("later"), None).expect_err("the world has failed");
        let split = world.group().split(0, 0, "later").expect_err("the world has failed");
        assert_eq!(refused.to_string(), split.to_string());
        Err(refused)
    });
    assert_all_contain(&texts, "rank 0 failed: first");
}

pub(crate) fn wrong_input_fails_everybody<E: Engine>() {
    let texts = texts::<E>(2, |world| {
        let rank = world.rank().0;
        let own = input(rank, 0, 4 - rank);
        run(&*world.group(), Op::AllReduce, 4, Some(own)).map(drop)
    });
    let expected = "rank 1: all_reduce of \"layers.0\" on world #0 takes 16 bytes, got 12 bytes";
    assert_all_contain(&texts, expected);
}

pub(crate) fn bytes_are_never_summed<E: Engine>() {
    let texts = texts::<E>(2, |world| {
        let call = Call::new(Op::AllReduce, "flags", Element::U8, 1);
        let own = Buffer::zeroed(1).freeze();
        world.group().start(call, Some(own))?.wait(PATIENCE).map(drop)
    });
    assert_all_contain(&texts, "all_reduce of \"flags\" on world #0 cannot sum u8 elements");
}

pub(crate) fn root_must_exist<E: Engine>() {
    let texts =
        texts::<E>(2, |world| run(&*world.group(), Op::Broadcast { root: 2 }, 1, None).map(drop));
    let expected = "broadcast of \"layers.0\" on world #0 has root 2, but the group has 2 ranks";
    assert_all_contain(&texts, expected);
}
