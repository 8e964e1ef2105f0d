//! NCCL's functions.

use crate::{
    clique::Clique,
    comm::{
        Comm, IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, Message, Pending, REMOTE_ERROR,
        SUCCESS, Status, UNHANDLED_CUDA_ERROR, complain, complaint,
    },
    driver, journal,
    memory::Span,
    operation::{Datatype, Kind, Operation, Shape},
    settings::{self, Fault},
    stream::Stream,
};
use std::{
    cell::{Cell, RefCell},
    ffi::{c_char, c_int, c_void},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

/// How long it takes to abort a communicator, beside what is under way.
const ABORT_TIME: Duration = Duration::from_millis(100);

/// A configuration's first fields, which is all that is looked at.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

#[repr(C)]
struct UniqueId([u8; 128]);

/// Messages of a group, with the stream that they go on.
type Queued = (Arc<Comm>, *mut c_void, Message);

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    static QUEUE: RefCell<Vec<Queued>> = const { RefCell::new(Vec::new()) };
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetVersion(version: *mut c_int) -> Status {
    // SAFETY: the caller has a place to fill.
    unsafe { version.write(settings::version()) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> Status {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    journal::note("ncclGetUniqueId");
    let mut bytes = [0xd0; 128];
    bytes[..8].copy_from_slice(&NUMBER.fetch_add(1, Ordering::Relaxed).to_ne_bytes());
    // SAFETY: the caller has a place to fill.
    unsafe { id.write(UniqueId(bytes)) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(status: Status) -> *const c_char {
    let text = match status {
        SUCCESS => c"no error",
        UNHANDLED_CUDA_ERROR => c"unhandled cuda error",
        INVALID_ARGUMENT => c"invalid argument",
        INVALID_USAGE => c"invalid usage",
        REMOTE_ERROR => c"remote process exited or there was a network error",
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_comm: *mut c_void) -> *const c_char {
    complaint()
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommInitRankConfig(
    slot: *mut *mut c_void,
    size: c_int,
    id: UniqueId,
    rank: c_int,
    config: *mut Config,
) -> Status {
    journal::note("ncclCommInitRankConfig");
    // SAFETY: the caller has a configuration.
    let config = unsafe { &*config };
    if config.magic != 0xcafe_beef || config.size < size_of::<Config>() || config.version < 21_400 {
        return complain(INVALID_ARGUMENT, "the configuration is not initialized");
    }
    if config.blocking != 0 {
        return complain(INVALID_ARGUMENT, "the double does not block");
    }
    let device = driver::current_device();
    if device < 0 || !(0..size).contains(&rank) {
        return complain(INVALID_USAGE, "no device, or no such rank");
    }
    let clique = Clique::world(&id.0, size as usize);
    clique.arrive();
    let handle = Comm::register((clique, rank as usize), device, Some(Pending::Init));
    // SAFETY: the caller has a place to fill.
    unsafe { slot.write(handle) };
    IN_PROGRESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommSplit(
    handle: *mut c_void,
    color: c_int,
    key: c_int,
    slot: *mut *mut c_void,
    _config: *mut Config,
) -> Status {
    journal::note("ncclCommSplit");
    on(handle, |comm| {
        let number = comm.count_split();
        let slot = slot.expose_provenance();
        comm.begin(|comm| {
            comm.choose([color, key], number);
            Pending::Split { number, slot }
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommGetAsyncError(handle: *mut c_void, status: *mut Status) -> Status {
    match Comm::find(handle) {
        Ok(comm) => {
            // SAFETY: the caller has a place to fill.
            unsafe { status.write(comm.look()) };
            SUCCESS
        }
        Err(error) => error,
    }
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommFinalize(handle: *mut c_void) -> Status {
    journal::note("ncclCommFinalize");
    on(handle, |comm| {
        comm.begin(|comm| {
            comm.clique.finalize();
            Pending::Finalize
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommDestroy(handle: *mut c_void) -> Status {
    journal::note("ncclCommDestroy");
    on(handle, |comm| match comm.look() {
        SUCCESS => {
            Comm::remove(handle);
            SUCCESS
        }
        _ => complain(INVALID_ARGUMENT, "a communicator is destroyed while it is in use"),
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommAbort(handle: *mut c_void) -> Status {
    journal::note("ncclCommAbort");
    on(handle, |comm| {
        comm.abort();
        // The real one takes its time, too.
        thread::sleep(ABORT_TIME);
        Comm::remove(handle);
        journal::note("aborted");
        SUCCESS
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclBroadcast(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    datatype: c_int,
    root: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    let kind = Kind::Broadcast { root: root as usize };
    collective("ncclBroadcast", (kind, count, datatype), (from, to), (comm, stream))
}

#[unsafe(no_mangle)]
extern "C" fn ncclReduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    datatype: c_int,
    _sum: c_int,
    root: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    let kind = Kind::Reduce { root: root as usize };
    collective("ncclReduce", (kind, count, datatype), (from, to), (comm, stream))
}

#[unsafe(no_mangle)]
extern "C" fn ncclAllReduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    datatype: c_int,
    _sum: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    collective("ncclAllReduce", (Kind::AllReduce, count, datatype), (from, to), (comm, stream))
}

#[unsafe(no_mangle)]
extern "C" fn ncclAllGather(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    datatype: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    collective("ncclAllGather", (Kind::AllGather, count, datatype), (from, to), (comm, stream))
}

#[unsafe(no_mangle)]
extern "C" fn ncclReduceScatter(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    datatype: c_int,
    _sum: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    let kind = Kind::ReduceScatter;
    collective("ncclReduceScatter", (kind, count, datatype), (from, to), (comm, stream))
}

#[unsafe(no_mangle)]
extern "C" fn ncclSend(
    from: *const c_void,
    count: usize,
    datatype: c_int,
    peer: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    let start = from.expose_provenance();
    let message = |bytes| Message::Send { to: peer as usize, bytes };
    queue("ncclSend", (start, count, datatype), message, (comm, stream))
}

#[unsafe(no_mangle)]
extern "C" fn ncclRecv(
    to: *mut c_void,
    count: usize,
    datatype: c_int,
    peer: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    let start = to.expose_provenance();
    let message = |bytes| Message::Receive { from: peer as usize, bytes };
    queue("ncclRecv", (start, count, datatype), message, (comm, stream))
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupStart() -> Status {
    journal::note("ncclGroupStart");
    DEPTH.set(DEPTH.get() + 1);
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupEnd() -> Status {
    journal::note("ncclGroupEnd");
    match DEPTH.get() {
        0 => return complain(INVALID_USAGE, "ncclGroupEnd: not in a group call"),
        depth => DEPTH.set(depth - 1),
    }
    let queued = QUEUE.take();
    let Some((comm, stream, _)) = queued.first() else { return SUCCESS };
    if queued.iter().any(|(other, ..)| !Arc::ptr_eq(other, comm)) {
        return complain(INVALID_USAGE, "the double's groups have one communicator");
    }
    let messages = queued.iter().map(|(.., message)| *message).collect();
    // SAFETY: the caller's stream is alive.
    let stream = unsafe { driver::stream(*stream) };
    comm.begin(|_| Pending::Launch(vec![(stream, comm.exchange(messages))]))
}

/// Does something with a communicator.
fn on(handle: *mut c_void, body: impl FnOnce(&Arc<Comm>) -> Status) -> Status {
    match Comm::find(handle) {
        Ok(comm) if comm.device != driver::current_device() => {
            complain(INVALID_USAGE, "the thread has another device than the communicator")
        }
        Ok(comm) => body(&comm),
        Err(error) => error,
    }
}

/// Starts a collective.
fn collective(
    name: &str,
    (kind, count, datatype): (Kind, usize, c_int),
    (from, to): (*const c_void, *mut c_void),
    (handle, stream): (*mut c_void, *mut c_void),
) -> Status {
    journal::note(name);
    let Some(datatype) = Datatype::of(datatype) else {
        return complain(INVALID_ARGUMENT, "a type that the double does not have");
    };
    let (from, to) = (from.expose_provenance(), to.expose_provenance());
    let operation = Operation { shape: Shape { kind, count, datatype }, from, to };
    on(handle, |comm| {
        let (rank, size) = (comm.rank, comm.clique.size);
        let spans = [operation.input(rank, size), operation.output(rank, size)];
        if count == 0 || !spans.into_iter().flatten().all(|span| span.is_on(comm.device)) {
            return complain(INVALID_ARGUMENT, "no elements, or not memory of the device");
        }
        // SAFETY: the caller's stream is alive.
        let stream = unsafe { driver::stream(stream) };
        launch(comm, stream, operation)
    })
}

fn launch(comm: &Arc<Comm>, stream: Stream, operation: Operation) -> Status {
    let is_faulty = comm.device == 1 && operation.shape.kind == Kind::AllReduce;
    match settings::fault() {
        Fault::Refusal if is_faulty => complain(UNHANDLED_CUDA_ERROR, "Cuda failure 'too hot'"),
        Fault::LostPeer if is_faulty => {
            complain(REMOTE_ERROR, "a peer closed\n the connection");
            comm.begin(|_| Pending::Fail(REMOTE_ERROR))
        }
        _ => {
            let number = comm.count_operation();
            comm.begin(|_| Pending::Launch(vec![(stream, comm.task(number, operation))]))
        }
    }
}

/// Keeps a message until the group ends.
fn queue(
    name: &str,
    (start, count, datatype): (usize, usize, c_int),
    message: impl FnOnce(Span) -> Message,
    (handle, stream): (*mut c_void, *mut c_void),
) -> Status {
    journal::note(name);
    let Some(datatype) = Datatype::of(datatype) else {
        return complain(INVALID_ARGUMENT, "a type that the double does not have");
    };
    let bytes = Span { start, num_bytes: count * datatype.num_bytes() };
    on(handle, |comm| {
        if DEPTH.get() == 0 || !bytes.is_on(comm.device) {
            return complain(INVALID_USAGE, "not in a group, or not memory of the device");
        }
        QUEUE.with_borrow_mut(|queue| queue.push((comm.clone(), stream, message(bytes))));
        SUCCESS
    })
}
