//! What is known about one owner, read once and kept while the process runs the same program.

use std::{
    io,
    path::{Path, PathBuf},
};

use model::{job::Job, workload::ProcessKey};

use super::{
    endpoints::UnixSocket,
    environment::{self, Environment},
    facts::{self, Stat, Status},
    identity::{self, Clues},
    libraries::{self, Files, Mapped},
    procfs::Procfs,
    rights,
};

/// Bounds of the files that are read.
const ENVIRON: u64 = 4 << 20;
const SMALL: u64 = 16 * 1024;
const PASSWD: u64 = 1 << 20;

/// One owner.
#[derive(Debug, Clone)]
pub(super) struct Profile {
    pub(super) stat: Stat,
    pub(super) status: Status,
    pub(super) command: String,
    pub(super) environment: Environment,
    pub(super) job: Job,
    pub(super) pid_namespace: Option<u64>,
    pub(super) network_namespace: Option<u64>,
    pub(super) libtpu: Option<PathBuf>,
    pub(super) framework: Option<String>,
    pub(super) notes: Vec<String>,
    /// A metric socket that its variables name, as this agent finds it.
    pub(super) socket: Option<PathBuf>,
    libraries: Libraries,
}

/// How far its libraries are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Libraries {
    /// All there is to know.
    Known,
    /// Some were not mapped yet, which takes a change of the address space.
    Partly,
    /// Its files did not answer.
    Hanging,
}

/// Reads profiles; buffers are used again.
#[derive(Debug, Default)]
pub(super) struct Profiler {
    files: Files,
    buffer: Vec<u8>,
    passwd: Option<String>,
}

impl Profiler {
    /// `stat` of a process.
    pub(super) fn stat(&mut self, proc: &Procfs, pid: u32) -> Option<Stat> {
        proc.read(&pid.to_string(), "stat", SMALL, &mut self.buffer).ok()?;
        facts::stat(&self.buffer)
    }

    /// `stat` of a process that still is the same and runs the same program as before.
    pub(super) fn same(&mut self, proc: &Procfs, pid: u32, before: Stat) -> Option<Stat> {
        self.stat(proc, pid).filter(|now| now.same_program(before))
    }

    /// Everything about a process; `None` when it is gone.
    pub(super) fn read(&mut self, proc: &Procfs, pid: u32, holds_chip: bool) -> Option<Profile> {
        let process = pid.to_string();
        let stat = self.stat(proc, pid)?;
        let status = facts::status(&self.text(proc, &process, "status")?)?;
        let command = self.text(proc, &process, "comm")?.trim_end_matches('\n').to_owned();
        let cgroup = self.text(proc, &process, "cgroup").unwrap_or_default();
        let mut notes = Vec::new();
        let environment = self.environment(proc, &process).unwrap_or_else(|error| {
            notes.push(refused("its environment", &error));
            Environment::new()
        });
        let user = self.user(status.uid);
        let key = ProcessKey { pid, start_ticks: stat.start_ticks };
        let job =
            identity::job(Clues { process: key, environment: &environment, cgroup: &cgroup, user: &user });
        let socket = environment
            .get("TPU_RUNTIME_METRICS_ADDRESS")
            .and_then(|address| {
                address.strip_prefix("unix:").or(Some(address)).filter(|path| path.starts_with('/'))
            })
            .map(|path| inside(proc, &process, Path::new(&format!("/{}", path.trim_start_matches('/')))));
        let mut profile = Profile {
            stat,
            status,
            command,
            environment,
            job,
            pid_namespace: proc.namespace(&process, "pid"),
            network_namespace: proc.namespace(&process, "net"),
            libtpu: None,
            framework: None,
            notes,
            socket,
            libraries: Libraries::Partly,
        };
        self.libraries(proc, pid, holds_chip, &mut profile);
        Some(profile)
    }

    /// Looks for libraries that were not known when it was last looked at: they may be loaded late.
    pub(super) fn refresh(
        &mut self,
        proc: &Procfs,
        now: Stat,
        pid: u32,
        holds_chip: bool,
        profile: &mut Profile,
    ) {
        let changed = std::mem::replace(&mut profile.stat, now).address_space != now.address_space;
        match profile.libraries {
            Libraries::Partly if changed => self.libraries(proc, pid, holds_chip, profile),
            Libraries::Hanging => self.libraries(proc, pid, holds_chip, profile),
            Libraries::Partly | Libraries::Known => {}
        }
    }

    fn libraries(&mut self, proc: &Procfs, pid: u32, holds_chip: bool, profile: &mut Profile) {
        let process = pid.to_string();
        let mapped = match proc.file(&process, "maps").and_then(libraries::mapped) {
            Ok(mapped) => mapped,
            Err(error) => return note(&mut profile.notes, refused("its memory map", &error)),
        };
        if mapped.libtpu_deleted {
            note(&mut profile.notes, "its libtpu.so was replaced on disk since it was loaded".to_owned());
        }
        let Mapped { libtpu, framework, .. } = mapped;
        let all = framework.is_some() && (libtpu.is_some() || !holds_chip);
        profile.libraries = if all { Libraries::Known } else { Libraries::Partly };
        profile.libtpu = libtpu.map(|path| inside(proc, &process, &path));
        let Some((package, library)) = framework else { return };
        let silent = format!("the files of its {package} do not answer: version unknown");
        match self.files.version(package, inside(proc, &process, &library)) {
            Ok(version) => {
                profile.framework = version.map(|version| format!("{package} {version}"));
                profile.notes.retain(|note| *note != silent);
            }
            Err(libraries::Hanging) => {
                profile.libraries = Libraries::Hanging;
                note(&mut profile.notes, silent);
            }
        }
    }

    /// Who made the Unix socket that the profile names.
    pub(super) fn unix_socket(&mut self, profile: &Profile) -> Option<UnixSocket> {
        let path = profile.socket.clone()?;
        let owner = self.files.socket_owner(path.clone()).unwrap_or(None);
        Some(UnixSocket { path, owner })
    }

    fn environment(&mut self, proc: &Procfs, process: &str) -> io::Result<Environment> {
        proc.read(process, "environ", ENVIRON, &mut self.buffer)?;
        let kept = environment::parse(&self.buffer);
        // What is not on the list shall not stay in our memory either.
        self.buffer.fill(0);
        self.buffer.shrink_to(SMALL as usize);
        Ok(kept)
    }

    fn text(&mut self, proc: &Procfs, process: &str, file: &str) -> Option<String> {
        proc.read(process, file, SMALL, &mut self.buffer).ok()?;
        Some(String::from_utf8_lossy(&self.buffer).into_owned())
    }

    /// A user's name, or the number where this machine's passwd file has none; no name service is asked.
    fn user(&mut self, uid: u32) -> String {
        let passwd = self.passwd.get_or_insert_with(|| {
            let mut text = String::new();
            let file = std::fs::File::open("/etc/passwd");
            // Without it users have numbers.
            let _ =
                file.and_then(|file| io::Read::read_to_string(&mut io::Read::take(file, PASSWD), &mut text));
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

/// A path of the process as this agent finds it: as it stands when both see the same files.
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
        io::ErrorKind::PermissionDenied => format!("{what} cannot be read: {}", rights::remedy()),
        _ => format!("{what} cannot be read ({error})"),
    }
}
