//! What a job of Slurm has left on this host after its end: processes that still hold a chip, and the lock file of libtpu.
//! Looked at once, by the hook that ends the job.
//!
//! Only processes of the user of the job are looked into, and one is the job's only if its cgroup or its variables say so. Must
//! never lock, change or remove the lock file, or follow a link to it.

use std::{
    fs::{File, OpenOptions},
    os::{
        fd::AsFd,
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use model::{
    job::JobKind,
    untrusted::{LABEL, clean},
};
use nix::{
    fcntl::{FcntlArg, fcntl},
    libc,
};

use super::{process_details::ProcessReader, process_scan::DeviceNodes, procfs::Procfs};
use crate::{
    chips,
    settings::{device, paths::Paths},
};

/// The most processes that are named.
const MAX_PROCESSES: usize = 32;

/// A job that has ended.
#[derive(Debug, Clone, Copy)]
pub struct EndedJob<'a> {
    /// The user that it ran as.
    pub uid: u32,
    /// Its id in Slurm.
    pub slurm_id: &'a str,
}

/// Something that the job has left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leftover {
    /// A process that lives on.
    Process {
        /// Its id.
        pid: u32,
        /// Its command.
        command: String,
        /// The device nodes that it holds, and the lock file if it has locked it.
        holds: Vec<PathBuf>,
    },
    /// The lock file belongs to the user of the job, and nobody has locked it. libtpu leaves it behind, and another user cannot
    /// open it then.
    LockFile {
        /// Its path.
        path: PathBuf,
    },
}

/// What the job has left. Blocks, on /proc, /sys and the lock file.
pub fn left_by(
    job: EndedJob<'_>,
    paths: &Paths,
    device: &device::Settings,
    lock_file: &Path,
) -> Vec<Leftover> {
    let scan = chips::scan(paths, device);
    let nodes = DeviceNodes::of(&scan.chips, &scan.other_groups, &paths.dev);
    let lock = Lock::of(lock_file, job.uid);
    let mut left = Vec::new();
    if let Ok(proc) = Procfs::open(&paths.procfs) {
        left = processes(job, proc, &nodes, lock.holder().map(|pid| (pid, lock_file)));
    }
    if lock == Lock::Free {
        left.push(Leftover::LockFile { path: lock_file.to_owned() });
    }
    left
}

fn processes(
    job: EndedJob<'_>,
    mut proc: Procfs,
    nodes: &DeviceNodes,
    lock: Option<(u32, &Path)>,
) -> Vec<Leftover> {
    let mut reader = ProcessReader::default();
    let mut left = Vec::new();
    for pid in proc.pids().unwrap_or_default() {
        if proc.owner(pid) != Some(job.uid) {
            continue;
        }
        let mut holds = Vec::new();
        proc.descriptors(pid, |_, target| {
            if nodes.held(target).is_some() {
                holds.push(PathBuf::from(String::from_utf8_lossy(target).into_owned()));
            }
        });
        holds.sort_unstable();
        holds.dedup();
        holds.extend(lock.filter(|(holder, _)| *holder == pid).map(|(_, file)| file.to_owned()));
        if holds.is_empty() {
            continue;
        }
        let Some((command, named)) = reader.job(&proc, pid) else { continue };
        if named.kind == JobKind::Slurm && named.id == job.slurm_id {
            left.push(Leftover::Process { pid, command: clean(&command, LABEL), holds });
        }
        if left.len() == MAX_PROCESSES {
            break;
        }
    }
    left
}

/// The lock file of libtpu.
#[derive(Debug, PartialEq, Eq)]
enum Lock {
    /// There is none of this user.
    None,
    /// A process has locked it. 0: one that this pid namespace does not have.
    Held(u32),
    /// Nobody has.
    Free,
}

