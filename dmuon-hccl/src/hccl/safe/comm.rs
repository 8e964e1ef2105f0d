//! Communicators: the world's, made of a root's information or a rank table, and parts of it.

use super::Device;
use crate::{Environment, LibraryError, hccl::sys};
use std::{ffi::CString, fmt::Write, os::unix::ffi::OsStrExt, path::Path, sync::Arc};

/// HCCL's default for `HCCL_BUFFSIZE`, in MiB.
const DEFAULT_BUFFER_MIB: u32 = 200;

/// What rank 0 tells the others, so that they find it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::hccl) struct RootInfo(Box<sys::RootInfo>);

/// What parts of the world take over from the environment. The library would, too, but its versions
/// do not agree on what stands for "unset".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hccl) struct Settings {
    /// `HCCL_BUFFSIZE`: MiB of the device that a communicator takes, once for each direction.
    buffer_mib: u32,
    /// `HCCL_DETERMINISTIC`: 1 for repeatable sums, 2 for sums in a fixed order, else 0.
    deterministic: u32,
}

/// A communicator on a device.
#[derive(Debug)]
pub(in crate::hccl) struct Comm {
    pub(super) device: Arc<Device>,
    pub(super) handle: sys::Comm,
    /// This rank's number in it.
    pub(super) rank: usize,
    /// How many ranks it has.
    pub(super) size: usize,
    /// The world's, which this is a part of: it must not go before.
    _world: Option<Arc<Comm>>,
}

impl RootInfo {
    /// This rank as the root of a new world, on the device this thread has entered.
    pub(in crate::hccl) fn new(device: &Device) -> Result<Self, LibraryError> {
        let mut info = Box::new(sys::RootInfo([0; sys::ROOT_INFO_BYTES]));
        let table = &device.library.table;
        // SAFETY: takes the information to fill.
        let status = unsafe { (table.hccl.HcclGetRootInfo)(&mut *info) };
        table.check_hccl("HcclGetRootInfo", status)?;
        Ok(Self(info))
    }

    /// As text, without the zeros it mostly ends in.
    pub(in crate::hccl) fn to_hex(&self) -> String {
        let bytes = &self.0.0;
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        bytes[..end].iter().fold(String::new(), |mut text, byte| {
            // Writing to a string cannot fail.
            let _written = write!(text, "{byte:02x}");
            text
        })
    }

    /// From text; `None` if it is no such information.
    pub(in crate::hccl) fn from_hex(text: &str) -> Option<Self> {
        let mut info = Box::new(sys::RootInfo([0; sys::ROOT_INFO_BYTES]));
        if !text.is_ascii() || text.len() % 2 == 1 || text.len() > 2 * sys::ROOT_INFO_BYTES {
            return None;
        }
        for (byte, at) in info.0.iter_mut().zip((0..text.len()).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
        }
        Some(Self(info))
    }
}

impl Settings {
    /// What the environment says.
    pub(in crate::hccl) fn read(env: &Environment<'_>) -> Self {
        let buffer = env.variable("HCCL_BUFFSIZE").and_then(|value| value.trim().parse().ok());
        let deterministic = match env.variable("HCCL_DETERMINISTIC").as_deref() {
            Some("true" | "TRUE") => 1,
            Some("strict" | "STRICT") => 2,
            _ => 0,
        };
        Self { buffer_mib: buffer.unwrap_or(DEFAULT_BUFFER_MIB), deterministic }
    }
}

impl Comm {
    /// The world's, around a root. Blocks until all ranks are here, on a thread that has entered the
    /// device.
    ///
    /// # Collective
    /// Every rank.
    pub(in crate::hccl) fn around(
        device: Arc<Device>,
        root: &RootInfo,
        (rank, size): (usize, usize),
    ) -> Result<Self, LibraryError> {
        let mut handle = sys::Comm::NULL;
        let alone = device.alone();
        let init = device.library.table.hccl.HcclCommInitRootInfo;
        // SAFETY: the information is whole, and the handle is ours to fill.
        let status = unsafe { init(number(size), &*root.0, number(rank), &mut handle) };
        device.library.table.check_hccl("HcclCommInitRootInfo", status)?;
        drop(alone);
        Ok(Self { device, handle, rank, size, _world: None })
    }

