//! The gRPC service `tpuscope.v1.Jobs`: the jobs of this host over time.
//!
//! What is registered grants no rights: nothing but this service reads it to decide anything. Everybody may know that a job
//! is there, whether it runs and on which chips; the rest is for its user and administrators.

use std::sync::Arc;

use jobs::{
    Jobs, JobsError,
    attempt::{Ending, JobDescription},
    name::{JobName, NamedJob, RunId},
    record::{AttemptEvent, Happening, JobRecord},
    registry::{ListedJobs, Registry, ToldAttempt},
};
use model::{
    job::{JobKey, JobKind},
    time::{Clock, Timestamp},
    untrusted::{clean, harmless},
};
use proto::tpuscope::v1::{
    self, AttemptEnding, EndAttemptReply, EndAttemptRequest, ListJobsReply, ListJobsRequest,
    RegisterAttemptReply, RegisterAttemptRequest, ShowJobReply, ShowJobRequest, jobs_server,
};
use tonic::{Request, Response, Status};
use tracing::info;

use super::{
    access::Scope, connections::ConnectInfo, ended_jobs::EndedJobs, grpc_recorder, grpc_sessions,
    job_messages, protocol,
};

/// The most jobs of one answer.
const MAX_LISTED: usize = 1000;
/// The longest id, name or cluster, in characters.
const LONGEST: usize = 256;
/// Jobs that the refusal of a name that is not unique lists.
const MAX_NAMED: usize = 10;

/// The service.
pub struct GrpcJobs {
    jobs: Jobs,
    ended: EndedJobs,
    clock: Arc<dyn Clock>,
}

impl GrpcJobs {
    /// The service of these jobs. `ended` is told of each that a hook ended.
    pub fn new(jobs: Jobs, ended: EndedJobs, clock: Arc<dyn Clock>) -> Self {
        Self { jobs, ended, clock }
    }

    /// A time that was told. One that is in the future or before the epoch is no time.
    fn told_time(&self, unix_ns: Option<i64>) -> Timestamp {
        let now = self.clock.now();
        unix_ns.map(Timestamp).filter(|at| (Timestamp(0)..=now).contains(at)).unwrap_or(now)
    }

    /// The only job that the caller may read and that is named so.
    async fn named(&self, scope: &Scope, request: ShowJobRequest) -> Result<NamedJob, Status> {
        let name: JobName = request.job.parse().map_err(|error| invalid(&error))?;
        let reads = scope.clone();
        let found = self.jobs.call(move |registry| registry.find(&name, |uid| may_read(&reads, uid))).await;
        let mut found = found.map_err(|error| refused(&error))?;
        found.retain(|named| request.uid.is_none_or(|uid| named.record.key.uid == uid));
        let (mut own, of_others): (Vec<NamedJob>, Vec<NamedJob>) =
            found.into_iter().partition(|named| may_read(scope, named.record.key.uid));
        let shown = || clean(&request.job, LONGEST);
        match own.len() {
            0 if of_others.is_empty() => Err(Status::not_found(format!("no job is named {}", shown()))),
            0 => Err(Status::permission_denied(format!(
                "the job {} belongs to another user; `tpuscope jobs list` shows its state and chips",
                shown()
            ))),
            1 => with_attempt(own.remove(0)),
            _ => {
                Err(Status::invalid_argument(format!("several jobs are named {}: {}", shown(), listed(&own))))
            }
        }
    }
}

/// The job, if it has the attempt that was named.
fn with_attempt(named: NamedJob) -> Result<NamedJob, Status> {
    let attempts = &named.record.attempts;
    match named.attempt {
        Some(wanted) if attempts.iter().all(|attempt| attempt.number != wanted) => {
            let known: Vec<String> = attempts.iter().map(|attempt| attempt.number.to_string()).collect();
            let (job, known) = (&named.record.key, known.join(", "));
            Err(Status::not_found(format!("the job {job} has no attempt {wanted}; known: {known}")))
        }
        _ => Ok(named),
    }
}

/// Jobs in one line.
fn listed(jobs: &[NamedJob]) -> String {
    let shown = |named: &NamedJob| {
        let record = &named.record;
        let state = job_messages::state(record.attempts.iter().any(jobs::attempt::Attempt::is_open));
        let cluster = match record.key.cluster.as_str() {
            "" => String::new(),
            cluster => format!(" cluster {}", clean(cluster, LONGEST)),
        };
        format!("{} (uid {}{cluster}, {state})", clean(&record.key.to_string(), LONGEST), record.key.uid)
    };
    let mut shown: Vec<String> = jobs.iter().take(MAX_NAMED).map(shown).collect();
    if let Some(more) = jobs.len().checked_sub(MAX_NAMED).filter(|more| *more > 0) {
        shown.push(format!("and {more} more"));
    }
    shown.join(", ")
}

/// Whether the caller may register jobs of this user.
fn may_register(scope: &Scope, uid: u32) -> bool {
    match scope {
        Scope::All => true,
        Scope::User(own) | Scope::UserInNamespace { uid: own, .. } => *own == uid,
    }
}

