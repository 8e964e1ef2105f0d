//! Groups that HCCL has to be talked into: in another order than the world's, of other groups, alone.

use crate::{
    double,
    ranks::Ranks,
    suite::{PATIENCE, run},
};
use dmuon_core::{
    Axis, Buffer, Call, Element, Group, Mesh, MeshShape, Op, Result, SharedBuffer, Stream, World,
};
use std::{
    thread,
    time::{Duration, Instant},
};

const NUM_ELEMS: usize = 3;

/// Small whole numbers, whose sums are the same in any order: one for each rank, part and element.
fn number(rank: usize, part: usize, at: usize) -> f32 {
    (100 * rank + 10 * part + at) as f32
}

fn parts(rank: usize, num_parts: usize) -> SharedBuffer {
    let part = |part| (0..NUM_ELEMS).map(move |at| number(rank, part, at));
    let numbers: Vec<f32> = (0..num_parts).flat_map(part).collect();
    Buffer::from_elements(&numbers).freeze()
}

fn sums(ranks: &[usize], part: usize) -> Vec<f32> {
    (0..NUM_ELEMS).map(|at| ranks.iter().map(|rank| number(*rank, part, at)).sum()).collect()
}

/// Runs every collective of a group, which knows its members by their place in it.
fn every_collective_is_in_group_order(group: &dyn Group) -> Result<()> {
    let ranks: Vec<usize> = group.ranks().iter().map(|rank| rank.0).collect();
    let (place, size) = (group.rank(), group.size());
    let own = ranks[place];
    let every = "every rank receives";
    for root in 0..size {
        let input = (place == root).then(|| parts(own, 1));
        let output = run(group, Op::Broadcast { root }, NUM_ELEMS, input)?.expect(every);
        assert_eq!(output.as_f32(), parts(ranks[root], 1).as_f32());
        let output = run(group, Op::Reduce { root }, NUM_ELEMS, Some(parts(own, 1)))?;
        assert_eq!(
            output.map(|sum| sum.as_f32().to_vec()),
            (place == root).then(|| sums(&ranks, 0))
        );
    }
    let output = run(group, Op::AllReduce, NUM_ELEMS, Some(parts(own, 1)))?.expect(every);
    assert_eq!(output.as_f32(), sums(&ranks, 0));
    let output = run(group, Op::AllGather, NUM_ELEMS, Some(parts(own, 1)))?.expect(every);
    let expected: Vec<f32> =
        ranks.iter().flat_map(|rank| parts(*rank, 1).as_f32().to_vec()).collect();
    assert_eq!(output.as_f32(), expected);
    let output = run(group, Op::ReduceScatter, NUM_ELEMS, Some(parts(own, size)))?.expect(every);
    assert_eq!(output.as_f32(), sums(&ranks, place));
    let output = run(group, Op::AllToAll, NUM_ELEMS, Some(parts(own, size)))?.expect(every);
    let from = |rank: &usize| (0..NUM_ELEMS).map(|at| number(*rank, place, at)).collect::<Vec<_>>();
    assert_eq!(output.as_f32(), ranks.iter().flat_map(from).collect::<Vec<_>>());
    doubles_are_in_group_order(group, &ranks)?;
    run(group, Op::Barrier, 0, None).map(drop)
}

/// Sums that HCCL leaves to us, of numbers that single precision could not hold.
fn doubles_are_in_group_order(group: &dyn Group, ranks: &[usize]) -> Result<()> {
    const FINE: f64 = 1.0 / (1u64 << 40) as f64;
    let (place, size) = (group.rank(), group.size());
    let double = |rank: usize, part: usize| rank as f64 + part as f64 * FINE;
    let own: Vec<f64> = (0..size).map(|part| double(ranks[place], part)).collect();
    let sum = |part| ranks.iter().map(|rank| double(*rank, part)).sum::<f64>();
    let start = |op, num_elems| {
        let call = Call::new(op, "doubles", Element::F64, num_elems);
        group.start(call, Some(Buffer::from_elements(&own).freeze()))?.wait(PATIENCE)
    };
    let output = start(Op::AllReduce, size)?.expect("every rank receives");
    assert_eq!(output.elements::<f64>(), (0..size).map(sum).collect::<Vec<_>>());
    let output = start(Op::ReduceScatter, 1)?.expect("every rank receives");
    assert_eq!(output.elements::<f64>(), [sum(place)]);
    let output = start(Op::Reduce { root: size - 1 }, size)?;
    assert_eq!(output.is_some(), place == size - 1);
    Ok(())
}

