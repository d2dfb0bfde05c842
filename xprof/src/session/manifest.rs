//! `manifest.json`: what a session holds, what it lacks and why. `docs/schemas/manifest.schema.json` is its schema.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::SessionId;

/// The version that this build writes. It goes up when a reader of an older one would be misled; new
/// fields alone do not raise it.
pub const MANIFEST_VERSION: u32 = 1;

/// One session, as its manifest tells it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(expecting = "an object")]
pub struct Manifest {
    /// [`MANIFEST_VERSION`] of the writer.
    pub version: u32,
    /// The session's name.
    pub session: String,
    /// Tells it apart from other sessions of its name; absent in manifests of older builds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<SessionId>,
    /// Who wrote it.
    pub tool: Tool,
    /// When its writer finished it; absent in manifests of older builds. See [`Manifest::created_at`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Timestamp>,
    /// The window that was asked for, in the coordinator's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// The tracer levels that were asked for; absent in manifests of older builds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracer_levels: Option<TracerLevels>,
    /// The advanced profiler options that were asked for, as text.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
    /// The step at which the window was to begin; absent if none was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_step: Option<AtStep>,
    /// The hosts with at least one part, by name.
    pub hosts: Vec<HostEntry>,
    /// What was asked for and is not here; empty in a complete session.
    #[serde(default)]
    pub missing: Vec<Missing>,
    /// What a reader of the session should know.
    #[serde(default)]
    pub warnings: Vec<String>,
}

impl Manifest {
    /// The warnings of the session, then those of each host and of its parts, which begin with the name of the file.
    pub fn all_warnings(&self) -> impl Iterator<Item = String> {
        let of_hosts = self.hosts.iter().flat_map(|host| {
            let of_part = |part: &PartEntry, text: &String| format!("{}: {text}", part.file);
            let of_parts = host
                .parts
                .iter()
                .flat_map(move |part| part.warnings.iter().map(move |text| of_part(part, text)));
            host.warnings.iter().cloned().chain(of_parts)
        });
        self.warnings.iter().cloned().chain(of_hosts)
    }

    /// When the session was made: as its writer says, else the start of its window, else unknown. The times of
    /// files tell when they were copied, so they are not used.
    pub fn created_at(&self) -> Option<Timestamp> {
        self.created.or(self.window.map(|window| window.start))
    }

    /// The content of its file.
    ///
    /// # Panics
    /// Never: its keys are texts.
    pub fn text(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).expect("a manifest has only string keys");
        text.push(b'\n');
        text
    }

    /// The bytes of its parts.
    pub fn parts_bytes(&self) -> u64 {
        self.hosts.iter().flat_map(|host| &host.parts).fold(0, |sum, part| sum.saturating_add(part.size))
    }
}

/// A program and its version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(expecting = "an object with name and version")]
pub struct Tool {
    /// Such as `tpuscope`.
    pub name: String,
    /// Such as `0.1.0`.
    pub version: String,
}

impl Tool {
    /// This build.
    pub fn this() -> Self {
        Self { name: "tpuscope".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
    }
}

/// How much each tracer records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(expecting = "an object with host, device and python")]
pub struct TracerLevels {
    /// Host events: 0 none, 1 those of the user, 2 also costly operations, 3 all.
    pub host: u32,
    /// Device events: 0 none, 1 all.
    pub device: u32,
    /// Python calls: 0 none, 1 all.
    pub python: u32,
}

impl TracerLevels {
    /// Whether a capture with these levels and advanced options asks for a trace of the devices: without, a trace that
    /// has none lost nothing.
    pub fn ask_for_devices(&self, options: &BTreeMap<String, String>) -> bool {
        self.device > 0 && options.get("tpu_trace_mode").is_none_or(|mode| mode != "TRACE_ONLY_HOST")
    }
}

/// A stretch of time, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(expecting = "an object with start and stop")]
pub struct Window {
    /// Its first instant.
    pub start: Timestamp,
    /// Its last instant.
    pub stop: Timestamp,
}

impl Window {
    /// The window between two instants in nanoseconds since the epoch; none where one is out of range.
    pub fn from_ns(start: u64, stop: u64) -> Option<Self> {
        let at = |ns: u64| Timestamp::from_nanosecond(i128::from(ns)).ok();
        Some(Self { start: at(start)?, stop: at(stop)? })
    }

