//! Profilers of workloads: one task for each, which alone talks to it.
//!
//! Users reserve a profiler ([`Profilers::reserve`]) and use it through the [`ProfilerLease`]. What happens when is
//! decided by the [`queue`]; the task ([`task`]) does it. Dropping a lease ends what it began in the workload.
//! Must never end a session that the queue does not call its own.

mod open_session;
pub mod queue;
mod sink;
mod task;

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use host::workloads::process_status;
use model::workload::ProcessKey;
use proto::tensorflow::ProfileRequest;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};
use xprof::client::{self, Bounds, ProfilerClient, Received, Target, TracePiece};

use self::{
    queue::{ForeignUse, LeaseId, ProfilerUser, Refusal},
    task::{Message, ProfilerTask, ReserveRequest},
};
use crate::target::CaptureTarget;
pub use sink::TraceSink;

/// Messages that wait for a task.
const INBOX: usize = 16;

/// A profiler, by what cannot be mistaken for a later one where that is known.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProfilerKey {
    /// Of a known process: its pid, its start time and its port.
    Process(ProcessKey, u16),
    /// Only an address is known.
    Address(Target),
}

impl ProfilerKey {
    fn of(target: &CaptureTarget) -> Self {
        match target.process {
            Some(process) => Self::Process(process, target.at.port()),
            None => Self::Address(target.at.clone()),
        }
    }
}

/// How to probe a profiler.
#[derive(Debug, Clone, Copy)]
pub struct ProbeTimeouts {
    /// For the connection.
    pub connect: Duration,
    /// For the answer.
    pub answer: Duration,
}

/// A profiler that answered a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeAnswer {
    /// The address that answered: the same for two names of one profiler.
    pub peer: SocketAddr,
    /// How long the answer took.
    pub round_trip: Duration,
}

/// One profile to record.
pub struct ProfileJob {
    /// The request. Its session id must be fresh.
    pub request: ProfileRequest,
    /// Where the trace goes.
    pub sink: TraceSink,
    /// Deadline and size.
    pub bounds: Bounds,
    /// Receives the number of bytes so far. Must not block.
    pub progress: Box<dyn FnMut(u64) + Send + Sync>,
    /// Ends it early, with nothing received.
    pub cancel: CancellationToken,
    /// Ends its window early: what was recorded so far is received.
    pub enough: CancellationToken,
}

/// One profile whose trace is passed on as it arrives.
pub struct ForwardJob {
    /// The request. Its session id must be fresh.
    pub request: ProfileRequest,
    /// Who gets the trace.
    pub to: mpsc::Sender<TracePiece>,
    /// Deadline and size.
    pub bounds: Bounds,
    /// Ends it early.
    pub cancel: CancellationToken,
    /// Ends its window early: what was recorded so far is passed on.
    pub enough: CancellationToken,
}

/// Why a profiler could not be used.
#[derive(Debug)]
pub enum ProfilerError {
    /// The call failed. `connected` names the processes that are connected to a busy profiler.
    Call {
        /// Error of the call.
        error: client::Error,
        /// Such as `pid 17 (python)`.
        connected: Vec<String>,
    },
    /// It was cancelled.
    Cancelled,
    /// The lease expired.
    LeaseExpired,
}

/// The profilers that are in use, each with its task.
#[derive(Debug)]
pub struct Profilers {
    procfs: PathBuf,
    tasks: Mutex<BTreeMap<ProfilerKey, mpsc::Sender<Message>>>,
}

impl Profilers {
    /// No profiler yet. `procfs` is this host's, to name the users of a busy profiler.
    pub fn new(procfs: PathBuf) -> Arc<Self> {
        Arc::new(Self { procfs, tasks: Mutex::default() })
    }

    /// This host's procfs.
    pub(crate) fn procfs(&self) -> &Path {
        &self.procfs
    }

    /// Whether a signal or a debugger has stopped a process of this host: then its profiler answers nothing. `None` if that is
    /// not known. Blocks.
    pub fn is_stopped(&self, process: ProcessKey) -> Option<bool> {
        let stat = fs::read(self.procfs.join(process.pid.to_string()).join("stat")).ok()?;
        process_status::is_stopped(&stat, process.start_ticks)
    }

