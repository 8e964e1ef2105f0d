//! Buffers that are not staged in one piece by anything on the way.

use crate::{
    conformance::Nccl,
    suite::{PATIENCE, all_succeed, run},
};
use dmuon_core::{Buffer, Call, Element, Op};

/// One element more than 64 MiB.
const NUM_ELEMS: usize = (16 << 20) + 1;

#[test]
fn more_than_64_mib_are_summed_and_moved() {
    all_succeed::<Nccl>(2, |world| {
        let (rank, group) = (world.rank().0, world.group());
        let mut own = Buffer::zeroed(4 * NUM_ELEMS);
        let numbers = (0..NUM_ELEMS).map(|at| (at % 1000 + rank) as f32);
        own.as_f32_mut().iter_mut().zip(numbers).for_each(|(value, number)| *value = number);
        let own = own.freeze();
        let sum = run(&*group, Op::AllReduce, NUM_ELEMS, Some(own.clone()))?;
        let sum = sum.expect("every rank receives");
        let expected = |at: usize| (2 * (at % 1000) + 1) as f32;
        assert!(sum.as_f32().iter().enumerate().all(|(at, sum)| *sum == expected(at)));
        let call = Call::new(Op::AllGather, "large", Element::U8, own.len_bytes());
        let all = group.start(call, Some(own))?.wait(PATIENCE)?.expect("every rank receives");
        let (zero, one) = all.as_f32().split_at(NUM_ELEMS);
        assert!(zero.iter().zip(one).all(|(zero, one)| *zero + 1.0 == *one));
        Ok(())
    });
}
