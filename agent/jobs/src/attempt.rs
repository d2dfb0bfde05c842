//! One attempt of a job on this host: from its start to its end.

use std::collections::BTreeMap;

use model::{device::ChipIndex, time::Timestamp, workload::ProcessKey};
use serde::{Deserialize, Serialize};

/// Software and system, such as `version.jax`, `variable.XLA_FLAGS` and `system.kernel`, with their values.
pub type Configuration = BTreeMap<String, String>;

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// With this exit code.
    Exit(u8),
    /// By this signal.
    Signal(u8),
    /// The host went down.
    NodeLost,
    /// The scheduler put the job back into its queue, or started its next attempt.
    Requeued,
    /// Nobody said.
    Unknown,
}

impl Ending {
    /// Its name in JSON, and the exit code or the number of the signal.
    pub fn parts(self) -> (&'static str, Option<u8>) {
        match self {
            Self::Exit(code) => ("exit", Some(code)),
            Self::Signal(signal) => ("signal", Some(signal)),
            Self::NodeLost => ("node_lost", None),
            Self::Requeued => ("requeued", None),
            Self::Unknown => ("unknown", None),
        }
    }

    /// The ending with this name and code; `None` if there is none, or a code is missing.
    pub fn of_parts(name: &str, code: Option<u8>) -> Option<Self> {
        match (name, code) {
            ("exit", Some(code)) => Some(Self::Exit(code)),
            ("signal", Some(signal)) => Some(Self::Signal(signal)),
            ("node_lost", _) => Some(Self::NodeLost),
            ("requeued", _) => Some(Self::Requeued),
            ("unknown", _) => Some(Self::Unknown),
            _ => None,
        }
    }
}

/// The end of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptEnd {
    /// The time of its end.
    pub at: Timestamp,
    /// The way it ended.
    pub how: Ending,
    /// Whether a hook said so. If not, it was concluded from processes that are gone, and a process that is seen again
    /// disproves it.
    pub told: bool,
}

/// The most hosts of a job that are kept by name.
pub const MAX_HOSTS: usize = 512;

/// What is said of a job beside its key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobDescription {
    /// Its name.
    pub name: Option<String>,
    /// Another id by which its user knows it, such as `12_3` of a task of a job array.
    pub other_id: Option<String>,
    /// The name of its user.
    pub user: Option<String>,
    /// Its hosts, in the order of their ranks: the first [`MAX_HOSTS`].
    pub hosts: Vec<String>,
    /// The rank of this host.
    pub rank: Option<u32>,
}

impl JobDescription {
    /// Takes what `newer` knows; what it does not know stays.
    pub(crate) fn update(&mut self, newer: &Self) {
        let Self { name, other_id, user, hosts, rank } = newer;
        for (old, new) in [(&mut self.name, name), (&mut self.other_id, other_id), (&mut self.user, user)] {
            if new.is_some() {
                old.clone_from(new);
            }
        }
        if !hosts.is_empty() {
            self.hosts = hosts.iter().take(MAX_HOSTS).cloned().collect();
        }
        self.rank = rank.or(self.rank);
    }
}

/// The most leftovers of an attempt that are kept.
pub const MAX_LEFTOVERS: usize = 64;

/// What an attempt had left on this host when its hook looked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptLeftover {
    /// A process that lived on; `None`: a lock file that no process has locked.
    pub pid: Option<u32>,
    /// The command of that process.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// The device nodes and lock files that it held, or the lock file.
    pub files: Vec<String>,
}

/// One attempt of a job on this host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attempt {
    /// 0 is the first.
    pub number: u32,
    /// When it started; `None` if only its end is known.
    pub start: Option<Timestamp>,
    /// Its end; `None` while it runs.
    pub end: Option<AttemptEnd>,
    /// The time of the last event.
    pub last_event: Timestamp,
    /// What is said of it.
    pub description: JobDescription,
    /// A hook said that it started, and will say that it ended.
    pub awaits_hook: bool,
    /// The process of `tpuscope run`, while it lives.
    pub command: Option<ProcessKey>,
    /// How that process ended, where it is known: other processes of the attempt may go on.
    pub command_ending: Option<Ending>,
    /// Its processes that hold chips now.
    pub processes: Vec<ProcessKey>,
    /// The chips that it held last.
    pub chips: Vec<ChipIndex>,
    /// Its software and system.
    pub configuration: Configuration,
    /// What it had left when its hook told its end: the first [`MAX_LEFTOVERS`].
    pub leftovers: Vec<AttemptLeftover>,
}

impl Attempt {
    /// Whether it has not ended.
    pub fn is_open(&self) -> bool {
        self.end.is_none()
    }

    /// Whether nothing keeps it alive: no process of it is known, and no hook will end it.
    pub(crate) fn is_abandoned(&self) -> bool {
        !self.awaits_hook && self.command.is_none() && self.processes.is_empty()
    }

    /// It ran at this time. One that ended ran before its end, whatever the clock says.
    pub(crate) fn started_no_later(&mut self, at: Timestamp) {
        let at = self.end.map_or(at, |end| at.min(end.at));
        self.start = Some(self.start.map_or(at, |start| start.min(at)));
    }

    /// Ends it. The first end that a hook told stays: hooks may run twice, and what was concluded is less certain. No attempt
    /// ends before its start: the clock may have stepped back.
    pub(crate) fn finish(&mut self, end: AttemptEnd) {
        if self.end.is_some_and(|before| before.told) {
            return;
        }
        let at = self.start.map_or(end.at, |start| end.at.max(start));
        self.end = Some(AttemptEnd { at, ..end });
        self.awaits_hook = false;
    }

    /// Ends it at the time of the last event.
    pub(crate) fn end_when_last_heard_of(&mut self, how: Ending) {
        self.finish(AttemptEnd { at: self.last_event, how, told: false });
        self.forget_processes();
    }

    /// None of its processes is left.
    pub(crate) fn forget_processes(&mut self) {
        self.command = None;
        self.processes.clear();
    }
}
