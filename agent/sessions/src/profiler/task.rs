//! The task of one profiler: does what the queue says, one action at a time.

use std::{
    collections::{BTreeMap, VecDeque},
    future::Future,
    path::PathBuf,
    pin::Pin,
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::debug;
use xprof::client::{self, ProfilerClient, Received, Target};

use super::{
    ForwardJob, ProbeAnswer, ProbeTimeouts, ProfileJob, ProfilerError, TraceSink,
    open_session::{forward, profile},
    queue::{
        Action, ForeignUse, LeaseId, MAX_WAITING, Outcome, ProfilerOperation, ProfilerUser, Refusal,
        RequestId, RequestQueue,
    },
};
use crate::port_users;

/// How long ending a session of ours may take.
pub(super) const END: Duration = Duration::from_millis(500);
/// How long the search for the users of a busy profiler may take.
const LOOK: Duration = Duration::from_secs(2);
/// A task without anything to do ends after this time.
const IDLE: Duration = Duration::from_secs(10);

pub(super) type Reply<T> = oneshot::Sender<Result<T, ProfilerError>>;

/// What a user tells the task.
pub(super) enum Message {
    Reserve(ReserveRequest),
    Probe { lease: LeaseId, timeouts: ProbeTimeouts, reply: Reply<ProbeAnswer> },
    Profile { lease: LeaseId, job: Box<ProfileJob>, reply: Reply<Received<TraceSink>> },
    Forward { lease: LeaseId, job: Box<ForwardJob>, reply: Reply<()> },
    Call { lease: LeaseId, call: CallOnProfiler },
}

/// Reserves the profiler until `over` is cancelled, for `within` at most.
pub(super) struct ReserveRequest {
    pub(super) user: ProfilerUser,
    pub(super) within: Duration,
    pub(super) over: CancellationToken,
    /// Cancelled when a user who goes first waits for the profiler.
    pub(super) wanted: CancellationToken,
    pub(super) reply: oneshot::Sender<Result<LeaseId, Refusal>>,
}

/// The lease in force.
struct CurrentLease {
    id: LeaseId,
    over: CancellationToken,
    wanted: CancellationToken,
}

/// Makes a call of a user and answers it. The client is that of the last probe.
pub(super) type CallOnProfiler =
    Box<dyn FnOnce(Option<ProfilerClient>, Option<PathBuf>) -> OperationFuture + Send>;

/// A request that waits.
enum Waiting {
    Probe(ProbeTimeouts, Reply<ProbeAnswer>),
    Profile(Box<ProfileJob>, Reply<Received<TraceSink>>),
    Forward(Box<ForwardJob>, Reply<()>),
    Call(CallOnProfiler),
}

/// How an action ended, and what is left to do then.
pub(super) struct EndedOperation {
    pub(super) outcome: Outcome,
    /// The connection that a probe made.
    pub(super) client: Option<ProfilerClient>,
    /// Answers the user, once no session of ours can be open.
    pub(super) answer: Box<dyn FnOnce() + Send>,
}

pub(super) type OperationFuture = Pin<Box<dyn Future<Output = EndedOperation> + Send>>;

/// The task; see the module.
pub(super) struct ProfilerTask {
    target: Target,
    /// This host's, for a profiler on this host.
    procfs: Option<PathBuf>,
    inbox: mpsc::Receiver<Message>,
    queue: RequestQueue,
    epoch: Instant,
    client: Option<ProfilerClient>,
    waiting: BTreeMap<RequestId, Waiting>,
    lease: Option<CurrentLease>,
    /// Captures that wait for the end of the recorder's reservation.
    captures: VecDeque<ReserveRequest>,
    /// The answer to a failed profile, held back until its session is ended.
    held_back: Option<Box<dyn FnOnce() + Send>>,
}

impl ProfilerTask {
    pub(super) fn new(target: Target, procfs: Option<PathBuf>, inbox: mpsc::Receiver<Message>) -> Self {
        Self {
            target,
            procfs,
            inbox,
            queue: RequestQueue::default(),
            epoch: Instant::now(),
            client: None,
            waiting: BTreeMap::new(),
            lease: None,
            captures: VecDeque::new(),
            held_back: None,
        }
    }

    /// Runs until it was idle for a while, or all users are gone and nothing of ours is left in the workload.
    pub(super) async fn run(mut self) {
        let mut running: Option<OperationFuture> = None;
        loop {
            self.queue.expire(self.now());
            self.forget_over();
            self.reserve_for_captures();
            if self.queue.must_abandon() {
                // Dropping the call resets its stream, which ends the session in the workload.
                running = None;
                self.queue.finished(Outcome::Failed, self.now());
            }
            if running.is_none() {
                running = self.queue.next_action().and_then(|action| self.begin(action));
            }
            let idle = self.queue.is_idle();
            let wake = if idle { Some(self.now() + IDLE) } else { self.queue.next_expiry() };
            let wake = wake.map(|at| self.epoch + at);
            let over = self.lease.as_ref().map(|lease| lease.over.clone());
            tokio::select! {
                message = self.inbox.recv() => match message {
                    Some(message) => self.take(message),
                    None if idle => return,
                    // No user is left: the action that runs has no user.
                    None => self.finish_alone(running.take()).await,
                },
                () = cancelled(over) => self.release(),
                ended = pending_or(&mut running) => {
                    running = None;
                    self.ended(ended);
                }
                () = sleep_until(wake) => if idle {
                    // A message that was sent meanwhile goes to the next task.
                    return self.inbox.close();
                },
            }
        }
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Reserve(request) => self.reserve(request),
            // A request that is not accepted is dropped, and its user sees that.
            Message::Probe { lease, timeouts, reply } => {
                if let Ok(request) = self.queue.push(lease, ProfilerOperation::Probe) {
                    self.waiting.insert(request, Waiting::Probe(timeouts, reply));
                }
            }
            Message::Profile { lease, job, reply } => {
                let session = job.request.session_id.clone();
                if let Ok(request) = self.queue.push(lease, ProfilerOperation::Profile(session)) {
                    self.waiting.insert(request, Waiting::Profile(job, reply));
                }
            }
            Message::Forward { lease, job, reply } => {
                let session = job.request.session_id.clone();
                if let Ok(request) = self.queue.push(lease, ProfilerOperation::Profile(session)) {
                    self.waiting.insert(request, Waiting::Forward(job, reply));
                }
            }
            Message::Call { lease, call } => {
                if let Ok(request) = self.queue.push(lease, ProfilerOperation::Call) {
                    self.waiting.insert(request, Waiting::Call(call));
                }
            }
        }
    }

    fn reserve(&mut self, request: ReserveRequest) {
        let now = self.now();
        if self.captures.len() < MAX_WAITING && self.queue.makes_way(&request.user, now) {
            if let Some(lease) = &self.lease {
                lease.wanted.cancel();
            }
            self.captures.push_back(request);
            return;
        }
        let ReserveRequest { user, within, over, wanted, reply } = request;
        let answer = self.queue.reserve(user, now + within, now);
        if let Ok(id) = answer {
            self.lease = Some(CurrentLease { id, over, wanted });
        }
        // A user who is gone has cancelled the token.
        let _ = reply.send(answer);
    }

    /// Once the recorder has no lease, those who waited for that are answered.
    fn reserve_for_captures(&mut self) {
        if self.lease.is_none() {
            for request in std::mem::take(&mut self.captures) {
                if !request.reply.is_closed() {
                    self.reserve(request);
                }
            }
        }
    }

    fn release(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.queue.release(lease.id);
        }
    }

    /// Drops the requests of a lease that is over.
    fn forget_over(&mut self) {
        let over = self.lease.take_if(|lease| !self.queue.holds(lease.id)).is_some();
        if over || self.lease.is_none() {
            self.waiting.clear();
        }
    }

    fn begin(&mut self, action: Action) -> Option<OperationFuture> {
        debug!(target = %self.target, ?action, "profiler action");
        match action {
            Action::Probe(request) => match self.waiting.remove(&request) {
                Some(Waiting::Probe(timeouts, reply)) => {
                    Some(Box::pin(probe(self.target.clone(), timeouts, reply)))
                }
                _ => self.nothing_to_do(),
            },
            Action::Profile(request, _) => match self.waiting.remove(&request) {
                Some(Waiting::Profile(job, reply)) => {
                    let client = self.client.clone();
                    Some(Box::pin(profile(client, self.procfs.clone(), job, reply)))
                }
                Some(Waiting::Forward(job, reply)) => {
                    let client = self.client.clone();
                    Some(Box::pin(forward(client, self.procfs.clone(), job, reply)))
                }
                _ => self.nothing_to_do(),
            },
            Action::Call(request) => match self.waiting.remove(&request) {
                Some(Waiting::Call(call)) => Some(call(self.client.clone(), self.procfs.clone())),
                _ => self.nothing_to_do(),
            },
            Action::End(session) => {
                let client = self.client.clone();
                Some(Box::pin(end(client, session)))
            }
        }
    }

    fn nothing_to_do(&mut self) -> Option<OperationFuture> {
        self.queue.finished(Outcome::Done, self.now());
        None
    }

    fn ended(&mut self, ended: EndedOperation) {
        if ended.client.is_some() {
            self.client = ended.client;
        }
        let failed = ended.outcome == Outcome::Failed;
        self.queue.finished(ended.outcome, self.now());
        if failed && self.queue.has_to_end() {
            self.held_back = Some(ended.answer);
            return;
        }
        (ended.answer)();
        if let Some(answer) = self.held_back.take() {
            answer();
        }
    }

    /// Gives up what runs and ends what may be open.
    async fn finish_alone(&mut self, running: Option<OperationFuture>) {
        self.release();
        if running.is_some() {
            drop(running);
            self.queue.finished(Outcome::Failed, self.now());
        }
        while let Some(action) = self.queue.next_action() {
            if let Action::End(session) = action {
                end(self.client.clone(), session).await;
            }
            self.queue.finished(Outcome::Done, self.now());
        }
    }
}

