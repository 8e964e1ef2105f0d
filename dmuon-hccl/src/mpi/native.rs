//! The library's own collectives, blocking: whatever order it sums in, and no way out once inside.

use super::{course::Course, ordered, safe::Summand};
use crate::{LibraryError, processes::Stop};
use dmuon_core::{Buffer, Call, Element, Op, SharedBuffer};

/// Runs `call`, whose input has been checked. With `verify`, every rank first meets every other at
/// this very call, so that the library is only entered by all.
pub(super) fn run(
    course: &Course<'_>,
    call: &Call,
    input: Option<SharedBuffer>,
    verify: bool,
) -> Result<Option<SharedBuffer>, Stop> {
    if verify {
        ordered::barrier(course)?;
    }
    let comm = course.comm;
    let Some(input) = input else {
        return match call.op {
            Op::Broadcast { root } => {
                let mut buffer = course.pool.take(call.part_bytes());
                comm.broadcast_from(root, buffer.as_mut_slice())?;
                Ok(Some(buffer.freeze()))
            }
            _ => Ok(comm.barrier().map(|()| None)?),
        };
    };
    if let Op::Broadcast { .. } = call.op {
        comm.broadcast_from_here(&input)?;
        return Ok(Some(input));
    }
    let room = call.output_bytes(course.rank(), course.size());
    let mut output = course.pool.take(room.unwrap_or(0));
    match (call.op, call.element) {
        (Op::AllGather, _) => comm.all_gather(&input, output.as_mut_slice())?,
        (Op::AllToAll, _) => comm.all_to_all(&input, output.as_mut_slice())?,
        (_, Element::F64) => sum::<f64>(course, call.op, &input, &mut output)?,
        _ => sum::<f32>(course, call.op, &input, &mut output)?,
    }
    Ok(room.map(|_| output.freeze()))
}

fn sum<T: Summand>(
    course: &Course<'_>,
    op: Op,
    input: &SharedBuffer,
    output: &mut Buffer,
) -> Result<(), LibraryError> {
    let (input, output) = (input.elements::<T>(), output.elements_mut::<T>());
    match op {
        Op::Reduce { root } => course.comm.reduce(input, output, root),
        Op::ReduceScatter => course.comm.reduce_scatter(input, output),
        _ => course.comm.all_reduce(input, output),
    }
}
