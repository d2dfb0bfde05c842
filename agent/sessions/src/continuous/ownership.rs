//! The record of each session of continuous profiling that this host's agent started: written before the start, removed
//! after the stop.
//!
//! ```text
//! <state>/continuous/<pid>-<start ticks>-<mark>.json
//! ```
//!
//! Whoever finds a record owes the stop. Must never show part of a record, or call a process the one of the record that is
//! a later one.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use host::{regular_file, workloads::process_status};
use model::workload::ProcessKey;
use nix::{errno::Errno, fcntl::OFlag, sys::signal::kill, unistd::Pid};
use serde::{Deserialize, Serialize};
use xprof::client::Target;

/// The folder in the state directory.
const FOLDER: &str = "continuous";
/// The longest record.
const MAX_RECORD: u64 = 4 << 10;
/// How many records are read: far more than a host has workloads.
const MAX_RECORDS: usize = 1024;
/// What the name of a record ends in.
const SUFFIX: &str = ".json";

/// How a session is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContinuousStrategy {
    /// Host tracing: the workload's buffer has no limit, so it is emptied at a steady interval.
    Drain,
    /// Device tracing into a ring that the workload holds: it is asked only when somebody asks.
    Ring,
}

impl ContinuousStrategy {
    /// Its name in settings and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Ring => "ring",
        }
    }
}

/// One session that this host's agent started, or is about to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnedSession {
    /// The workload's pid, as the agent sees it.
    pub pid: u32,
    /// Its start time, clock ticks since boot.
    pub start_ticks: u64,
    /// `host:port` of its profiler.
    pub address: String,
    /// What tells this session from all others: no two have the same.
    pub mark: String,
    /// How it is used.
    pub strategy: ContinuousStrategy,
    /// The longest time between two signs of life of the agent that is normal, milliseconds.
    pub interval_ms: u64,
    /// The boot that the start time counts from.
    pub boot_id: String,
    /// The pid namespace that the pid is of.
    pub pid_namespace: u64,
}

impl OwnedSession {
    /// The process.
    pub fn process(&self) -> ProcessKey {
        ProcessKey { pid: self.pid, start_ticks: self.start_ticks }
    }

    /// Where its profiler listens; `None` in a record that was changed by hand.
    pub fn target(&self) -> Option<Target> {
        self.address.parse().ok()
    }

    /// The name of its record: no two sessions have the same.
    pub fn name(&self) -> String {
        format!("{}-{}-{}{SUFFIX}", self.pid, self.start_ticks, self.mark)
    }

    /// Whether both are sessions of one profiler.
    pub fn same_profiler(&self, other: &Self) -> bool {
        (self.process(), &self.address) == (other.process(), &other.address)
    }
}

/// What tells processes of this boot and of this pid namespace from others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PidScope {
    /// The boot.
    pub boot_id: String,
    /// The inode of the pid namespace.
    pub pid_namespace: u64,
}

/// What has become of the process of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessStanding {
    /// It runs.
    Runs,
    /// It has ended, and its session with it.
    Ended,
    /// It cannot be told: its pid is of another namespace, or the kernel hides it.
    Unknown,
}

impl PidScope {
    /// That of this process.
    ///
    /// # Errors
    /// If `/proc` does not show it.
    pub fn own() -> io::Result<Self> {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        let pid_namespace = fs::metadata("/proc/self/ns/pid")?.ino();
        Ok(Self { boot_id, pid_namespace })
    }

    /// Whether the process of the record still runs. Reads this host's own `/proc`, whatever root the settings name.
    pub fn process_of(&self, session: &OwnedSession) -> ProcessStanding {
        if session.boot_id != self.boot_id {
            return ProcessStanding::Ended;
        }
        if session.pid_namespace != self.pid_namespace {
            return ProcessStanding::Unknown;
        }
        match fs::read(format!("/proc/{}/stat", session.pid)) {
            Ok(stat) if is_dead(&stat) => ProcessStanding::Ended,
            Ok(stat) => match process_status::start_ticks(&stat) {
                Some(ticks) if ticks == session.start_ticks => ProcessStanding::Runs,
                Some(_) => ProcessStanding::Ended,
                None => ProcessStanding::Unknown,
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound && !is_hidden(session.pid) => {
                ProcessStanding::Ended
            }
            Err(_) => ProcessStanding::Unknown,
        }
    }
}

/// Whether it has ended, and only its parent does not know: after `PID (COMMAND) ` comes the state.
fn is_dead(stat: &[u8]) -> bool {
    let after = stat.iter().rposition(|byte| *byte == b')').map_or(&[][..], |end| &stat[end + 1..]);
    matches!(after, [b' ', b'Z' | b'X', ..])
}

/// Whether there is a process with this number that `/proc` does not show (mount option `hidepid`).
fn is_hidden(pid: u32) -> bool {
    let Ok(pid) = i32::try_from(pid) else { return false };
    kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH)
}

/// The records of this host's agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnershipFolder(PathBuf);

