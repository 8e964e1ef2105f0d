//! HCCL: collectives, issued to streams that meet.

use crate::{
    SUCCESS, Status,
    communicators::Comm,
    device::lock,
    faults,
    group::{Brought, Signature, unconnected},
    hccl_status::{NETWORK, NOT_SUPPORT, OUT_OF_MEMORY, PARA},
    memory,
    messages::fail,
    stream::{Progress, Stream},
};
use std::{ffi::c_void, sync::atomic::Ordering, thread, time::Duration};

const FP32: i32 = 4;
const FP64: i32 = 10;
const SUM: i32 = 0;
const NO_ROOT: u32 = u32::MAX;

/// A collective as one rank calls it.
struct Call {
    signature: Signature,
    /// Where this rank's bytes are, and how many.
    source: (usize, usize),
    /// Where its result goes, and how many bytes that has; empty for none.
    target: (usize, usize),
    /// Makes this rank's result of what everybody brought.
    result: fn(&Brought, rank: usize, size: usize) -> Vec<u8>,
}

/// Issues a call.
///
/// # Safety
/// The handles are null, or of a communicator and a stream that are not destroyed.
unsafe fn issue(call: Call, comm: *mut c_void, stream: *mut c_void) -> Status {
    // SAFETY: the caller promises it.
    let comm = unsafe { Comm::behind(comm) };
    // SAFETY: the caller promises it.
    let stream = unsafe { Stream::behind(stream) };
    match comm.and_then(|comm| stream.and_then(|stream| try_issue(call, comm, stream))) {
        Ok(()) => SUCCESS,
        Err(status) => status,
    }
}

fn try_issue(call: Call, comm: &Comm, stream: &Stream) -> Result<(), Status> {
    let (name, device) = (call.signature.call, &comm.device);
    let _stay = device.clone().enter_hccl()?;
    device.count(name);
    if call.signature.count == 0 {
        return Ok(());
    }
    let is_ours = |(start, num_bytes)| num_bytes == 0 || memory::is_of(device.id, start, num_bytes);
    if !is_ours(call.source) || !is_ours(call.target) {
        return Err(fail(PARA, "EI0003: the range is not memory of this device"));
    }
    let root = call.signature.root;
    if root != NO_ROOT && root as usize >= comm.group.size {
        return Err(fail(PARA, "EI0003: there is no such root"));
    }
    // An all-to-all is connected on its stream, so that refusals and acceptance can be told apart.
    if name == "HcclAlltoAll" {
        refuse(faults::of(device.id).all_to_all)?;
    } else if lock(&comm.connected).insert(name) && !comm.group.connect(name, None) {
        let (status, text) = unconnected();
        return Err(fail(status, text));
    }
    let sequence = comm.num_calls.fetch_add(1, Ordering::AcqRel);
    lock(&device.issued).push(comm.group.id.wrapping_add(sequence));
    let (group, rank, id) = (comm.group.clone(), comm.rank, device.id);
    stream.enqueue(Box::new(move |progress| {
        let faults = faults::of(id);
        stall(faults.is_stalled, progress);
        let bytes = memory::read(call.source.0, call.source.1);
        let own = (rank, call.signature);
        let brought = group.meet(sequence, own, bytes, (progress, faults.patience))?;
        let (target, num_bytes) = call.target;
        if num_bytes > 0 {
            let result = (call.result)(&brought, rank, group.size);
            assert_eq!(result.len(), num_bytes, "the result fits");
            memory::write(target, &result);
        }
        Ok(())
    }));
    Ok(())
}

/// Refuses an all-to-all as the error with this number does; not at all for 0.
fn refuse(number: u32) -> Result<(), Status> {
    match number {
        0 => Ok(()),
        6 => {
            // Those who wait for one that was refused give up later.
            thread::sleep(Duration::from_millis(300));
            let (status, text) = unconnected();
            Err(fail(status, text))
        }
        7 => Err(fail(
            NETWORK,
            "EI0007: Failed to allocate resource[qp] with info [rank:1]. \
             Reason: Memory resources are exhausted.",
        )),
        _ => Err(fail(
            OUT_OF_MEMORY,
            "Resource_Error_Insufficient_Device_Memory(EI0011): Failed to allocate \
             [size: [0.25MB, 3MB], Affected by QP depth configuration.] bytes of NPU memory.",
        )),
    }
}

fn stall(is_stalled: bool, progress: &Progress) {
    while is_stalled && !progress.is_stopped() {
        thread::sleep(Duration::from_millis(5));
    }
}

fn signature(call: &'static str, count: u64, datatype: i32, root: u32) -> Signature {
    Signature { call, count, datatype, root }
}

fn width(datatype: i32) -> Result<usize, Status> {
    match datatype {
        0 | 7 => Ok(1),
        1 | 3 | 8 | 11 => Ok(2),
        2 | FP32 | 9 => Ok(4),
        5 | 6 | FP64 => Ok(8),
        _ => Err(fail(NOT_SUPPORT, "EI0003: no such type")),
    }
}

/// Sums of single precision are all this double can do; the others, real devices mostly cannot either.
fn check_sum(datatype: i32, op: i32) -> Result<(), Status> {
    match (datatype, op) {
        (FP32, SUM) => Ok(()),
        _ => Err(fail(NOT_SUPPORT, "EI0003: this type is not summed")),
    }
}

