//! Cheap, bounded reads below the procfs root: one system call per descriptor, buffers reused.
//!
//! Must never read a file without a limit, and never follow a link of another process here.

use std::{
    ffi::CStr,
    io,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, RawDir, openat, readlinkat, readlinkat_raw, statat},
    io::{Errno, retry_on_intr},
};

use super::process_status;

/// Bytes of directory entries read at a time.
const ENTRIES: usize = 16 * 1024;
/// Bytes of a file read at a time.
const CHUNK: usize = 8 * 1024;
/// The kernel hands over a part of a file only when the next line would not fit into a page, and no line is half as
/// long. So less than this is the rest of it, and another call would only say so.
const NO_PART: usize = 2048;
/// Longer link targets are cut: no device or socket name is as long.
const LINK: usize = 512;
/// Maximum number of bytes of a file that is read whole here.
const SMALL_FILE: usize = 16 * 1024;
/// Maximum number of descriptors of one process that are read.
const MAX_DESCRIPTORS: usize = 1 << 20;

/// How much of a process could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProcVisibility {
    /// All of it.
    Full,
    /// The kernel refused.
    Denied,
    /// It has ended.
    Gone,
}

/// The descriptor folder of a process: differs when the process is another one or their number has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DescriptorSummary {
    inode: u64,
    descriptors: i64,
}

/// An open procfs.
#[derive(Debug)]
pub(super) struct Procfs {
    path: PathBuf,
    root: OwnedFd,
    entries: Vec<MaybeUninit<u8>>,
}

impl Procfs {
    /// Opens the root.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let root = openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { path: path.to_owned(), root, entries: vec![MaybeUninit::uninit(); ENTRIES] })
    }

    /// The path of the root.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// All processes in ascending order.
    pub(super) fn pids(&mut self) -> io::Result<Vec<u32>> {
        let mut pids = Vec::with_capacity(512);
        let folder = self.folder(".")?;
        each_name(&folder, &mut self.entries, |name| pids.extend(number(name)))?;
        pids.sort_unstable();
        Ok(pids)
    }

    /// The user of a process; `None` when it has ended.
    pub(super) fn owner(&self, pid: u32) -> Option<u32> {
        statat(&self.root, pid.to_string(), AtFlags::empty()).ok().map(|stat| stat.st_uid)
    }

    /// Whether this agent's own pid namespace is the one of this procfs: its process then has one id here.
    pub(super) fn is_of_our_namespace(&self) -> bool {
        let mut status = Vec::new();
        self.read("self", "status", SMALL_FILE, &mut status).is_ok()
            && process_status::ids(&String::from_utf8_lossy(&status))
                .is_some_and(|ids| ids.container_pid.is_none())
    }

    /// The id that the kernel gave out last in this agent's own pid namespace, to a process or a thread. Every process
    /// of an inner namespace has an id there too. Source: the last field of `/proc/loadavg`, see proc_loadavg(5).
    pub(super) fn newest_pid(&self) -> Option<u32> {
        let mut text = Vec::with_capacity(64);
        self.read(".", "loadavg", SMALL_FILE, &mut text).ok()?;
        std::str::from_utf8(&text).ok()?.split_ascii_whitespace().nth(4)?.parse().ok()
    }

    /// Whether this id is the one of a process now, and not of one of its threads.
    pub(super) fn is_process(&self, id: u32) -> bool {
        let mut status = Vec::new();
        self.read(&id.to_string(), "status", SMALL_FILE, &mut status).is_ok()
            && process_status::thread_group(&String::from_utf8_lossy(&status)) == Some(id)
    }

    /// The descriptor folder of a process; `None` where the kernel does not give their number.
    pub(super) fn descriptor_summary(&self, pid: u32) -> Option<DescriptorSummary> {
        let stat = statat(&self.root, format!("{pid}/fd"), AtFlags::empty()).ok()?;
        (stat.st_size > 0).then_some(DescriptorSummary { inode: stat.st_ino, descriptors: stat.st_size })
    }

    /// Calls `visit` with number and link target of each descriptor of a process.
    pub(super) fn descriptors(&mut self, pid: u32, mut visit: impl FnMut(u32, &[u8])) -> ProcVisibility {
        let folder = match self.folder(&format!("{pid}/fd")) {
            Ok(folder) => folder,
            Err(Errno::ACCESS | Errno::PERM) => return ProcVisibility::Denied,
            Err(_) => return ProcVisibility::Gone,
        };
        let mut visibility = ProcVisibility::Full;
        let mut left = MAX_DESCRIPTORS;
        let mut link = [MaybeUninit::uninit(); LINK];
        let walked = each_name(&folder, &mut self.entries, |name| {
            let Some(descriptor) = number(name) else { return };
            if left == 0 || visibility == ProcVisibility::Denied {
                return;
            }
            left -= 1;
            match readlinkat_raw(&folder, name, &mut link[..]) {
                Ok((target, _)) => visit(descriptor, target),
                // Without the capability the kernel refuses every link of this process.
                Err(Errno::ACCESS | Errno::PERM) => visibility = ProcVisibility::Denied,
                // Closed in the meantime.
                Err(_) => {}
            }
        });
        match walked {
            Ok(()) => visibility,
            Err(_) => ProcVisibility::Gone,
        }
    }

    /// The target of a link below a process's folder, such as `fd/7` or `ns/net`.
    pub(super) fn link(&self, process: &str, name: &str) -> io::Result<Vec<u8>> {
        Ok(readlinkat(&self.root, format!("{process}/{name}"), Vec::new())?.into_bytes())
    }

    /// The inode that a namespace link such as `net:[4026531840]` names.
    pub(super) fn namespace(&self, process: &str, kind: &str) -> Option<u64> {
        let target = self.link(process, &format!("ns/{kind}")).ok()?;
        std::str::from_utf8(&target)
            .ok()?
            .strip_prefix(kind)?
            .strip_prefix(":[")?
            .strip_suffix(']')?
            .parse()
            .ok()
    }

    /// Opens a file below a process's folder; the caller bounds the read.
    pub(super) fn file(&self, process: &str, name: &str) -> io::Result<std::fs::File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
        Ok(openat(&self.root, format!("{process}/{name}"), flags, Mode::empty())?.into())
    }

    /// At most `most` bytes of a file below a process's folder, into `buffer`.
    pub(super) fn read(
        &self,
        process: &str,
        name: &str,
        most: usize,
        buffer: &mut Vec<u8>,
    ) -> io::Result<()> {
        buffer.clear();
        let file = self.file(process, name)?;
        while buffer.len() < most {
            let start = buffer.len();
            buffer.resize(most.min(start + CHUNK), 0);
            let read = retry_on_intr(|| rustix::io::read(&file, &mut buffer[start..]));
            buffer.truncate(start + *read.as_ref().unwrap_or(&0));
            if read? < NO_PART {
                break;
            }
        }
        Ok(())
    }

    fn folder(&self, path: &str) -> Result<OwnedFd, Errno> {
        openat(&self.root, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    }
}

fn each_name(
    folder: &OwnedFd,
    buffer: &mut [MaybeUninit<u8>],
    mut visit: impl FnMut(&CStr),
) -> Result<(), Errno> {
    let mut entries = RawDir::new(folder, buffer);
    while let Some(entry) = entries.next() {
        visit(entry?.file_name());
    }
    Ok(())
}

fn number(name: &CStr) -> Option<u32> {
    let digits = name.to_bytes();
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| std::str::from_utf8(digits).ok()?.parse().ok()).flatten()
}