impl Lock {
    fn of(path: &Path, uid: u32) -> Self {
        // A FIFO does not answer an open.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(path) else {
            return Self::None;
        };
        let is_the_users =
            |file: &File| file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.uid() == uid);
        if !is_the_users(&file) {
            return Self::None;
        }
        let mut lock = whole_file();
        match fcntl(file.as_fd(), FcntlArg::F_GETLK(&mut lock)) {
            Err(_) => Self::None,
            Ok(_) if i32::from(lock.l_type) == libc::F_UNLCK => Self::Free,
            Ok(_) => Self::Held(u32::try_from(lock.l_pid).unwrap_or(0)),
        }
    }

    fn holder(&self) -> Option<u32> {
        match self {
            Self::Held(pid) => Some(*pid),
            Self::None | Self::Free => None,
        }
    }
}

/// The lock that libtpu takes.
fn whole_file() -> libc::flock {
    libc::flock {
        l_type: i16::try_from(libc::F_WRLCK).unwrap_or_default(),
        l_whence: i16::try_from(libc::SEEK_SET).unwrap_or_default(),
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::symlink,
        process::{Child, Command, Stdio},
    };

    use nix::unistd::geteuid;

    use super::{super::tests::spawn, *};

    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            // Already dead is as good.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// A folder that stands for /dev, with a chip that sysfs does not know.
    fn dev() -> (tempfile::TempDir, PathBuf, Paths) {
        let dir = tempfile::tempdir().unwrap();
        let node = dir.path().join("vfio/3");
        fs::create_dir(dir.path().join("vfio")).unwrap();
        fs::write(&node, "").unwrap();
        let paths = Paths { dev: dir.path().to_owned(), sysfs: dir.path().join("sys"), ..Paths::default() };
        (dir, node, paths)
    }

    /// A process of a job that holds a node.
    fn holding(node: &Path, job: &str) -> Killed {
        let mut command = Command::new("sleep");
        command.arg("600").env("SLURM_JOB_ID", job).stdout(Stdio::null());
        Killed(spawn(command, Some(node)))
    }

    #[test]
    fn only_processes_of_the_ended_job_are_named() {
        let (_dir, node, paths) = dev();
        let (own, other) = (holding(&node, "34"), holding(&node, "35"));
        let left = |uid, slurm_id| {
            let job = EndedJob { uid, slurm_id };
            left_by(job, &paths, &device::Settings::default(), Path::new("/nonexistent/lock"))
        };
        let uid = geteuid().as_raw();
        let named = |left: Vec<Leftover>| {
            let pid = |leftover| match leftover {
                Leftover::Process { pid, holds, .. } => (pid, holds),
                Leftover::LockFile { path } => panic!("{path:?}"),
            };
            left.into_iter().map(pid).collect::<Vec<_>>()
        };
        assert_eq!(named(left(uid, "34")), [(own.0.id(), vec![node.clone()])]);
        assert_eq!(named(left(uid, "35")), [(other.0.id(), vec![node.clone()])]);
        assert_eq!(named(left(uid, "36")), []);
        assert_eq!(named(left(uid + 1, "34")), []);
    }

    #[test]
    fn a_lock_file_is_left_if_it_is_the_users_and_nobody_has_locked_it() {
        let dir = tempfile::tempdir().unwrap();
        let uid = geteuid().as_raw();
        let (path, link) = (dir.path().join("lock"), dir.path().join("link"));
        assert_eq!(Lock::of(&path, uid), Lock::None);
        fs::write(&path, "").unwrap();
        symlink(&path, &link).unwrap();
        assert_eq!(Lock::of(&path, uid), Lock::Free);
        assert_eq!((Lock::of(&path, uid + 1), Lock::of(&link, uid)), (Lock::None, Lock::None));
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(Lock::of(&fifo, uid), Lock::None);
        // A lock of an open file is no lock of this process: it is shown as another one's, without a process.
        let holder = File::options().write(true).open(&path).unwrap();
        let lock = whole_file();
        fcntl(holder.as_fd(), FcntlArg::F_OFD_SETLK(&lock)).unwrap();
        assert_eq!(Lock::of(&path, uid), Lock::Held(0));
        drop(holder);
        assert_eq!(Lock::of(&path, uid), Lock::Free);
    }
}
