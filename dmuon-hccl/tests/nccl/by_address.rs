//! Collectives on memory of devices, against their definitions: they put out what those on host
//! memory do, and ranks may choose.

use crate::{
    conformance::Nccl,
    device::{self, Memory},
    suite::{PATIENCE, all_succeed},
};
use dmuon_core::{
    Axis, Buffer, BufferPool, Call, DeviceTransfer, Element, FloatType, Group, Mesh, MeshShape, Op,
    OpKind, Result, Stream,
};
use std::sync::Arc;

/// Nothing, one, odd, and more than the library's lane has room for at first.
const NUM_ELEMS: [usize; 4] = [0, 1, 1023, 33_333];

const ELEMENTS: [Element; 5] =
    [Element::F32, Element::F64, Element::F16, Element::Bf16, Element::U8];

/// How a rank takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Host,
    Device,
}

/// Element `at` of what the rank at `place` brings: small whole numbers, so that all types have them
/// and every sum is exact.
fn value(place: usize, at: usize) -> f32 {
    ((at * 31 + place * 17) % 13) as f32
}

fn encode(element: Element, values: &[f32]) -> Vec<u8> {
    let halves = |float: FloatType| {
        let values = Buffer::from_elements(values).freeze();
        float.narrow(values, &BufferPool::new()).to_vec()
    };
    match element {
        Element::F16 => halves(FloatType::F16),
        Element::Bf16 => halves(FloatType::Bf16),
        Element::F64 => values.iter().flat_map(|value| f64::from(*value).to_ne_bytes()).collect(),
        Element::U8 => values.iter().map(|value| *value as u8).collect(),
        _ => values.iter().flat_map(|value| value.to_ne_bytes()).collect(),
    }
}

/// What the rank at `place` brings to a call in a group of `size`, where it brings anything.
fn input(call: &Call, place: usize, size: usize) -> Option<Vec<u8>> {
    let num_elems = call.input_bytes(place, size)? / call.element.num_bytes();
    let values: Vec<f32> = (0..num_elems).map(|at| value(place, at)).collect();
    Some(encode(call.element, &values))
}

/// What it gets, by the definition of each collective.
fn output(call: &Call, place: usize, size: usize) -> Option<Vec<u8>> {
    let num = call.num_elems;
    let sum = |at| (0..size).map(|from| value(from, at)).sum();
    let values: Vec<f32> = match call.op {
        Op::Broadcast { root } => (0..num).map(|at| value(root, at)).collect(),
        Op::Reduce { root } if place != root => return None,
        Op::Reduce { .. } | Op::AllReduce => (0..num).map(sum).collect(),
        Op::AllGather => (0..size * num).map(|at| value(at / num, at % num)).collect(),
        Op::ReduceScatter => (place * num..(place + 1) * num).map(sum).collect(),
        Op::AllToAll => (0..size * num).map(|at| value(at / num, place * num + at % num)).collect(),
        Op::Barrier => return None,
    };
    Some(encode(call.element, &values))
}

/// Takes part with memory of the device; what this rank gets, of the elements of the call as it is
/// carried out.
fn run_on_device(group: &dyn Group, device: i32, call: &Call) -> Result<Option<Vec<u8>>> {
    let (place, size, wide) = (group.rank(), group.size(), call.carried_out());
    let brought = input(&wide, place, size).map(|bytes| Memory::of(device, &bytes));
    let stays = wide.returns_input(place, size);
    let room = wide.output_bytes(place, size).filter(|_| !stays);
    let room = room.map(|num_bytes| Memory::zeroed(device, num_bytes));
    let lend = |memory: &Option<Arc<Memory>>| memory.as_ref().map(Memory::lend);
    let transfer = DeviceTransfer { input: lend(&brought), output: lend(&room) };
    let got = group.start_on_device(call.clone(), transfer)?.wait(PATIENCE)?;
    assert!(got.is_none(), "what comes in is on the device");
    for memory in [&brought, &room].into_iter().flatten() {
        assert_eq!(Arc::strong_count(memory), 1, "{memory:?} is still lent after {call:?}");
    }
    if let Some(brought) = &brought {
        assert_eq!(Some(brought.read()), input(&wide, place, size), "inputs stay as they are");
    }
    Ok(if stays { brought } else { room }.map(|memory| memory.read()))
}

fn run_on_host(group: &dyn Group, call: &Call) -> Result<Option<Vec<u8>>> {
    let own = input(call, group.rank(), group.size());
    let own = own.map(|bytes| Buffer::from_bytes(&bytes).freeze());
    Ok(group.start(call.clone(), own)?.wait(PATIENCE)?.map(|buffer| buffer.to_vec()))
}

/// Runs every collective on every type and length.
fn run_all(group: &dyn Group, device: i32, way: Way) -> Result<()> {
    let (place, size) = (group.rank(), group.size());
    for (kind, element) in OpKind::ALL.into_iter().flat_map(|kind| ELEMENTS.map(|it| (kind, it))) {
        for (round, num_elems) in NUM_ELEMS.into_iter().enumerate() {
            let Some(call) = call(kind, round % size, (element, num_elems)) else { continue };
            let (got, expected) = match way {
                Way::Host => (run_on_host(group, &call)?, output(&call, place, size)),
                Way::Device => {
                    (run_on_device(group, device, &call)?, output(&call.carried_out(), place, size))
                }
            };
            assert!(got == expected, "{call:?} on rank {place} of {size}, by {way:?}");
        }
    }
    Ok(())
}

