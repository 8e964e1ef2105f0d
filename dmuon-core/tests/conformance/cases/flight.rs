//! Collectives in flight: order, overlap, and who holds which memory meanwhile.

use crate::suite::{Engine, PATIENCE, all_succeed, assert_bits, at_all_sizes, input, run, value};
use dmuon_core::{Axis, Call, Element, Mesh, Op, Result, Stream, Work, World};

const NUM_ELEMS: usize = 33_333;

fn weights(world: &World, mesh: &Mesh, root: usize) -> Result<Work> {
    let group = mesh.group(Axis::Shard, Stream::Weights);
    let own = (world.rank().0 == root).then(|| input(root, 0, NUM_ELEMS));
    group.start(Call::new(Op::Broadcast { root }, "weights", Element::F32, NUM_ELEMS), own)
}

fn gradients(world: &World, mesh: &Mesh, root: usize) -> Result<Work> {
    let group = mesh.group(Axis::Shard, Stream::Gradients);
    let own = input(world.rank().0, 0, NUM_ELEMS);
    group.start(Call::new(Op::Reduce { root }, "gradients", Element::F32, NUM_ELEMS), Some(own))
}

pub(crate) fn many_in_flight_may_be_awaited_in_reverse<E: Engine>() {
    at_all_sizes::<E>(|world| {
        let mesh = Mesh::new(&world)?;
        let mut works = Vec::new();
        for round in 0..3 {
            works.push(weights(&world, &mesh, round % world.size())?);
            works.push(gradients(&world, &mesh, round % world.size())?);
        }
        for (index, work) in works.into_iter().enumerate().rev() {
            let root = index / 2 % world.size();
            let output = work.wait(PATIENCE)?;
            let expected = index % 2 == 0 || world.rank().0 == root;
            assert_eq!(output.is_some(), expected);
            if let (0, Some(output)) = (index % 2, output) {
                assert_bits(output.as_f32(), (0..NUM_ELEMS).map(|at| value(root, at)));
            }
        }
        Ok(())
    });
}

pub(crate) fn dropped_work_completes_for_others<E: Engine>() {
    at_all_sizes::<E>(|world| {
        let last = world.size() - 1;
        let mesh = Mesh::new(&world)?;
        let (loan, sum) = (weights(&world, &mesh, 0)?, gradients(&world, &mesh, last)?);
        if world.rank().0 % 2 == 0 && world.size() > 1 {
            drop((loan, sum));
        } else {
            loan.wait(PATIENCE)?;
            sum.wait(PATIENCE)?;
        }
        run(&*world.group(), Op::Barrier, 0, None).map(drop)
    });
}

pub(crate) fn starting_does_not_wait<E: Engine>() {
    all_succeed::<E>(2, |world| {
        let (here, there) = (world.group(), world.group().split(0, world.rank().0, "there")?);
        // The ranks start in opposite order: if a start waited, neither would get on.
        let order = if world.rank().0 == 0 { [&here, &there] } else { [&there, &here] };
        let [first, second] = order.map(|group| group.start(Call::barrier("crossed"), None));
        first?.wait(PATIENCE)?;
        second?.wait(PATIENCE).map(drop)
    });
}

pub(crate) fn inputs_are_free_after_the_wait<E: Engine>() {
    at_all_sizes::<E>(|world| {
        let own = input(world.rank().0, 0, NUM_ELEMS);
        let other_size = world.size() > 1;
        let output = run(&*world.group(), Op::AllReduce, NUM_ELEMS, Some(own.clone()))?;
        if other_size {
            assert!(own.try_into_unique().is_ok(), "the engine still holds the input");
        }
        drop(output);
        Ok(())
    });
}

pub(crate) fn reduced_output_is_unique<E: Engine>() {
    at_all_sizes::<E>(|world| {
        let own = input(world.rank().0, 0, NUM_ELEMS);
        let output = run(&*world.group(), Op::Reduce { root: 0 }, NUM_ELEMS, Some(own))?;
        if let Some(output) = output {
            let mut sum = output.try_into_unique().expect("only the root holds the sum");
            sum.as_f32_mut()[0] = 0.0;
        }
        Ok(())
    });
}