    /// Its length in nanoseconds; 0 where it ends before it starts.
    pub fn length_ns(&self) -> u64 {
        let length = self.stop.as_nanosecond() - self.start.as_nanosecond();
        u64::try_from(length.max(0)).unwrap_or(u64::MAX)
    }
}

/// A step at which a window was to begin, and where it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(expecting = "an object with step")]
pub struct AtStep {
    /// The number that was asked for.
    pub step: i64,
    /// The number of the first whole step in any part; absent if no part shows a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_step: Option<i64>,
    /// How many steps after the one that was asked for that is; negative: before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off_by: Option<i64>,
}

impl AtStep {
    /// Step `step` was asked for, and these are the hosts of the session.
    pub fn of(step: i64, hosts: &[HostEntry]) -> Self {
        let parts = hosts.iter().flat_map(|host| &host.parts);
        let first_step = parts.filter_map(|part| part.steps?.first).min();
        Self { step, first_step, off_by: first_step.map(|first| first.saturating_sub(step)) }
    }
}

/// The steps that lie wholly inside a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(expecting = "an object with count and median_ns")]
pub struct PartSteps {
    /// The number of them.
    pub count: u64,
    /// The median of their lengths in nanoseconds.
    pub median_ns: u64,
    /// The least number, if they are numbered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<i64>,
    /// The greatest number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<i64>,
}

/// How a host's clock stood to the coordinator's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(expecting = "an object with offset_ns and bound_ns")]
pub struct ClockOffset {
    /// Host clock minus coordinator clock.
    pub offset_ns: i64,
    /// The offset is wrong by no more than this.
    pub bound_ns: u64,
}

/// One host and its parts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(expecting = "an object with host and parts")]
pub struct HostEntry {
    /// The host's name.
    pub host: String,
    /// Its clock, where it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<ClockOffset>,
    /// Its parts, by file name.
    pub parts: Vec<PartEntry>,
    /// What a reader of this host's parts should know.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// One part: the trace of one process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(expecting = "an object that describes a part")]
pub struct PartEntry {
    /// The file's name in the session folder.
    pub file: String,
    /// Its length in bytes.
    pub size: u64,
    /// Its SHA-256, in hex.
    pub sha256: String,
    /// The process, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Its command, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The id of its user, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The name of its user on its host, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The versions of its libraries by name, such as `jaxlib`: as the trace says, else as its files say. Only what was
    /// observed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub versions: BTreeMap<String, String>,
    /// The profiler that sent it, as `host:port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The job of the process, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<Box<PartJob>>,
    /// How many planes it holds.
    pub planes: u64,
    /// How many lines.
    pub lines: u64,
    /// How many events.
    pub events: u64,
    /// What the trace itself says it covers (`Task Environment`), in the host's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// How long after the asked start it began, where that was too long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_start_ns: Option<u64>,
    /// Its steps; absent if it shows none, or was not read for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<PartSteps>,
    /// What is doubtful about it, in words; each of its losses has one warning.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// What it lost, certainly or probably; empty in manifests of older builds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub losses: Vec<LossEntry>,
    /// The stretches that the recorder recorded and this part was made of, by time; empty in a capture.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recorded: Vec<Window>,
    /// The stretches between, in which nothing was recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<GapEntry>,
}

/// A stretch of a part in which nothing was recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(expecting = "an object with start, stop and why")]
pub struct GapEntry {
    /// Its first instant.
    pub start: Timestamp,
    /// Its last instant.
    pub stop: Timestamp,
    /// Why nothing was recorded.
    pub why: String,
}

/// One loss of a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(expecting = "an object with kind and certain")]
pub struct LossEntry {
    /// What was lost, such as `dropped_buffers`; later builds may know further kinds.
    pub kind: String,
    /// Whether nothing but a loss explains what was found.
    pub certain: bool,
    /// The plane that lacks it, where it is one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plane: Option<String>,
    /// How many are counted, where they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

/// The job that a part's process belongs to. Parts of one job have the same kind and id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(expecting = "an object with kind and id")]
pub struct PartJob {
    /// What names it, such as `slurm` or `jobset`.
    pub kind: String,
    /// Its id.
    pub id: String,
    /// 0 at the first start, one more at each restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Its name, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Who runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The rank of the part's host in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
}

/// A part, or a whole host, that was asked for and is not here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(expecting = "an object with host and why")]
pub struct Missing {
    /// The host.
    pub host: String,
    /// The process on it (address or pid); none where all of the host is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// Why it is missing.
    pub why: String,
}
