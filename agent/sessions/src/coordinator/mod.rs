//! A capture over several hosts: one window for all of them, and one session of what they recorded. A snapshot over several
//! hosts is the same for a window that is over: each host makes its part of its own past.
//!
//! ```text
//!             ┌────────────── conversation with host 1 ──┐  dial ─ status ─ clock ─ reserve ─ start ─ record ─ collect
//! Coordinator │                                          │
//!      │      └────────────── conversation with host n ──┘
//!      └─ machine: when each is told what (pure) ─ joined_manifest: one manifest (pure)
//! ```
//!
//! A host that fails in any phase is missing in the session, with the reason; the others do not wait for it longer than its
//! limits. The coordinator holds nothing that lasts: when it ends, however it ends, the agents free their profilers.
//!
//! Must never keep a host reserved that it cannot start soon, or let a missing host pass as success.

mod collect;
mod conversation;
mod fault;
mod machine;
mod recording;
mod run;
mod snapshot;

use std::{path::PathBuf, sync::Arc, time::Duration};

use cluster::{clock_offset::OffsetEstimate, dial::Dialer, hosts::HostAddress};
use model::time::{Clock, Timestamp};
use proto::tpuscope::v1::{CaptureFailure, CaptureRequest, Peer, SnapshotRequest};
use xprof::session::{HostName, Manifest, SessionName};

pub use fault::{CoordinatorError, HostFault, HostStage, LeftParts, UnkeptCapture};

/// What to capture, and where.
#[derive(Debug, Clone)]
pub struct HostsCapture {
    /// The hosts, none twice.
    pub hosts: Vec<HostAddress>,
    /// What each of them is asked for.
    pub request: HostsRequest,
    /// The session's name; none: named after the time.
    pub session: Option<SessionName>,
    /// Where the session goes to.
    pub keep: Keep,
    /// With fewer hosts that have a trace nothing is kept; at least 1.
    pub min_hosts: usize,
    /// The start of the window; none: as soon as all hosts are ready.
    pub start: Option<Timestamp>,
    /// The longest wait for a host to be reached, and for each of its answers.
    pub host_limit: Duration,
    /// The longest time from the end of the window until a host has its traces.
    pub answer_limit: Duration,
    /// The longest wait for a host whose profilers are in use.
    pub busy_limit: Duration,
    /// The longest time for all of it.
    pub overall_limit: Option<Duration>,
}

/// What each host is asked for. Its session and where that goes are chosen by the coordinator.
#[derive(Debug, Clone)]
pub enum HostsRequest {
    /// A window to come, whose start is chosen here too.
    Capture(CaptureRequest),
    /// What its recorder has of this time, in the clock of the coordinator.
    Snapshot(SnapshotRequest),
}

impl HostsRequest {
    /// The length of the window.
    fn window(&self) -> Duration {
        match self {
            Self::Capture(capture) => Duration::from_nanos(capture.duration_ns),
            Self::Snapshot(past) => Timestamp(past.from_unix_ns).age(Timestamp(past.to_unix_ns)),
        }
    }

    /// The begin of a window that is over.
    fn past(&self) -> Option<Timestamp> {
        match self {
            Self::Capture(_) => None,
            Self::Snapshot(past) => Some(Timestamp(past.from_unix_ns)),
        }
    }

    /// The same for one session, to this destination if that is not the agents' own choice.
    fn of_session(&self, peer: &Peer, session: &SessionName, to: Option<String>) -> Self {
        let (peer, session) = (Some(peer.clone()), session.to_string());
        match self.clone() {
            Self::Capture(capture) => Self::Capture(CaptureRequest {
                peer,
                session,
                start_unix_ns: None,
                destination: to.unwrap_or(capture.destination),
                ..capture
            }),
            Self::Snapshot(past) => Self::Snapshot(SnapshotRequest {
                peer,
                session,
                destination: to.unwrap_or(past.destination),
                ..past
            }),
        }
    }
}

/// Where the session goes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keep {
    /// A logdir of this machine.
    Folder(PathBuf),
    /// A destination of the agents' settings, which upload.
    Destination {
        /// Its name.
        name: String,
        /// The longest wait for an upload.
        limit: Duration,
    },
}

/// The capture on its way, for those who show it. Hosts are numbered as they were given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostProgress {
    /// The agent of a host answered.
    Reached,
    /// A host is missing.
    Missing {
        /// The host.
        host: usize,
    },
    /// The profilers of a host are reserved.
    Ready {
        /// The host.
        host: usize,
        /// Their number.
        processes: usize,
    },
    /// The profilers of a host are in use, and it is waited for.
    Busy {
        /// The host.
        host: usize,
    },
    /// The profilers of a host were released, to be reserved again.
    Released {
        /// The host.
        host: usize,
    },
    /// The window begins then.
    Starts(Timestamp),
    /// The agent of a host received this many bytes of one of its processes so far.
    Received {
        /// The host.
        host: usize,
        /// The process, by its number there.
        target: u32,
        /// The bytes.
        bytes: u64,
    },
    /// Another program uses a profiler: all hosts are reserved again.
    BeginsAgain,
    /// A host has recorded.
    Recorded,
    /// This many bytes of a host were copied or uploaded so far.
    Copied {
        /// The host.
        host: usize,
        /// The bytes.
        bytes: u64,
    },
    /// The upload of a host waits.
    UploadWaits {
        /// The host.
        host: usize,
        /// The reason.
        why: String,
    },
    /// All of a host is where it should be.
    Stored,
}

/// Is told of the progress. It is called on the thread that waits, so it must return at once.
pub type HostsListener = Arc<dyn Fn(HostProgress) + Send + Sync>;

/// A session over several hosts that was kept.
#[derive(Debug)]
pub struct KeptCapture {
    /// Its manifest.
    pub manifest: Manifest,
    /// Its folder here, or the URL of its folder.
    pub location: SessionLocation,
    /// What became of each host, in the order in which they were given.
    pub hosts: Vec<HostResult>,
}

/// Where a session is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionLocation {
    /// A folder of this machine.
    Folder(PathBuf),
    /// The folder at a destination.
    Url(String),
}

/// What became of a host.
#[derive(Debug)]
pub struct HostResult {
    /// As it was given.
    pub host: HostAddress,
    /// What it has in the session, or why it is missing.
    pub result: Result<CapturedHost, HostFault>,
}

/// A host with a trace.
#[derive(Debug, Clone)]
pub struct CapturedHost {
    /// What it is called in the session.
    pub name: HostName,
    /// Its clock.
    pub clock: OffsetEstimate,
    /// Why some of its processes have no part.
    pub failures: Vec<CaptureFailure>,
}

/// Captures over several hosts.
pub struct Coordinator {
    /// Reaches the hosts.
    pub dialer: Arc<Dialer>,
    /// The clock that the hosts' ones are compared with.
    pub clock: Arc<dyn Clock>,
    /// What this program says of itself.
    pub peer: Peer,
    /// Receives the progress.
    pub listener: HostsListener,
}