/// Whether the caller may read all of the jobs of this user.
fn may_read(scope: &Scope, uid: u32) -> bool {
    scope.covers_users(&[uid])
}

fn refused(error: &JobsError) -> Status {
    match error {
        JobsError::State(error) => grpc_recorder::failed(error),
        JobsError::NotFollowed(_) => Status::failed_precondition(error.to_string()),
        JobsError::TooMany | JobsError::TooManyOpen => Status::resource_exhausted(error.to_string()),
        JobsError::Panicked(_) => Status::internal(error.to_string()),
    }
}

fn invalid(error: &dyn ToString) -> Status {
    Status::invalid_argument(error.to_string())
}

/// A key of a kind that is registered: the others are found by discovery.
fn key(key: Option<v1::JobKey>) -> Result<JobKey, Status> {
    let v1::JobKey { kind, cluster, uid, id } = key.ok_or_else(|| invalid(&"the request has no key"))?;
    let kind = JobKind::named(&kind).filter(|kind| matches!(kind, JobKind::Slurm | JobKind::Run));
    let kind = kind.ok_or_else(|| invalid(&"key.kind: expected slurm or run"))?;
    for (field, text) in [("key.cluster", &cluster), ("key.id", &id)] {
        if text.chars().count() > LONGEST || !text.chars().all(harmless) {
            return Err(invalid(&format!(
                "{field}: expected at most {LONGEST} characters, and no control character"
            )));
        }
    }
    if id.is_empty() {
        return Err(invalid(&"key.id is empty"));
    }
    if kind == JobKind::Run {
        id.parse::<RunId>().map_err(|error| invalid(&format!("key.id: {error}")))?;
    }
    Ok(JobKey { kind, cluster, uid, id })
}

/// What is told of a job beside its key.
fn description(request: &RegisterAttemptRequest) -> JobDescription {
    let text = |text: &str| (!text.is_empty()).then(|| clean(text, LONGEST));
    JobDescription {
        name: text(&request.name),
        other_id: text(&request.other_id),
        user: text(&request.user),
        hosts: request.hosts.iter().map(|host| clean(host, LONGEST)).collect(),
        rank: request.rank,
    }
}

fn ending(ending: Option<AttemptEnding>) -> Result<Ending, Status> {
    let Some(AttemptEnding { how, code }) = ending else { return Ok(Ending::Unknown) };
    let code = code.map(u8::try_from).transpose();
    let ending = code.ok().and_then(|code| Ending::of_parts(&how, code));
    ending.ok_or_else(|| {
        invalid(&"ending: expected exit or signal with a code of at most 255, node_lost, requeued or unknown")
    })
}

#[tonic::async_trait]
impl jobs_server::Jobs for GrpcJobs {
    async fn register_attempt(
        &self,
        request: Request<RegisterAttemptRequest>,
    ) -> Result<Response<RegisterAttemptReply>, Status> {
        let scope = grpc_sessions::scope(&request)?;
        let peer = match request.extensions().get::<ConnectInfo>() {
            Some(ConnectInfo::Unix(peer)) => Some(Arc::clone(peer)),
            _ => None,
        };
        let request = request.into_inner();
        protocol::check(request.peer.as_ref())?;
        let mut key = key(request.key.clone())?;
        let at = self.told_time(request.start_unix_ns);
        let description = description(&request);
        let told = if request.ends_with_caller {
            let peer = peer
                .ok_or_else(|| Status::failed_precondition("only a process of this host can be followed"))?;
            if key.kind != JobKind::Run {
                return Err(invalid(&"ends_with_caller: only for jobs of kind run"));
            }
            key.uid = peer.uid();
            let pid = peer.pid().unwrap_or(0);
            self.jobs.start_run(key, request.attempt, at, description, pid).await
        } else {
            if !may_register(&scope, key.uid) {
                return Err(Status::permission_denied(
                    "a job of another user is registered by root and the user of slurm.user only",
                ));
            }
            let what = Happening::HookStarted(description);
            self.jobs.start(key, AttemptEvent { attempt: request.attempt, at, what }).await
        };
        let told = told.map_err(|error| refused(&error))?;
        let ToldAttempt { key, attempt } =
            told.ok_or_else(|| Status::internal("the attempt was not kept"))?;
        info!(job = %key, attempt, uid = key.uid, "job registered");
        let key = Some(job_messages::key(&key));
        Ok(Response::new(RegisterAttemptReply { peer: Some(protocol::agent()), key, attempt }))
    }

