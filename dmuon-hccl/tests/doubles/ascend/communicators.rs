//! HCCL: communicators, of a root's information, of a rank table, and parts of the world.

use crate::{
    SUCCESS, Status,
    device::{Device, lock},
    faults,
    group::{Group, unconnected},
    hccl_status::{OPEN_FILE_FAILURE, PARA, PTR},
    messages::fail,
};
use std::{
    collections::{HashMap, HashSet},
    ffi::{CStr, c_char, c_void},
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

const ROOT_INFO_BYTES: usize = 4108;

/// A byte far from the beginning, which must not be lost on the way.
const MARK: usize = 3000;

/// How long a world waits for its ranks.
const START_TIME: Duration = Duration::from_secs(60);

static GROUPS: LazyLock<Mutex<HashMap<u64, Arc<Group>>>> = LazyLock::new(Mutex::default);
static NUM_ROOTS: AtomicU64 = AtomicU64::new(1);

/// A rank's communicator.
#[derive(Debug)]
pub(crate) struct Comm {
    pub(crate) group: Arc<Group>,
    pub(crate) device: Arc<Device>,
    pub(crate) rank: usize,
    /// World ranks, if this is a part of the world.
    part_of: Option<Arc<Group>>,
    /// Parts that were made of it.
    parts: Mutex<HashSet<u64>>,
    pub(crate) num_calls: AtomicU64,
    /// Kinds of collectives whose ranks are connected.
    pub(crate) connected: Mutex<HashSet<&'static str>>,
}

/// `HcclCommConfig`, as far as version 2 goes.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    reserved: u64,
    buffer_mib: u32,
    deterministic: u32,
    name: [c_char; 128],
}

impl Comm {
    /// The communicator behind a handle, if it is of the device this thread has entered.
    ///
    /// # Safety
    /// The handle is null, or of a communicator that is not destroyed.
    pub(crate) unsafe fn behind<'a>(handle: *mut c_void) -> Result<&'a Self, Status> {
        // SAFETY: the caller promises it.
        let comm = unsafe { handle.cast::<Self>().as_ref() };
        let comm = comm.ok_or_else(|| fail(PTR, "EI0003: no such communicator"))?;
        if Device::current()?.id != comm.device.id {
            return Err(fail(PARA, "EI0003: the communicator is of another device"));
        }
        Ok(comm)
    }

    fn leak(group: Arc<Group>, rank: usize, part_of: Option<Arc<Group>>) -> *mut c_void {
        let device = Device::current().expect("looked at before");
        device.num_live.fetch_add(1, Ordering::AcqRel);
        let (parts, num_calls, connected) = (Mutex::default(), AtomicU64::new(0), Mutex::default());
        let comm = Self { group, device, rank, part_of, parts, num_calls, connected };
        Box::into_raw(Box::new(comm)).cast()
    }
}

/// Waits for all ranks of a world.
fn start(key: u64, rank: u32, size: usize) -> Result<*mut c_void, Status> {
    let device = Device::current()?;
    let _stay = device.clone().enter_hccl()?;
    if size == 0 || rank as usize >= size {
        return Err(fail(PARA, "EI0003: there is no such rank"));
    }
    while faults::of(device.id).never_starts {
        thread::sleep(Duration::from_millis(10));
    }
    let new = || Arc::new(Group::new(key, size));
    let group = lock(&GROUPS).entry(key).or_insert_with(new).clone();
    if group.size != size {
        return Err(fail(PARA, "EI0005: ranks disagree about their number"));
    }
    if !group.connect("world", Some(START_TIME)) {
        let (status, text) = unconnected();
        return Err(fail(status, text));
    }
    Ok(Comm::leak(group, rank as usize, None))
}

fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Fills a handle, or returns why not.
///
/// # Safety
/// The handle is ours to fill.
unsafe fn fill(handle: *mut *mut c_void, made: Result<*mut c_void, Status>) -> Status {
    match made {
        Ok(comm) => {
            // SAFETY: the caller promises it.
            unsafe { *handle = comm };
            SUCCESS
        }
        Err(status) => status,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn HcclGetRootInfo(info: *mut [u8; ROOT_INFO_BYTES]) -> Status {
    if let Err(status) = Device::current() {
        return status;
    }
    let mut bytes = [0; ROOT_INFO_BYTES];
    bytes[..8].copy_from_slice(&NUM_ROOTS.fetch_add(1, Ordering::AcqRel).to_le_bytes());
    bytes[MARK] = 0xa5;
    // SAFETY: the caller hands out the information to fill.
    unsafe { *info = bytes };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn HcclCommInitRootInfo(
    size: u32,
    info: *const [u8; ROOT_INFO_BYTES],
    rank: u32,
    handle: *mut *mut c_void,
) -> Status {
    // SAFETY: the caller promises whole information.
    let info = unsafe { &*info };
    if info[MARK] != 0xa5 {
        return fail(PARA, "EI0003: the root information is damaged");
    }
    let made = start(hash(&info[..8]), rank, size as usize);
    // SAFETY: the caller hands out a handle to fill.
    unsafe { fill(handle, made) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn HcclCommInitClusterInfo(
    path: *const c_char,
    rank: u32,
    handle: *mut *mut c_void,
) -> Status {
    // SAFETY: the caller promises a string.
    let path = unsafe { CStr::from_ptr(path) }.to_string_lossy().into_owned();
    let Ok(table) = fs::read_to_string(&path) else {
        return fail(OPEN_FILE_FAILURE, format!("EI0004: Failed to open the rank table {path}."));
    };
    let made = start(hash(&path), rank, table.matches("\"rank_id\"").count());
    // SAFETY: the caller hands out a handle to fill.
    unsafe { fill(handle, made) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn HcclCreateSubCommConfig(
    world: *mut *mut c_void,
    size: u32,
    ranks: *mut u32,
    id: u64,
    rank: u32,
    config: *mut Config,
    handle: *mut *mut c_void,
) -> Status {
    // SAFETY: the caller promises a live communicator.
    let world = match unsafe { Comm::behind(*world) } {
        Ok(world) => world,
        Err(status) => return status,
    };
    // SAFETY: the caller promises `size` ranks.
    let ranks = unsafe { std::slice::from_raw_parts(ranks, size as usize) };
    // SAFETY: the caller promises a configuration.
    let made = part(world, ranks, (id, rank as usize), unsafe { &*config });
    // SAFETY: the caller hands out a handle to fill.
    unsafe { fill(handle, made) }
}

fn part(
    world: &Comm,
    ranks: &[u32],
    (id, rank): (u64, usize),
    config: &Config,
) -> Result<*mut c_void, Status> {
    let _stay = world.device.clone().enter_hccl()?;
    let refuse = |text: &str| Err(fail(PARA, format!("EI0003: {text}")));
    let Config { size, magic, version, buffer_mib, deterministic, reserved, name } = *config;
    if (size, magic, version, reserved) != (size_of::<Config>(), 0xf0f0_f0f0, 2, 0) {
        return refuse("the configuration is not initialized");
    }
    if buffer_mib == 0 || deterministic > 2 || name[0] != 0 {
        return refuse("the configuration is not what it should be");
    }
    if world.part_of.is_some() {
        return refuse("only the world can be divided");
    }
    let are_ordered = ranks.is_sorted_by(|low, high| low < high);
    if !are_ordered || ranks.iter().any(|rank| *rank as usize >= world.group.size) {
        return refuse("the ranks are not in order");
    }
    if ranks.get(rank).is_none_or(|own| *own as usize != world.rank) {
        return refuse("this rank is not where it says");
    }
    if id == 0xffff_ffff || !lock(&world.parts).insert(id) {
        return refuse("the number is taken");
    }
    let key = hash((world.group.id, id));
    let new = || Arc::new(Group::new(key, ranks.len()));
    let group = lock(&GROUPS).entry(key).or_insert_with(new).clone();
    Ok(Comm::leak(group, rank, Some(world.group.clone())))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn HcclCommDestroy(handle: *mut c_void) -> Status {
    // SAFETY: the caller promises a live communicator.
    match unsafe { Comm::behind(handle) } {
        Ok(comm) => comm.device.num_live.fetch_sub(1, Ordering::AcqRel),
        Err(status) => return status,
    };
    // SAFETY: it came from a box, and is given back once.
    drop(unsafe { Box::from_raw(handle.cast::<Comm>()) });
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn HcclGetCommAsyncError(handle: *mut c_void, noticed: *mut Status) -> Status {
    // SAFETY: the caller promises a live communicator.
    let comm = match unsafe { Comm::behind(handle) } {
        Ok(comm) => comm,
        Err(status) => return status,
    };
    let status = faults::of(comm.device.id).noticed;
    // SAFETY: the caller hands out a status to fill.
    unsafe { *noticed = status };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn HcclGetErrorString(status: Status) -> *const c_char {
    let text = match status {
        0 => c"no error",
        1 => c"parameter error",
        2 => c"empty pointer",
        4 => c"internal error",
        5 => c"not support feature",
        9 => c"timeout",
        10 => c"open file fail",
        19 => c"call network api fail",
        21 => c"error cqe",
        24 => c"out of memory",
        _ => c"unknown error",
    };
    text.as_ptr()
}
