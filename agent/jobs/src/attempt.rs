//! One attempt of a job on this host: from its start to its end.

use model::{device::ChipIndex, time::Timestamp, workload::ProcessKey};

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

/// The end of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptEnd {
    /// When.
    pub at: Timestamp,
    /// How.
    pub how: Ending,
    /// Whether a hook said so. If not, it was concluded from processes that are gone, and a process that is seen again
    /// disproves it.
    pub told: bool,
}

/// What is said of a job beside its key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobDescription {
    /// Its name.
    pub name: Option<String>,
    /// Another id by which its user knows it, such as `12_3` of a task of a job array.
    pub other_id: Option<String>,
    /// All its hosts, in the order of their ranks.
    pub hosts: Vec<String>,
    /// The rank of this host.
    pub rank: Option<u32>,
}

impl JobDescription {
    /// Takes what `newer` knows; what it does not know stays.
    pub(crate) fn update(&mut self, newer: &Self) {
        let Self { name, other_id, hosts, rank } = newer;
        if name.is_some() {
            self.name.clone_from(name);
        }
        if other_id.is_some() {
            self.other_id.clone_from(other_id);
        }
        if !hosts.is_empty() {
            self.hosts.clone_from(hosts);
        }
        self.rank = rank.or(self.rank);
    }
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
    /// Its processes that hold chips now.
    pub processes: Vec<ProcessKey>,
    /// The chips that it held last.
    pub chips: Vec<ChipIndex>,
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

    /// Ends it. An end that a hook told stays against one that was concluded. No attempt ends before its start: the
    /// clock may have stepped back.
    pub(crate) fn finish(&mut self, end: AttemptEnd) {
        if self.end.is_some_and(|before| before.told && !end.told) {
            return;
        }
        let at = self.start.map_or(end.at, |start| end.at.max(start));
        self.end = Some(AttemptEnd { at, ..end });
        self.awaits_hook = false;
    }
}