/// The sum of the part of `num_bytes` from `start` on, rank by rank.
fn sum(brought: &Brought, start: usize, num_bytes: usize) -> Vec<u8> {
    let mut sums = vec![0.0_f32; num_bytes / 4];
    for bytes in brought.iter() {
        let parts = bytes[start..start + num_bytes].chunks_exact(4);
        for (sum, part) in sums.iter_mut().zip(parts) {
            *sum += f32::from_ne_bytes(part.try_into().expect("four bytes"));
        }
    }
    sums.iter().flat_map(|sum| sum.to_ne_bytes()).collect()
}

fn whole_sum(brought: &Brought, _: usize, _: usize) -> Vec<u8> {
    sum(brought, 0, brought[0].len())
}

fn part_sum(brought: &Brought, rank: usize, size: usize) -> Vec<u8> {
    let num_bytes = brought[0].len() / size;
    sum(brought, rank * num_bytes, num_bytes)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn HcclBroadcast(
    buffer: *mut c_void,
    count: u64,
    datatype: i32,
    root: u32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    let num_bytes = match width(datatype) {
        Ok(width) => count as usize * width,
        Err(status) => return status,
    };
    // SAFETY: the caller promises a live communicator.
    let is_root = unsafe { Comm::behind(comm) }.is_ok_and(|comm| comm.rank == root as usize);
    let (start, whole) = (buffer.addr(), (buffer.addr(), num_bytes));
    let call = Call {
        signature: signature("HcclBroadcast", count, datatype, root),
        source: if is_root { whole } else { (start, 0) },
        target: if is_root { (start, 0) } else { whole },
        // Only the root brings anything.
        result: |brought, _, _| brought.concat(),
    };
    // SAFETY: the caller promises live handles.
    unsafe { issue(call, comm, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn HcclReduce(
    from: *mut c_void,
    to: *mut c_void,
    count: u64,
    datatype: i32,
    op: i32,
    root: u32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    if let Err(status) = check_sum(datatype, op) {
        return status;
    }
    // SAFETY: the caller promises a live communicator.
    let is_root = unsafe { Comm::behind(comm) }.is_ok_and(|comm| comm.rank == root as usize);
    let num_bytes = count as usize * 4;
    let call = Call {
        signature: signature("HcclReduce", count, datatype, root),
        source: (from.addr(), num_bytes),
        target: (to.addr(), if is_root { num_bytes } else { 0 }),
        result: whole_sum,
    };
    // SAFETY: the caller promises live handles.
    unsafe { issue(call, comm, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn HcclAllReduce(
    from: *mut c_void,
    to: *mut c_void,
    count: u64,
    datatype: i32,
    op: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    if let Err(status) = check_sum(datatype, op) {
        return status;
    }
    let num_bytes = count as usize * 4;
    let call = Call {
        signature: signature("HcclAllReduce", count, datatype, NO_ROOT),
        source: (from.addr(), num_bytes),
        target: (to.addr(), num_bytes),
        result: whole_sum,
    };
    // SAFETY: the caller promises live handles.
    unsafe { issue(call, comm, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn HcclReduceScatter(
    from: *mut c_void,
    to: *mut c_void,
    count: u64,
    datatype: i32,
    op: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    if let Err(status) = check_sum(datatype, op) {
        return status;
    }
    let num_bytes = count as usize * 4;
    // SAFETY: the caller promises a live communicator.
    let size = unsafe { Comm::behind(comm) }.map_or(0, |comm| comm.group.size);
    let call = Call {
        signature: signature("HcclReduceScatter", count, datatype, NO_ROOT),
        source: (from.addr(), size * num_bytes),
        target: (to.addr(), num_bytes),
        result: part_sum,
    };
    // SAFETY: the caller promises live handles.
    unsafe { issue(call, comm, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn HcclAllGather(
    from: *mut c_void,
    to: *mut c_void,
    count: u64,
    datatype: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    let num_bytes = match width(datatype) {
        Ok(width) => count as usize * width,
        Err(status) => return status,
    };
    // SAFETY: the caller promises a live communicator.
    let size = unsafe { Comm::behind(comm) }.map_or(0, |comm| comm.group.size);
    let call = Call {
        signature: signature("HcclAllGather", count, datatype, NO_ROOT),
        source: (from.addr(), num_bytes),
        target: (to.addr(), size * num_bytes),
        result: |brought, _, _| brought.concat(),
    };
    // SAFETY: the caller promises live handles.
    unsafe { issue(call, comm, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn HcclAlltoAll(
    from: *const c_void,
    send_count: u64,
    send_type: i32,
    to: *const c_void,
    receive_count: u64,
    receive_type: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    if (send_count, send_type) != (receive_count, receive_type) {
        return fail(PARA, "EI0003: as much comes as goes");
    }
    let num_bytes = match width(send_type) {
        Ok(width) => send_count as usize * width,
        Err(status) => return status,
    };
    // SAFETY: the caller promises a live communicator.
    let size = unsafe { Comm::behind(comm) }.map_or(0, |comm| comm.group.size);
    let call = Call {
        signature: signature("HcclAlltoAll", send_count, send_type, NO_ROOT),
        source: (from.addr(), size * num_bytes),
        target: (to.addr(), size * num_bytes),
        result: |brought, rank, size| {
            let num_bytes = brought[0].len() / size;
            let own = rank * num_bytes..(rank + 1) * num_bytes;
            brought.iter().flat_map(|bytes| bytes[own.clone()].to_vec()).collect()
        },
    };
    // SAFETY: the caller promises live handles.
    unsafe { issue(call, comm, stream) }
}
