//! What each collective puts out, against its definition.

use crate::suite::{Engine, PATIENCE, assert_bits, assert_sum, at_all_sizes, input, run, value};
use dmuon_core::{Buffer, BufferPool, Call, Element, FloatType, Op, Result, World};

/// Nothing, one, odd, and more than one parallel task.
pub(crate) const NUM_ELEMS: [usize; 4] = [0, 1, 1023, (1 << 17) + 5];

pub(crate) fn broadcast_reaches_every_rank<E: Engine>() {
    at_all_sizes::<E>(|world| {
        let (rank, group) = (world.rank().0, world.group());
        for (num_elems, root) in NUM_ELEMS.into_iter().zip((0..world.size()).cycle()) {
            let own = (rank == root).then(|| input(root, 0, num_elems));
            let output = run(&*group, Op::Broadcast { root }, num_elems, own)?;
            let output = output.expect("every rank receives");
            assert_bits(output.as_f32(), (0..num_elems).map(|at| value(root, at)));
        }
        Ok(())
    });
}

pub(crate) fn all_gather_concatenates_in_group_order<E: Engine>() {
    at_all_sizes::<E>(|world| {
        let (rank, size, group) = (world.rank().0, world.size(), world.group());
        for num_elems in NUM_ELEMS {
            let output = run(&*group, Op::AllGather, num_elems, Some(input(rank, 0, num_elems)))?;
            let output = output.expect("every rank receives");
            assert_eq!(output.as_f32().len(), size * num_elems);
            for from in 0..size {
                let part = &output.as_f32()[from * num_elems..(from + 1) * num_elems];
                assert_bits(part, (0..num_elems).map(|at| value(from, at)));
            }
        }
        Ok(())
    });
}

pub(crate) fn all_to_all_transposes<E: Engine>() {
    at_all_sizes::<E>(|world| {
        let (rank, size, group) = (world.rank().0, world.size(), world.group());
        for num_elems in NUM_ELEMS {
            let own = input(rank, 0, size * num_elems);
            let output = run(&*group, Op::AllToAll, num_elems, Some(own))?;
            let output = output.expect("every rank receives");
            for from in 0..size {
                let part = &output.as_f32()[from * num_elems..(from + 1) * num_elems];
                assert_bits(part, (0..num_elems).map(|at| value(from, rank * num_elems + at)));
            }
        }
        Ok(())
    });
}

pub(crate) fn barrier_has_no_output<E: Engine>() {
    at_all_sizes::<E>(|world| {
        for _ in 0..50 {
            let output = world.group().start(Call::barrier("step"), None)?.wait(PATIENCE)?;
            assert!(output.is_none());
        }
        Ok(())
    });
}

pub(crate) fn doubles_sum_and_bytes_move<E: Engine>() {
    at_all_sizes::<E>(|world| {
        let (rank, size) = (world.rank().0, world.size());
        sum_doubles(&world, rank, size)?;
        let own = Buffer::from_bytes(&[rank as u8; 3]).freeze();
        let call = Call::new(Op::AllGather, "names", Element::U8, 3);
        let output = world.group().start(call, Some(own))?.wait(PATIENCE)?;
        let output = output.expect("every rank receives");
        assert!(output.iter().enumerate().all(|(at, byte)| usize::from(*byte) == at / 3));
        Ok(())
    });
}

pub(crate) fn sums_are_right_to_rounding<E: Engine>() {
    at_all_sizes::<E>(|world| {
        let (rank, size, group) = (world.rank().0, world.size(), world.group());
        let num_elems = 10_007;
        let own = || Some(input(rank, 0, num_elems));
        if let Some(sums) = run(&*group, Op::Reduce { root: 0 }, num_elems, own())? {
            assert_eq!(rank, 0);
            assert_sums(sums.as_f32(), size, 0);
        }
        let sums = run(&*group, Op::AllReduce, num_elems, own())?;
        assert_sums(sums.expect("every rank receives").as_f32(), size, 0);
        let parts = input(rank, 0, size * num_elems);
        let sums = run(&*group, Op::ReduceScatter, num_elems, Some(parts))?;
        assert_sums(sums.expect("every rank receives").as_f32(), size, rank * num_elems);
        Ok(())
    });
}

fn assert_sums(sums: &[f32], size: usize, first: usize) {
    for (at, sum) in sums.iter().enumerate() {
        assert_sum(*sum, (0..size).map(|rank| value(rank, first + at)));
    }
}

pub(crate) fn halves_sum_in_single_precision_and_round_once<E: Engine>() {
    at_all_sizes::<E>(|world| {
        for float in [FloatType::Bf16, FloatType::F16] {
            for op in [Op::Reduce { root: 0 }, Op::AllReduce, Op::ReduceScatter] {
                sum_halves(&world, float, op)?;
            }
        }
        Ok(())
    });
}

/// Element `at` of every part is 1 on rank 0 and half an ulp of 1, give or take, elsewhere: added
/// one by one in half precision, those would be lost.
fn sum_halves(world: &World, float: FloatType, op: Op) -> Result<()> {
    let (rank, size) = (world.rank().0, world.size());
    let pool = BufferPool::default();
    let ulp = if float == FloatType::Bf16 { 1.0 / 128.0 } else { 1.0 / 1024.0 };
    let small = [0.5 * ulp, 0.25 * ulp, -0.25 * ulp];
    let part = if rank == 0 { [1.0; 3] } else { small };
    let num_parts = if op == Op::ReduceScatter { size } else { 1 };
    let own = Buffer::from_elements(&part.repeat(num_parts)).freeze();
    let call = Call::new(op, "halves", float.element(), part.len());
    let sum = world.group().start(call, Some(float.narrow(own, &pool)))?.wait(PATIENCE)?;
    let exact = small.map(|small| 1.0 + (size - 1) as f32 * small);
    let rounded = float.narrow(Buffer::from_elements(&exact).freeze(), &pool);
    match sum {
        Some(sum) => assert_eq!(sum.as_slice(), rounded.as_slice(), "{float} {op:?} of {size}"),
        None => assert!(op == Op::Reduce { root: 0 } && rank != 0),
    }
    Ok(())
}

/// Sums that `f32` could not hold.
fn sum_doubles(world: &World, rank: usize, size: usize) -> Result<()> {
    let own = Buffer::from_elements(&[1.0 + f64::EPSILON, rank as f64]).freeze();
    let call = Call::new(Op::AllReduce, "norms", Element::F64, 2);
    let output = world.group().start(call, Some(own))?.wait(PATIENCE)?;
    let output = output.expect("every rank receives");
    let sums: &[f64] = output.elements();
    assert!(sums[0] > size as f64);
    assert_eq!(sums[1], (size * (size - 1) / 2) as f64);
    Ok(())
}
