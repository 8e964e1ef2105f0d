//! What MPI does not take.

use crate::processes::run;
use dmuon_core::{Call, DeviceTransfer, Element, EngineOptions, Memory, Op};

#[test]
fn memory_of_devices_is_refused_and_fails_the_group() {
    let outcomes = run(2, &EngineOptions::default(), |world| {
        let (rank, group) = (world.rank().0, world.group());
        assert_eq!(group.capabilities().memory, Memory::Host);
        let call = Call::new(Op::AllReduce, "layers.0", Element::F32, 4);
        if rank == 1 {
            return group.start_on_device(call, DeviceTransfer::default()).map(drop);
        }
        crate::suite::run(&*group, Op::Barrier, 0, None).map(drop)
    });
    let expected = "world takes buffers in host memory only: all_reduce(\"layers.0\")";
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        let text = outcome.expect_err("refused").to_string();
        assert!(text.contains(expected), "rank {rank}: {text}");
    }
}
