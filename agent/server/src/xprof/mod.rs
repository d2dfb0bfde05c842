//! `api.xprof`: the protocol of XProf's own clients, `tensorflow.ProfilerService`, for the whole host.
//!
//! ```text
//! listener     connections, each with its user     service   which call it is, and its answer
//! caller       the user of a connection            request   what a client asks for, checked
//! profile      a capture: one process, or several  answer    an answer while it is made
//! destination  into the answer, or into a file     written   a file of the client's user
//! stored       a session as one trace              monitor   the samples of the chips as text
//! recorded     the recorder as continuous profiling  remarks   what is not in a trace
//! ```
//!
//! A profiler is used as by any capture: through its one handle, so that reservations, the recorder and other captures hold.
//! Must never write with other rights than those of the client's user, pass a path on to a workload, or hold a trace in memory.

mod answer;
pub(crate) mod caller;
mod destination;
pub mod listener;
mod monitor;
mod profile;
mod recorded;
mod remarks;
mod request;
mod service;
mod stored;
pub mod written;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use ::sessions::{capture_runner::Caller, recorder::Recorder};
use model::time::Timestamp;
use store::{AsyncStore, segments::Segments};
use tokio_util::sync::CancellationToken;

pub use service::XprofService;

use self::written::FileOwner;
use crate::{access::Scope, grpc_captures::GrpcCaptures, host_api::HostApi};

/// What the service works with.
pub struct XprofInputs {
    /// Captures of the workloads.
    pub captures: GrpcCaptures,
    /// The past of the workloads.
    pub recorder: Arc<Recorder>,
    /// Where sessions of several processes lie until they are sent.
    pub store: AsyncStore,
    /// Has room for their joined traces.
    pub segments: Arc<Segments>,
    /// The samples.
    pub host_api: Arc<HostApi>,
    /// The folders below which files are written for clients.
    pub roots: Vec<PathBuf>,
}

/// The calls of the service, and what runs.
struct XprofApi {
    inputs: XprofInputs,
    running: Mutex<RunningProfiles>,
    /// Until when each user has taken what was recorded.
    taken: Mutex<BTreeMap<u32, Timestamp>>,
}

/// Who calls, and what they may use.
#[derive(Debug, Clone)]
struct XprofCaller {
    scope: Scope,
    caller: Caller,
    /// Who writes a file for it. `None` where its paths may be others than those of the agent.
    owner: Option<FileOwner>,
}

/// The profiles that run, which another call can end.
#[derive(Debug, Default)]
struct RunningProfiles {
    next: u64,
    profiles: BTreeMap<u64, RunningProfile>,
}

#[derive(Debug)]
struct RunningProfile {
    session_id: String,
    uid: Option<u32>,
    enough: CancellationToken,
}

/// A profile that runs. Dropped, it is forgotten.
struct ProfileEntry {
    api: Arc<XprofApi>,
    number: u64,
}

impl XprofApi {
    /// Notes a profile that its caller can end by `session_id`.
    fn begin(self: &Arc<Self>, session_id: String, uid: Option<u32>) -> (ProfileEntry, CancellationToken) {
        let enough = CancellationToken::new();
        let mut running = self.running();
        let number = running.next;
        running.next += 1;
        running.profiles.insert(number, RunningProfile { session_id, uid, enough: enough.clone() });
        (ProfileEntry { api: Arc::clone(self), number }, enough)
    }

    /// Ends the profiles of this id early that the caller began or may use. An id that does not run is not remembered.
    fn terminate(&self, caller: &XprofCaller, session_id: &str) {
        for profile in self.running().profiles.values() {
            let own = profile.uid.is_some() && profile.uid == caller.caller.uid;
            if profile.session_id == session_id && (own || caller.scope == Scope::All) {
                profile.enough.cancel();
            }
        }
    }

    fn running(&self) -> std::sync::MutexGuard<'_, RunningProfiles> {
        // Each change is one step.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ProfileEntry {
    fn drop(&mut self) {
        self.api.running().profiles.remove(&self.number);
    }
}
