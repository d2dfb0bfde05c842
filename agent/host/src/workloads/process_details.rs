//! The details of an owner's process, read once and kept while it runs the same program.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use model::{job::Job, workload::ProcessKey};

use super::{
    capabilities,
    endpoints::UnixSocket,
    environment::{self, Environment},
    job_identity::{self, JobInputs},
    libraries::{self, Mapped},
    process_status::{self, ProcessIds, ProcessStat},
    procfs::Procfs,
    workload_files::{Hanging, WorkloadFiles},
};

/// Maximum number of bytes that are read of each file.
const MAX_ENVIRON: usize = 4 << 20;
const MAX_SMALL: usize = 16 * 1024;
const MAX_PASSWD: u64 = 1 << 20;

/// The details of one process.
#[derive(Debug, Clone)]
pub(super) struct ProcessDetails {
    pub(super) stat: ProcessStat,
    pub(super) ids: ProcessIds,
    pub(super) command: String,
    pub(super) environment: Environment,
    pub(super) job: Job,
    pub(super) pid_namespace: Option<u64>,
    pub(super) network_namespace: Option<u64>,
    pub(super) libtpu: Option<PathBuf>,
    pub(super) versions: BTreeMap<String, String>,
    pub(super) notes: Vec<String>,
    /// The metric socket that its variables name, as a path for this agent.
    pub(super) socket: Option<PathBuf>,
    libraries: LibraryState,
}

/// How much is known of its libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LibraryState {
    /// All of them are known.
    Complete,
    /// Some were not mapped yet; mapping one changes the address space.
    Partial,
    /// Its files did not answer.
    Unanswered,
}

/// Reads the details of processes; buffers are reused.
#[derive(Debug, Default)]
pub(super) struct ProcessReader {
    files: WorkloadFiles,
    buffer: Vec<u8>,
    passwd: Option<String>,
}

impl ProcessReader {
    /// `stat` of a process.
    pub(super) fn stat(&mut self, proc: &Procfs, pid: u32) -> Option<ProcessStat> {
        proc.read(&pid.to_string(), "stat", MAX_SMALL, &mut self.buffer).ok()?;
        process_status::stat(&self.buffer)
    }

    /// The time since boot.
    pub(super) fn uptime(&mut self, proc: &Procfs) -> Option<Duration> {
        process_status::uptime(&self.text(proc, ".", "uptime")?)
    }

    /// `stat` of a process, if it still is the same and runs the same program as before.
    pub(super) fn unchanged(&mut self, proc: &Procfs, pid: u32, before: ProcessStat) -> Option<ProcessStat> {
        self.stat(proc, pid).filter(|now| now.same_program(before))
    }

    /// The command of a process and its job; `None` when it has ended.
    pub(super) fn job(&mut self, proc: &Procfs, pid: u32) -> Option<(String, Job)> {
        let process = pid.to_string();
        let stat = self.stat(proc, pid)?;
        let ids = process_status::ids(&self.text(proc, &process, "status")?)?;
        let command = self.text(proc, &process, "comm")?.trim_end_matches('\n').to_owned();
        let cgroup = self.text(proc, &process, "cgroup").unwrap_or_default();
        let environment = self.environment(proc, &process).unwrap_or_default();
        let (key, user) = (ProcessKey { pid, start_ticks: stat.start_ticks }, self.user(ids.uid));
        let (environment, cgroup, user) = (&environment, &cgroup[..], &user[..]);
        Some((command, job_identity::job(JobInputs { process: key, environment, cgroup, user })))
    }

    /// All details of a process; `None` when it has ended.
    pub(super) fn read(&mut self, proc: &Procfs, pid: u32, holds_chip: bool) -> Option<ProcessDetails> {
        let process = pid.to_string();
        let stat = self.stat(proc, pid)?;
        let ids = process_status::ids(&self.text(proc, &process, "status")?)?;
        let command = self.text(proc, &process, "comm")?.trim_end_matches('\n').to_owned();
        let cgroup = self.text(proc, &process, "cgroup").unwrap_or_default();
        let mut notes = Vec::new();
        let environment = self.environment(proc, &process).unwrap_or_else(|error| {
            notes.push(refused("its environment", &error));
            Environment::new()
        });
        let user = self.user(ids.uid);
        let key = ProcessKey { pid, start_ticks: stat.start_ticks };
        let job = job_identity::job(JobInputs {
            process: key,
            environment: &environment,
            cgroup: &cgroup,
            user: &user,
        });
        let socket = environment
            .get("TPU_RUNTIME_METRICS_ADDRESS")
            .and_then(|address| {
                address.strip_prefix("unix:").or(Some(address)).filter(|path| path.starts_with('/'))
            })
            .map(|path| inside(proc, &process, Path::new(&format!("/{}", path.trim_start_matches('/')))));
        let mut details = ProcessDetails {
            stat,
            ids,
            command,
            environment,
            job,
            pid_namespace: proc.namespace(&process, "pid"),
            network_namespace: proc.namespace(&process, "net"),
            libtpu: None,
            versions: BTreeMap::new(),
            notes,
            socket,
            libraries: LibraryState::Partial,
        };
        self.libraries(proc, pid, holds_chip, &mut details);
        Some(details)
    }