/// The call, where there is one.
fn call(kind: OpKind, root: usize, (element, num_elems): (Element, usize)) -> Option<Call> {
    let is_summable = element != Element::U8;
    let op = match kind {
        OpKind::Broadcast => Op::Broadcast { root },
        OpKind::Reduce if is_summable => Op::Reduce { root },
        OpKind::AllReduce if is_summable => Op::AllReduce,
        OpKind::ReduceScatter if is_summable => Op::ReduceScatter,
        OpKind::AllGather => Op::AllGather,
        OpKind::AllToAll => Op::AllToAll,
        OpKind::Barrier if num_elems == 0 => return Some(Call::barrier("step")),
        _ => return None,
    };
    Some(Call::new(op, "layers.0", element, num_elems))
}

#[test]
fn every_collective_puts_out_what_it_is_defined_to() {
    for num_ranks in [1, 2, 3, 4] {
        all_succeed::<Nccl>(num_ranks, |world| {
            let memory = dmuon_core::Memory::HostOrCuda { ordinal: world.rank().0 };
            assert_eq!(world.group().capabilities().memory, memory);
            run_all(&*world.group(), device::of(&world), Way::Device)
        });
    }
}

#[test]
fn ranks_choose_where_their_buffers_are() {
    for num_ranks in [2, 4] {
        all_succeed::<Nccl>(num_ranks, |world| {
            let (rank, group, device) = (world.rank().0, world.group(), device::of(&world));
            let ways = [Way::Host, Way::Device];
            run_all(&*group, device, ways[rank % 2])?;
            run_all(&*group, device, ways[(rank + 1) % 2])?;
            run_all(&*group, device, ways[usize::from(rank == 0)])
        });
    }
}

#[test]
fn groups_of_a_mesh_have_what_the_world_has() {
    all_succeed::<Nccl>(4, |world| {
        let mesh = Mesh::with_shape(&world, MeshShape::new(2, 2)?)?;
        for axis in [Axis::Shard, Axis::Replicate] {
            run_all(&**mesh.group(axis, Stream::Weights), device::of(&world), Way::Device)?;
        }
        let alone = world.group().split(world.rank().0, 0, "alone")?;
        run_all(&*alone, device::of(&world), Way::Device)
    });
}

#[test]
fn calls_are_counted_as_their_users_mean_them() {
    all_succeed::<Nccl>(2, |world| {
        let call = call(OpKind::Reduce, 0, (Element::Bf16, 1023)).expect("halves can be summed");
        run_on_device(&*world.group(), device::of(&world), &call)?;
        let count = world.recorder().counters().of_group("world", OpKind::Reduce);
        let sent = u64::from(world.rank().0 != 0);
        assert_eq!((count.num_calls, count.payload_bytes), (1, 2 * 1023 * sent));
        Ok(())
    });
}

#[test]
fn many_may_be_in_flight_and_dropped() {
    all_succeed::<Nccl>(4, |world| {
        let mesh = Mesh::with_shape(&world, MeshShape::new(2, 2)?)?;
        let groups = [Axis::Shard, Axis::Replicate].map(|axis| mesh.group(axis, Stream::Weights));
        let bytes = encode(Element::F32, &[1.0; 1023]);
        let mut rooms = Vec::new();
        for round in 0..20 {
            for group in groups {
                let room = Memory::zeroed(device::of(&world), bytes.len());
                let brought = Memory::of(device::of(&world), &bytes);
                let transfer =
                    DeviceTransfer { input: Some(brought.lend()), output: Some(room.lend()) };
                let call = Call::new(Op::AllReduce, "layers.0", Element::F32, 1023);
                let work = group.start_on_device(call, transfer)?;
                if round % 2 == 0 {
                    drop(work);
                } else {
                    rooms.push((work, room));
                }
            }
        }
        let expected = encode(Element::F32, &[2.0; 1023]);
        for (work, room) in rooms.into_iter().rev() {
            work.wait(PATIENCE)?;
            assert!(room.read() == expected);
        }
        Ok(())
    });
}

#[test]
fn groups_may_be_driven_in_opposite_order() {
    all_succeed::<Nccl>(2, |world| {
        let (rank, here) = (world.rank().0, world.group());
        let there = here.split(0, rank, "there")?;
        let mut groups = [&here, &there];
        let call = Call::new(Op::AllReduce, "layers.0", Element::F32, 1023);
        let bytes = encode(Element::F32, &[1.0; 1023]);
        let mut works = Vec::new();
        for _ in 0..20 {
            // Each fence stands behind what this rank has on its device of the other group.
            if rank == 1 {
                groups.reverse();
            }
            for group in groups {
                let [input, output] = [(); 2].map(|()| Memory::of(device::of(&world), &bytes));
                let transfer =
                    DeviceTransfer { input: Some(input.lend()), output: Some(output.lend()) };
                works.push((group.start_on_device(call.clone(), transfer)?, output));
            }
        }
        let expected = encode(Element::F32, &[2.0; 1023]);
        for (work, output) in works {
            work.wait(PATIENCE)?;
            assert!(output.read() == expected);
        }
        Ok(())
    });
}