async fn cancelled(over: Option<CancellationToken>) {
    match over {
        Some(over) => over.cancelled().await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(wake: Option<Instant>) {
    match wake {
        Some(wake) => tokio::time::sleep_until(wake).await,
        None => std::future::pending().await,
    }
}

async fn pending_or(running: &mut Option<OperationFuture>) -> EndedOperation {
    match running {
        Some(running) => running.await,
        None => std::future::pending().await,
    }
}

async fn probe(target: Target, timeouts: ProbeTimeouts, reply: Reply<ProbeAnswer>) -> EndedOperation {
    let asked = async {
        let client = ProfilerClient::connect(&target, timeouts.connect).await?;
        let fresh = format!("tpuscope-probe-{:016x}", fastrand::u64(..));
        let round_trip = client.probe(&fresh, timeouts.answer).await?;
        Ok((client, round_trip))
    };
    let (client, answer) = match asked.await {
        Ok((client, round_trip)) => {
            let answer = ProbeAnswer { peer: client.peer(), round_trip };
            (Some(client), Ok(answer))
        }
        Err(error) => (None, Err(ProfilerError::Call { error, connected: Vec::new() })),
    };
    EndedOperation { outcome: Outcome::Done, client, answer: Box::new(move || drop(reply.send(answer))) }
}

/// A call of a user that is none of the others.
pub(super) async fn call<T: Send + 'static, Answer>(
    client: Option<ProfilerClient>,
    procfs: Option<PathBuf>,
    make: impl FnOnce(ProfilerClient) -> Answer,
    mut reply: Reply<T>,
) -> EndedOperation
where
    Answer: Future<Output = Result<T, client::Error>>,
{
    let result = match client {
        None => Err(not_connected()),
        Some(client) => {
            let port = client.target().port();
            let result = tokio::select! {
                result = make(client) => result,
                // Its user is gone.
                () = reply.closed() => Err(client::Error::Broken("nobody waits for the answer".to_owned())),
            };
            match result {
                Err(error @ (client::Error::Busy(_) | client::Error::AlreadyExists(_))) => {
                    return foreign(error, procfs, port, reply).await;
                }
                Err(error) => Err(ProfilerError::Call { error, connected: Vec::new() }),
                Ok(answer) => Ok(answer),
            }
        }
    };
    EndedOperation {
        outcome: Outcome::Done,
        client: None,
        answer: Box::new(move || drop(reply.send(result))),
    }
}

pub(super) fn not_connected() -> ProfilerError {
    let error = client::Error::Broken("it was not probed".to_owned());
    ProfilerError::Call { error, connected: Vec::new() }
}

/// Another program has the profiler: says which processes may be it.
pub(super) async fn foreign<T: Send + 'static>(
    error: client::Error,
    procfs: Option<PathBuf>,
    port: u16,
    reply: Reply<T>,
) -> EndedOperation {
    let connected = match procfs {
        Some(procfs) => users_of(procfs, port).await,
        None => Vec::new(),
    };
    let (continuous, message) = match &error {
        client::Error::AlreadyExists(message) => (true, message.clone()),
        client::Error::Busy(message) => (false, message.clone()),
        other => (false, other.to_string()),
    };
    let known = ForeignUse { continuous, message, connected: connected.clone() };
    let result = Err(ProfilerError::Call { error, connected });
    EndedOperation {
        outcome: Outcome::Foreign(known),
        client: None,
        answer: Box::new(move || drop(reply.send(result))),
    }
}

async fn users_of(procfs: PathBuf, port: u16) -> Vec<String> {
    let own = std::process::id();
    let looking = tokio::task::spawn_blocking(move || port_users::connected(&procfs, port, own));
    // A hint is worth no long wait.
    tokio::time::timeout(LOOK, looking).await.ok().and_then(Result::ok).unwrap_or_default()
}

/// Ends a session of ours. Resetting the stream has freed the workload's profiler; this is for one that did not notice.
/// It cannot end the session of another program: no other program has this id.
async fn end(client: Option<ProfilerClient>, session: String) -> EndedOperation {
    if let Some(client) = client {
        let _ = client.terminate(&session, END).await;
    }
    EndedOperation { outcome: Outcome::Done, client: None, answer: Box::new(|| {}) }
}