    /// Reads the libraries that were not known at the last read: they may be loaded late.
    pub(super) fn refresh(
        &mut self,
        proc: &Procfs,
        now: ProcessStat,
        pid: u32,
        holds_chip: bool,
        details: &mut ProcessDetails,
    ) {
        let changed = std::mem::replace(&mut details.stat, now).address_space != now.address_space;
        match details.libraries {
            LibraryState::Partial if changed => self.libraries(proc, pid, holds_chip, details),
            LibraryState::Unanswered => self.libraries(proc, pid, holds_chip, details),
            LibraryState::Partial | LibraryState::Complete => {}
        }
    }

    fn libraries(&mut self, proc: &Procfs, pid: u32, holds_chip: bool, details: &mut ProcessDetails) {
        let process = pid.to_string();
        let mapped = match proc.file(&process, "maps").and_then(libraries::mapped) {
            Ok(mapped) => mapped,
            Err(error) => return note(&mut details.notes, refused("its memory map", &error)),
        };
        if mapped.libtpu_deleted {
            note(&mut details.notes, "its libtpu.so was replaced on disk after it was loaded".to_owned());
        }
        let Mapped { libtpu, framework, libtpu_deleted, python } = mapped;
        details.versions.extend(python.map(|version| ("python".to_owned(), version)));
        let all = framework.is_some() && (libtpu.is_some() || !holds_chip);
        details.libraries = if all { LibraryState::Complete } else { LibraryState::Partial };
        details.libtpu = libtpu.map(|path| inside(proc, &process, &path));
        // The files beside a library that was replaced are those of the new one.
        if let Some(path) = details.libtpu.clone().filter(|_| !libtpu_deleted) {
            self.version("libtpu", path, details);
        }
        let Some((package, library)) = framework else { return };
        let library = inside(proc, &process, &library);
        let near = |package: &'static str| Some((package, beside(&library, "jaxlib", package)?));
        // jaxlib imports TensorFlow, where it is, when it is profiled.
        let near = ["jax", "tensorflow"].map(near);
        self.version(package, library, details);
        for (package, library) in near.into_iter().flatten() {
            self.version(package, library, details);
        }
    }

    /// The version of a package beside this library. A file system that does not answer is noted, and asked again at the
    /// next scan.
    fn version(&mut self, package: &'static str, library: PathBuf, details: &mut ProcessDetails) {
        let unanswered = format!("the version of its {package} is unknown: the file system does not answer");
        match self.files.version(package, library) {
            Ok(version) => {
                details.notes.retain(|note| *note != unanswered);
                details.versions.extend(version.map(|version| (package.to_owned(), version)));
            }
            Err(Hanging) => {
                details.libraries = LibraryState::Unanswered;
                note(&mut details.notes, unanswered);
            }
        }
    }

    /// The metric socket of a process, with its user.
    pub(super) fn unix_socket(&mut self, details: &ProcessDetails) -> Option<UnixSocket> {
        let path = details.socket.clone()?;
        let owner = self.files.socket_owner(path.clone()).unwrap_or(None);
        Some(UnixSocket { path, owner })
    }

    fn environment(&mut self, proc: &Procfs, process: &str) -> io::Result<Environment> {
        proc.read(process, "environ", MAX_ENVIRON, &mut self.buffer)?;
        let kept = environment::parse(&self.buffer);
        // Variables that are not on the list do not stay in memory either.
        self.buffer.fill(0);
        self.buffer.shrink_to(MAX_SMALL);
        Ok(kept)
    }

    fn text(&mut self, proc: &Procfs, process: &str, file: &str) -> Option<String> {
        proc.read(process, file, MAX_SMALL, &mut self.buffer).ok()?;
        Some(String::from_utf8_lossy(&self.buffer).into_owned())
    }

    /// A user's name from this machine's passwd file, or the number; no name service is asked.
    fn user(&mut self, uid: u32) -> String {
        let passwd = self.passwd.get_or_insert_with(|| {
            let mut text = String::new();
            let file = std::fs::File::open("/etc/passwd");
            // Without it users have numbers.
            let _ = file
                .and_then(|file| io::Read::read_to_string(&mut io::Read::take(file, MAX_PASSWD), &mut text));
            text
        });
        let name = passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
        });
        name.unwrap_or_else(|| uid.to_string())
    }
}

/// A path in the package `other` that lies beside the package in which this library is.
fn beside(library: &Path, package: &str, other: &str) -> Option<PathBuf> {
    let folder = library.ancestors().find(|folder| folder.ends_with(package))?;
    Some(folder.with_file_name(other).join("__init__.py"))
}

/// A path of the process as a path for this agent: the same one when both see the same files.
fn inside(proc: &Procfs, process: &str, path: &Path) -> PathBuf {
    let same_files =
        proc.namespace(process, "mnt").is_some_and(|theirs| proc.namespace("self", "mnt") == Some(theirs))
            && proc.link(process, "root").is_ok_and(|root| root == b"/");
    if same_files {
        return path.to_owned();
    }
    proc.path().join(process).join("root").join(path.strip_prefix("/").unwrap_or(path))
}

fn note(notes: &mut Vec<String>, text: String) {
    if !notes.contains(&text) {
        notes.push(text);
    }
}

fn refused(what: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => format!("{what} cannot be read: {}", capabilities::remedy()),
        _ => format!("{what} cannot be read ({error})"),
    }
}