impl OwnershipFolder {
    /// In this state directory; nothing is made yet.
    pub fn in_state(state_dir: &Path) -> Self {
        Self(state_dir.join(FOLDER))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a record, which outlives a loss of power when this returns. Blocks.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, session: &OwnedSession) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        let staged = self.0.join(format!("{}.new", session.name()));
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(OFlag::O_NOFOLLOW.bits())
            .open(&staged)?;
        file.write_all(&serde_json::to_vec(session)?)?;
        file.sync_all()?;
        fs::rename(&staged, self.0.join(session.name()))?;
        self.sync()
    }

    /// Removes a record whose session is over. Blocks. A record that comes back after a loss of power is of another boot.
    ///
    /// # Errors
    /// If it cannot be removed; one that is not there is removed.
    pub fn remove(&self, session: &OwnedSession) -> io::Result<()> {
        match fs::remove_file(self.0.join(session.name())) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// All records, and the names of files that are none, which are removed: nobody could act on them. Blocks.
    ///
    /// # Errors
    /// If the folder cannot be read; one that is not there is empty.
    pub fn read(&self) -> io::Result<(Vec<OwnedSession>, Vec<String>)> {
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Default::default()),
            entries => entries?,
        };
        let (mut sessions, mut broken) = (Vec::new(), Vec::new());
        for entry in entries.take(MAX_RECORDS) {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let path = self.0.join(&name);
            match read_record(&path) {
                Ok(session) if session.name() == name => sessions.push(session),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                _ => {
                    // A start waits for its whole record, so half a record is of none.
                    let _ = fs::remove_file(&path);
                    if name.ends_with(SUFFIX) {
                        broken.push(name);
                    }
                }
            }
        }
        Ok((sessions, broken))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }
}

fn read_record(path: &Path) -> io::Result<OwnedSession> {
    let mut text = Vec::new();
    regular_file::open(path)?.take(MAX_RECORD).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use std::process::{self, Command};

    use super::*;

    fn of_process(pid: u32) -> OwnedSession {
        let scope = PidScope::own().unwrap();
        let stat = fs::read(format!("/proc/{pid}/stat")).unwrap();
        OwnedSession {
            pid,
            start_ticks: process_status::start_ticks(&stat).unwrap(),
            address: "127.0.0.1:9012".into(),
            mark: "m".into(),
            strategy: ContinuousStrategy::Drain,
            interval_ms: 5000,
            boot_id: scope.boot_id,
            pid_namespace: scope.pid_namespace,
        }
    }

    #[test]
    fn a_record_is_there_until_it_is_removed() {
        let state = tempfile::tempdir().unwrap();
        let folder = OwnershipFolder::in_state(state.path());
        assert_eq!(folder.read().unwrap(), Default::default());
        let session = of_process(process::id());
        folder.write(&session).unwrap();
        folder.write(&session).unwrap();
        assert_eq!(folder.read().unwrap(), (vec![session.clone()], vec![]));
        folder.remove(&session).unwrap();
        folder.remove(&session).unwrap();
        assert_eq!(folder.read().unwrap(), Default::default());
    }

    #[test]
    fn what_is_no_record_is_named_and_removed() {
        let state = tempfile::tempdir().unwrap();
        let folder = OwnershipFolder::in_state(state.path());
        let session = of_process(process::id());
        folder.write(&session).unwrap();
        let write = |name: &str, text: &[u8]| fs::write(folder.path().join(name), text).unwrap();
        write("half.json", b"{\"pid\":1");
        write("1-2-3.json.new", b"");
        // A record under the name of another one.
        write("1-2-3.json", &serde_json::to_vec(&session).unwrap());
        let (sessions, mut broken) = folder.read().unwrap();
        broken.sort();
        assert_eq!(
            (sessions, broken),
            (vec![session.clone()], vec!["1-2-3.json".into(), "half.json".into()])
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_later_process_is_told_from_that_of_the_record() {
        let scope = PidScope::own().unwrap();
        let own = of_process(process::id());
        assert_eq!(scope.process_of(&own), ProcessStanding::Runs);
        let later = OwnedSession { start_ticks: own.start_ticks - 1, ..own.clone() };
        assert_eq!(scope.process_of(&later), ProcessStanding::Ended);
        let other_boot = OwnedSession { boot_id: "x".into(), ..own.clone() };
        assert_eq!(scope.process_of(&other_boot), ProcessStanding::Ended);
        let elsewhere = OwnedSession { pid_namespace: 1, ..own };
        assert_eq!(scope.process_of(&elsewhere), ProcessStanding::Unknown);
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let of_child = of_process(child.id());
        assert_eq!(scope.process_of(&of_child), ProcessStanding::Runs);
        child.kill().unwrap();
        while scope.process_of(&of_child) == ProcessStanding::Runs {
            std::thread::yield_now();
        }
        assert_eq!(
            scope.process_of(&of_child),
            ProcessStanding::Ended,
            "its parent has not waited for it yet"
        );
        child.wait().unwrap();
        assert_eq!(scope.process_of(&of_child), ProcessStanding::Ended);
    }
}
