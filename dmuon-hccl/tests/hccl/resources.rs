//! All-to-alls that devices lack the resources for: on all ranks, on some, and too late.

use crate::{
    double,
    ranks::{Ranks, assert_all_contain},
    suite::{input, run, value},
};
use dmuon_core::{Group, Op, Result};

const NUM_ELEMS: usize = 129;

fn all_to_all(group: &dyn Group) -> Result<()> {
    let (own, size, place) = (group.ranks()[group.rank()].0, group.size(), group.rank());
    let output = run(group, Op::AllToAll, NUM_ELEMS, Some(input(own, 0, size * NUM_ELEMS)))?;
    let output = output.expect("every rank receives");
    for (part, from) in output.as_f32().chunks(NUM_ELEMS).zip(group.ranks()) {
        let sent = (0..NUM_ELEMS).map(|at| value(from.0, place * NUM_ELEMS + at));
        assert!(part.iter().copied().eq(sent), "what {from:?} sent");
    }
    Ok(())
}

/// On every rank of a world of three.
fn refuse_all(number: u32) -> Ranks {
    let ranks = Ranks::new(3);
    (0..3).for_each(|rank| double::refuse_all_to_all(ranks.device(rank), number));
    ranks
}

#[test]
fn refused_on_all_ranks_broadcasts_take_its_place() {
    for number in [7, 11] {
        let ranks = refuse_all(number);
        ranks.succeed(|world| {
            all_to_all(&*world.group())?;
            all_to_all(&*world.group())?;
            run(&*world.group(), Op::Barrier, 0, None).map(drop)
        });
        for rank in 0..3 {
            let device = ranks.device(rank);
            assert_eq!(double::num_calls(device, "HcclAlltoAll"), 1, "asked once");
            assert_eq!(double::num_calls(device, "HcclBroadcast"), 6, "one from each, twice");
        }
    }
}

#[test]
fn broadcasts_keep_the_order_of_the_group() {
    refuse_all(7).succeed(|world| {
        let reversed = world.group().split(0, 3 - world.rank().0, "reversed")?;
        all_to_all(&*reversed)?;
        all_to_all(&*reversed)?;
        all_to_all(&*world.group())
    });
}

#[test]
fn accepted_once_it_is_trusted() {
    let ranks = Ranks::new(3);
    ranks.succeed(|world| {
        all_to_all(&*world.group())?;
        all_to_all(&*world.group())
    });
    assert_eq!(double::num_calls(ranks.device(1), "HcclAlltoAll"), 2);
    assert_eq!(double::num_calls(ranks.device(1), "HcclBroadcast"), 0);
}

#[test]
fn refused_on_some_ranks_fails_all_and_names_them_and_the_cure() {
    for (number, reason) in [(7, "EI0007"), (11, "EI0011")] {
        let ranks = Ranks::new(4);
        double::refuse_all_to_all(ranks.device(1), number);
        double::refuse_all_to_all(ranks.device(2), number);
        let texts = ranks.texts(|world| all_to_all(&*world.group()));
        let lack = format!("ranks [1, 2] lack resources ({reason}");
        let parts = [&lack, "ranks [0, 3] wait", "HCCL_BUFFSIZE", "all_to_all of \"layers.0\""];
        assert_all_contain(&texts, &parts);
    }
}

#[test]
fn ranks_in_a_group_are_named_as_the_world_knows_them() {
    let ranks = Ranks::new(4);
    double::refuse_all_to_all(ranks.device(3), 7);
    let texts = ranks.texts(|world| {
        let rank = world.rank().0;
        let side = world.group().split(rank / 2, 4 - rank, "side")?;
        all_to_all(&*side)?;
        run(&*world.group(), Op::Barrier, 0, None).map(drop)
    });
    assert_all_contain(&texts, &["ranks [3] lack resources (EI0007", "ranks [2] wait"]);
}

#[test]
fn whoever_gives_up_on_a_refused_rank_blames_its_resources() {
    let ranks = Ranks::new(3);
    double::refuse_all_to_all(ranks.device(1), 7);
    for waiting in [0, 2] {
        double::refuse_all_to_all(ranks.device(waiting), 6);
    }
    let texts = ranks.texts(|world| all_to_all(&*world.group()));
    assert_all_contain(&texts, &["ranks [1] lack resources (EI0007", "ranks [0, 2] wait"]);
}

#[test]
fn refused_for_another_reason_is_that() {
    let ranks = Ranks::new(2);
    double::refuse_all_to_all(ranks.device(0), 6);
    let texts = ranks.texts(|world| all_to_all(&*world.group()));
    assert_all_contain(&texts, &["HcclAlltoAll returned 9", "timeout: EI0006"]);
}

#[test]
fn refused_after_it_was_trusted_says_what_to_do() {
    let ranks = Ranks::new(2);
    let texts = ranks.texts(|world| {
        all_to_all(&*world.group())?;
        double::refuse_all_to_all(ranks.device(world.rank().0), 11);
        all_to_all(&*world.group())
    });
    assert_all_contain(&texts, &["HcclAlltoAll returned 24", "EI0011", "lower HCCL_BUFFSIZE"]);
}