#[test]
fn groups_may_have_any_order() {
    for size in [2, 3, 6] {
        Ranks::new(size).succeed(|world| {
            let rank = world.rank().0;
            every_collective_is_in_group_order(&*world.group())?;
            let reversed = world.group().split(0, size - rank, "reversed")?;
            every_collective_is_in_group_order(&*reversed)?;
            // Neither ascending nor descending: 0 2 4 1 3 5.
            let shuffled = world.group().split(0, rank % 2, "shuffled")?;
            every_collective_is_in_group_order(&*shuffled)
        });
    }
}

#[test]
fn groups_of_groups_are_made_of_the_world() {
    Ranks::new(8).succeed(|world| {
        let rank = world.rank().0;
        let half = world.group().split(rank / 4, 8 - rank, "half")?;
        let pair = half.split(half.rank() % 2, 0, "pair")?;
        for group in [&half, &pair, &half] {
            every_collective_is_in_group_order(&**group)?;
        }
        Ok(())
    });
}

#[test]
fn groups_of_one_need_no_library() {
    let ranks = Ranks::new(2);
    ranks.succeed(|world| {
        let alone = world.group().split(world.rank().0, 0, "alone")?;
        every_collective_is_in_group_order(&*alone)?;
        every_collective_is_in_group_order(&*alone.split(3, 1, "alone again")?)
    });
    assert_eq!(double::num_calls(ranks.device(0), "HcclAllReduce"), 0);
    Ranks::new(1).succeed(|world| every_collective_is_in_group_order(&*world.group()));
}

#[test]
fn meshes_reduce_along_both_axes() {
    for (replicate, shard) in [(2, 2), (2, 3)] {
        Ranks::new(replicate * shard).succeed(|world| {
            let mesh = Mesh::with_shape(&world, MeshShape::new(replicate, shard)?)?;
            for axis in [Axis::Shard, Axis::Replicate, Axis::Shard] {
                for stream in [Stream::Weights, Stream::Gradients] {
                    every_collective_is_in_group_order(&**mesh.group(axis, stream))?;
                }
            }
            Ok(())
        });
    }
}

/// Two collectives under way, in an order of this rank's own.
fn cross(world: &World, groups: [&dyn Group; 2]) -> Result<()> {
    let mut order = groups;
    if world.rank().0 % 2 == 1 {
        order.reverse();
    }
    let [first, second] = order.map(|group| group.start(Call::barrier("crossed"), None));
    first?.wait(PATIENCE)?;
    second?.wait(PATIENCE).map(drop)
}

/// The double connects ranks inside the first call of a kind, so that entering in different orders
/// would never end.
#[test]
fn all_ranks_enter_the_library_in_one_order() {
    let ranks = Ranks::new(4);
    ranks.succeed(|world| {
        let here = world.group();
        let there = here.split(0, world.rank().0, "there")?;
        for _ in 0..20 {
            cross(&world, [&*here, &*there])?;
        }
        Ok(())
    });
    let issued = double::issued(ranks.device(0));
    assert!(issued.len() >= 40, "{} collectives", issued.len());
    assert!((1..4).all(|rank| double::issued(ranks.device(rank)) == issued));
}

#[test]
fn everything_on_the_device_is_returned() {
    let ranks = Ranks::new(3);
    ranks.succeed(|world| {
        let reversed = world.group().split(0, 3 - world.rank().0, "reversed")?;
        every_collective_is_in_group_order(&*reversed)
    });
    // Groups end with their threads, soon after the world.
    let start = Instant::now();
    let num_live = || (0..3).map(|rank| double::num_live(ranks.device(rank))).sum::<i64>();
    while num_live() > 0 && start.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(num_live(), 0);
}