    /// The world's, as a rank table of `size` ranks describes it. Blocks until all are here, on a
    /// thread that has entered the device.
    ///
    /// # Collective
    /// Every rank.
    pub(in crate::hccl) fn of_table(
        device: Arc<Device>,
        rank_table: &Path,
        (rank, size): (usize, usize),
    ) -> Result<Self, LibraryError> {
        let mut handle = sys::Comm::NULL;
        let alone = device.alone();
        let init = device.library.table.hccl.HcclCommInitClusterInfo;
        let path = CString::new(rank_table.as_os_str().as_bytes()).unwrap_or_default();
        // SAFETY: the path ends in a zero, and the handle is ours to fill.
        let status = unsafe { init(path.as_ptr(), number(rank), &mut handle) };
        device.library.table.check_hccl("HcclCommInitClusterInfo", status)?;
        drop(alone);
        Ok(Self { device, handle, rank, size, _world: None })
    }

    /// The part of the world that `ranks` make, in ascending order; `rank` is this one's place among
    /// them. Makes no connections, so it waits for nobody.
    ///
    /// # Collective
    /// Every one of `ranks`, with the same `id`, which no other part has.
    pub(in crate::hccl) fn part(
        world: &Arc<Self>,
        ranks: &[u32],
        rank: usize,
        (id, settings): (u64, Settings),
    ) -> Result<Self, LibraryError> {
        let (mut global, mut handle) = (world.handle, sys::Comm::NULL);
        let mut config = sys::CommConfig::new(settings.buffer_mib, settings.deterministic);
        let mut members = ranks.to_vec();
        let (size, start) = (number(members.len()), members.as_mut_ptr());
        let _alone = world.device.alone();
        let table = &world.device.library.table;
        let create = table.hccl.HcclCreateSubCommConfig;
        // SAFETY: there are `size` members, the configuration says its own size, and both outlive
        // the call; the handle is ours to fill.
        let status =
            unsafe { create(&mut global, size, start, id, number(rank), &mut config, &mut handle) };
        table.check_hccl("HcclCreateSubCommConfig", status)?;
        let (device, size) = (world.device.clone(), ranks.len());
        Ok(Self { device, handle, rank, size, _world: Some(world.clone()) })
    }

    /// Looks for what the communicator has noticed by itself.
    ///
    /// # Errors
    /// What it was.
    pub(super) fn look(&self) -> Result<(), LibraryError> {
        let table = &self.device.library.table;
        let mut noticed = sys::SUCCESS;
        // SAFETY: the communicator is alive, and the status ours to fill. This does not wait at the
        // door: another group's thread may be inside for long, and may be what has to be noticed.
        let status = unsafe { (table.hccl.HcclGetCommAsyncError)(self.handle, &mut noticed) };
        table.check_hccl("HcclGetCommAsyncError", status)?;
        table.check_hccl("HcclGetCommAsyncError", noticed)
    }
}

impl Drop for Comm {
    /// Destroys it, unless something is left on the device, which that might wait for.
    fn drop(&mut self) {
        if self.device.is_abandoned() {
            return;
        }
        let destroyed = self.device.enter().and_then(|()| {
            let _alone = self.device.alone();
            let table = &self.device.library.table;
            // SAFETY: nothing is on the stream, and the handle is not used again.
            let status = unsafe { (table.hccl.HcclCommDestroy)(self.handle) };
            table.check_hccl("HcclCommDestroy", status)
        });
        if let Err(error) = destroyed {
            tracing::debug!(%error, "a communicator was not returned");
        }
    }
}

/// A rank or a number of ranks as the library takes it; there are never four billion.
pub(super) fn number(count: usize) -> u32 {
    u32::try_from(count).expect("ranks are few")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn root_information_survives_as_text() {
        let mut info = Box::new(sys::RootInfo([0; sys::ROOT_INFO_BYTES]));
        info.0[..3].copy_from_slice(&[1, 0, 0xfe]);
        let info = RootInfo(info);
        assert_eq!(info.to_hex(), "0100fe");
        assert_eq!(RootInfo::from_hex("0100fe"), Some(info));
        for wrong in ["0", "zz", "€€", &"00".repeat(sys::ROOT_INFO_BYTES + 1)] {
            assert_eq!(RootInfo::from_hex(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn settings_are_those_of_the_environment() {
        let read = |buffer: &str, deterministic: &str| {
            let variable = |name: &str| match name {
                "HCCL_BUFFSIZE" => Some(buffer.to_owned()),
                "HCCL_DETERMINISTIC" => Some(deterministic.to_owned()),
                _ => None,
            };
            let no_file = |_: &Path| Err(io::Error::from(io::ErrorKind::NotFound));
            let Settings { buffer_mib, deterministic } =
                Settings::read(&Environment::new(&variable, &no_file));
            (buffer_mib, deterministic)
        };
        assert_eq!(read("100", "true"), (100, 1));
        assert_eq!(read("much", "strict"), (200, 2));
        assert_eq!(read("", "false"), (200, 0));
    }
}