    /// Reserves the profiler of `target` for `user`, for `within` at most. A capture waits until the recorder has
    /// received what it has recorded so far.
    ///
    /// # Errors
    /// If it is reserved.
    pub async fn reserve(
        &self,
        target: &CaptureTarget,
        user: &ProfilerUser,
        within: Duration,
    ) -> Result<ProfilerLease, Refusal> {
        loop {
            let task = self.task(target);
            let (over, wanted) = (CancellationToken::new(), CancellationToken::new());
            let (reply, answer) = oneshot::channel();
            // A user who gives up waiting has no lease.
            let guard = over.clone().drop_guard();
            let request = ReserveRequest { user: user.clone(), within, over, wanted: wanted.clone(), reply };
            // A task that was idle may end just now: then the next one is asked.
            if task.send(Message::Reserve(request)).await.is_err() {
                continue;
            }
            if let Ok(answer) = answer.await {
                let lease = answer?;
                let target = target.at.clone();
                return Ok(ProfilerLease { task, lease, target, wanted, _over: guard });
            }
        }
    }

    /// The task of the profiler, started if there is none.
    fn task(&self, target: &CaptureTarget) -> mpsc::Sender<Message> {
        // The map is whole even if a holder of the lock panicked.
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.retain(|_, task| !task.is_closed());
        tasks
            .entry(ProfilerKey::of(target))
            .or_insert_with(|| {
                let (task, inbox) = mpsc::channel(INBOX);
                let on_this_host = target.at.is_loopback() || target.process.is_some();
                let procfs = on_this_host.then(|| self.procfs.clone());
                tokio::spawn(ProfilerTask::new(target.at.clone(), procfs, inbox).run());
                task
            })
            .clone()
    }
}

/// The right to use one profiler. Dropped, it is given back, and what it began is ended.
#[derive(Debug)]
pub struct ProfilerLease {
    task: mpsc::Sender<Message>,
    lease: LeaseId,
    target: Target,
    wanted: CancellationToken,
    _over: DropGuard,
}

impl ProfilerLease {
    /// Where the profiler listens.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Cancelled when a user who goes first waits for the profiler.
    pub fn wanted(&self) -> &CancellationToken {
        &self.wanted
    }

    /// Connects to the profiler and asks a harmless question.
    ///
    /// # Errors
    /// If it does not answer as a profiler does.
    pub async fn probe(&self, timeouts: ProbeTimeouts) -> Result<ProbeAnswer, ProfilerError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Message::Probe { lease: self.lease, timeouts, reply }, answer).await
    }

    /// Records a profile. A session that may be left in the workload after an error is ended before this returns.
    ///
    /// # Errors
    /// If there is no complete trace.
    pub async fn profile(&self, job: ProfileJob) -> Result<Received<TraceSink>, ProfilerError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Message::Profile { lease: self.lease, job: Box::new(job), reply }, answer).await
    }

    /// Records a profile and passes its trace on. A session that may be left in the workload after an error is ended before
    /// this returns.
    ///
    /// # Errors
    /// If not all of the trace was passed on.
    pub async fn forward(&self, job: ForwardJob) -> Result<(), ProfilerError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Message::Forward { lease: self.lease, job: Box::new(job), reply }, answer).await
    }

    /// Makes another call, on the connection of the last probe. If the call starts something in the workload, the caller
    /// ends it before it drops the lease.
    ///
    /// # Errors
    /// If the call fails.
    pub async fn call<T, Make, Answer>(&self, make: Make) -> Result<T, ProfilerError>
    where
        T: Send + 'static,
        Make: FnOnce(ProfilerClient) -> Answer + Send + 'static,
        Answer: Future<Output = Result<T, client::Error>> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let call = Box::new(|client, procfs| -> task::OperationFuture {
            Box::pin(task::call(client, procfs, make, reply))
        });
        self.ask(Message::Call { lease: self.lease, call }, answer).await
    }

    async fn ask<T>(
        &self,
        message: Message,
        answer: oneshot::Receiver<Result<T, ProfilerError>>,
    ) -> Result<T, ProfilerError> {
        // The task keeps running while there is a lease; it drops a request when the lease expires.
        if self.task.send(message).await.is_err() {
            return Err(ProfilerError::LeaseExpired);
        }
        answer.await.unwrap_or(Err(ProfilerError::LeaseExpired))
    }
}

impl From<&ForeignUse> for client::Error {
    fn from(foreign: &ForeignUse) -> Self {
        let message = foreign.message.clone();
        if foreign.continuous { Self::AlreadyExists(message) } else { Self::Busy(message) }
    }
}