    async fn end_attempt(
        &self,
        request: Request<EndAttemptRequest>,
    ) -> Result<Response<EndAttemptReply>, Status> {
        let scope = grpc_sessions::scope(&request)?;
        let request = request.into_inner();
        protocol::check(request.peer.as_ref())?;
        let key = key(request.key)?;
        if !may_register(&scope, key.uid) {
            return Err(Status::permission_denied(
                "a job of another user is ended by root and the user of slurm.user only",
            ));
        }
        if !request.leftovers.is_empty() && scope != Scope::All {
            return Err(Status::permission_denied(
                "what a job left is told by root and the user of slurm.user only",
            ));
        }
        let leftovers = job_messages::told_leftovers(&request.leftovers);
        let what = Happening::HookEnded(ending(request.ending)?, leftovers.clone());
        let event = AttemptEvent { attempt: request.attempt, at: self.told_time(request.end_unix_ns), what };
        let told = self.jobs.tell(key, event).await.map_err(|error| refused(&error))?;
        let ToldAttempt { key, attempt } =
            told.ok_or_else(|| Status::internal("the attempt was not kept"))?;
        info!(job = %key, attempt, uid = key.uid, "job ended");
        self.ended.ended(&key, &leftovers);
        Ok(Response::new(EndAttemptReply { peer: Some(protocol::agent()), attempt }))
    }

    async fn list(&self, request: Request<ListJobsRequest>) -> Result<Response<ListJobsReply>, Status> {
        let scope = grpc_sessions::scope(&request)?;
        let request = request.into_inner();
        protocol::check(request.peer.as_ref())?;
        let limit = usize::try_from(request.limit).ok().filter(|limit| (1..=MAX_LISTED).contains(limit));
        let list = move |registry: &Registry| registry.list(request.running, limit.unwrap_or(MAX_LISTED));
        let ListedJobs { jobs, more } = self.jobs.call(list).await.map_err(|error| refused(&error))?;
        let message = |record: &JobRecord| job_messages::listed(record, may_read(&scope, record.key.uid));
        let jobs = jobs.iter().map(message).collect();
        Ok(Response::new(ListJobsReply { peer: Some(protocol::agent()), jobs, more }))
    }

    async fn show(&self, request: Request<ShowJobRequest>) -> Result<Response<ShowJobReply>, Status> {
        let scope = grpc_sessions::scope(&request)?;
        let request = request.into_inner();
        protocol::check(request.peer.as_ref())?;
        let NamedJob { record, attempt } = self.named(&scope, request).await?;
        let newest = record.newest().map_or(0, |attempt| attempt.number);
        Ok(Response::new(ShowJobReply {
            peer: Some(protocol::agent()),
            job: Some(job_messages::shown(&record)),
            attempt: attempt.unwrap_or(newest),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::tests::foreign;

    fn wire(kind: &str, id: &str) -> Option<v1::JobKey> {
        Some(v1::JobKey { kind: kind.into(), id: id.into(), ..v1::JobKey::default() })
    }

    #[test]
    fn keys_and_endings_are_checked() {
        assert_eq!(key(wire("slurm", "12")).unwrap().to_string(), "slurm:12");
        assert_eq!(key(wire("run", "train")).unwrap().id, "train");
        let long = "x".repeat(300);
        for (kind, id) in [
            ("jobset", "a"),
            ("process", "1-2"),
            ("", "1"),
            ("slurm", ""),
            ("run", ""),
            ("slurm", "a\u{1b}[31m"),
            ("slurm", long.as_str()),
            ("run", "a b"),
            ("run", "-x"),
            ("run", "a#1"),
        ] {
            assert!(key(wire(kind, id)).is_err(), "{kind}:{id}");
        }
        assert!(key(None).is_err());
        let of = |how: &str, code| ending(Some(AttemptEnding { how: how.into(), code })).ok();
        assert_eq!(of("exit", Some(3)), Some(Ending::Exit(3)));
        assert_eq!(of("requeued", None), Some(Ending::Requeued));
        for bad in [("exit", None), ("exit", Some(256)), ("", None), ("lost", None)] {
            assert_eq!(of(bad.0, bad.1), None, "{bad:?}");
        }
        assert_eq!(ending(None).unwrap(), Ending::Unknown);
    }

    #[test]
    fn a_user_registers_and_reads_own_jobs() {
        let container = Scope::UserInNamespace { uid: 7, pid_namespace: foreign(1) };
        assert!(may_register(&Scope::All, 8) && may_read(&Scope::All, 8));
        assert!(may_register(&Scope::User(7), 7) && may_read(&Scope::User(7), 7));
        assert!(!may_register(&Scope::User(7), 8) && !may_read(&Scope::User(7), 8));
        assert!(may_register(&container, 7) && !may_register(&container, 8));
        assert!(!may_read(&container, 7), "the root of a container is not the host's");
    }

    #[test]
    fn a_refusal_lists_the_jobs_that_share_a_name() {
        let job = |uid| NamedJob {
            record: JobRecord::new(JobKey { kind: JobKind::Slurm, cluster: "a".into(), uid, id: "7".into() }),
            attempt: None,
        };
        assert_eq!(listed(&[job(1)]), "slurm:7 (uid 1 cluster a, ended)");
        let many: Vec<_> = (0..12).map(job).collect();
        assert!(listed(&many).ends_with(", and 2 more"));
        let missing = with_attempt(NamedJob { attempt: Some(3), ..job(1) }).unwrap_err();
        assert_eq!(missing.code(), tonic::Code::NotFound);
    }
}
