//! The arithmetic and copying of a collective once all inputs are there; knows nothing of threads.

use crate::{
    Buffer, BufferPool, Call, Element, FloatType, Op, SharedBuffer,
    reduce::{Summand, tree_sum},
};

/// The outputs of `call` in group order, each from the pool of the rank that receives it; an
/// output that is alike everywhere is one buffer from the first pool.
pub(super) fn combine(
    call: &Call,
    inputs: &[SharedBuffer],
    pools: &[BufferPool],
) -> Vec<Option<SharedBuffer>> {
    let size = pools.len();
    let part = call.part_bytes();
    let alike = |buffer: Buffer| vec![Some(buffer.freeze()); size];
    let whole: Vec<&[u8]> = inputs.iter().map(SharedBuffer::as_slice).collect();
    let parts_of = |rank: usize| -> Vec<&[u8]> {
        inputs.iter().map(|input| &input[rank * part..(rank + 1) * part]).collect()
    };
    match call.op {
        Op::Reduce { root } => {
            let mut outputs = vec![None; size];
            outputs[root] = Some(sum(call.element, &whole, &pools[root]).freeze());
            outputs
        }
        Op::AllReduce => alike(sum(call.element, &whole, &pools[0])),
        Op::AllGather => alike(concatenate(&whole, &pools[0])),
        Op::ReduceScatter => (0..size)
            .map(|rank| Some(sum(call.element, &parts_of(rank), &pools[rank]).freeze()))
            .collect(),
        Op::AllToAll => (0..size)
            .map(|rank| Some(concatenate(&parts_of(rank), &pools[rank]).freeze()))
            .collect(),
        Op::Broadcast { .. } | Op::Barrier => vec![None; size],
    }
}

fn sum(element: Element, inputs: &[&[u8]], pool: &BufferPool) -> Buffer {
    let mut output = pool.take(inputs[0].len());
    match element {
        Element::F32 => sum_as::<f32>(inputs, &mut output),
        Element::F64 => sum_as::<f64>(inputs, &mut output),
        Element::F16 => return sum_widened(FloatType::F16, inputs, pool),
        Element::Bf16 => return sum_widened(FloatType::Bf16, inputs, pool),
        Element::U8 => unreachable!("calls are checked when they start: bytes are never summed"),
    }
    output
}

/// Sums in `f32` and rounds once.
fn sum_widened(float: FloatType, inputs: &[&[u8]], pool: &BufferPool) -> Buffer {
    let widened: Vec<Buffer> = inputs.iter().map(|input| float.widened(input, pool)).collect();
    let inputs: Vec<&[u8]> = widened.iter().map(Buffer::as_slice).collect();
    let sum = sum(Element::F32, &inputs, pool).freeze();
    let narrowed = float.narrow(sum, pool).try_into_unique();
    narrowed.expect("a narrowed buffer was made here and has one handle")
}

fn sum_as<T: Summand>(inputs: &[&[u8]], output: &mut Buffer) {
    let inputs: Vec<&[T]> = inputs.iter().map(|bytes| bytemuck::cast_slice(bytes)).collect();
    tree_sum(&inputs, output.elements_mut());
}

fn concatenate(parts: &[&[u8]], pool: &BufferPool) -> Buffer {
    let mut output = pool.take(parts.iter().map(|part| part.len()).sum());
    let mut rest = output.as_mut_slice();
    for part in parts {
        let (place, after) = rest.split_at_mut(part.len());
        place.copy_from_slice(part);
        rest = after;
    }
    output
}
