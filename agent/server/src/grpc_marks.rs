//! The gRPC service `tpuscope.v1.Marks`: marks of the caller, and where the time of a marked job went.

use std::{collections::BTreeSet, fmt::Write, sync::Arc};

use goodput::{export::SeriesLabels, time::Micros};
use jobs::ledger::LiveLedgers;
use marks::{
    attribution::{MarkingWorkload, attributed, job_of_refused},
    inbox::NotStored,
    ledgers::{MarkAnswer, MarkLedger, MarkLedgerError, MarkLedgerQuestion, MarkLedgers},
    mark_line::MarkLine,
    own_metrics,
    packet::{PACKET_MARKS, RecorderId},
};
use proto::tpuscope::v1::{
    MarkedGoodputReply, MarkedGoodputRequest, RecordMarksReply, RecordMarksRequest, RefusedMark, marks_server,
};
use sessions::FailureReason;
use store::{
    StateError,
    marks::{MarkBatch, MarkedJob, Marks, MarksError},
};
use tokio::{sync::Semaphore, time::Instant};
use tonic::{Code, Request, Response, Status};

use super::{
    access::Scope, connections::ConnectInfo, grpc_sessions, marks_listener::MarkIntake, protocol,
    session_messages,
};

/// Questions that are answered at the same time: each may read a whole job.
const QUESTIONS: usize = 2;
/// Names in the refusal of an unknown job.
const NAMES: usize = 5;

/// The service.
pub struct GrpcMarks {
    intake: MarkIntake,
    marks: Arc<Marks>,
    takes_marks: bool,
    ledgers: Arc<MarkLedgers>,
    /// The ledgers of jobs that may have no marks: a name may mean one of them.
    proxies: Arc<LiveLedgers>,
    questions: Arc<Semaphore>,
}

impl GrpcMarks {
    /// Marks go into `intake`, if the settings let them; the ledgers are those of `marks`, and `proxies` those of the
    /// jobs of the host.
    pub fn new(
        intake: MarkIntake,
        takes_marks: bool,
        marks: Arc<Marks>,
        ledgers: Arc<MarkLedgers>,
        proxies: Arc<LiveLedgers>,
    ) -> Self {
        Self { intake, marks, takes_marks, ledgers, proxies, questions: Arc::new(Semaphore::new(QUESTIONS)) }
    }

    /// The one job with this name or workload that the caller may read.
    async fn job(&self, name: &str, uid: Option<u32>) -> Result<MarkedJob, Status> {
        let (marks, proxies, wanted) = (Arc::clone(&self.marks), Arc::clone(&self.proxies), name.to_owned());
        let found = blocking(move || {
            let marked = meant(marks.jobs(Some(&wanted), uid)?, &wanted);
            let unmarked = if marked.is_empty() { BTreeSet::new() } else { proxies.users_of(&wanted)? };
            Ok((marked, unmarked))
        });
        let (mut marked, mut unmarked) = found.await?.map_err(|error| unreadable(&error))?;
        unmarked
            .retain(|user| uid.is_none_or(|uid| uid == *user) && !marked.iter().any(|job| job.uid == *user));
        match (marked.pop(), marked.is_empty() && unmarked.is_empty()) {
            (Some(job), true) => Ok(job),
            (Some(job), false) => {
                marked.push(job);
                Err(several(name, &marked, &unmarked))
            }
            (None, _) => {
                let marks = Arc::clone(&self.marks);
                let all = blocking(move || marks.jobs(None, uid)).await?;
                Err(unknown(name, &all.map_err(|error| unreadable(&error))?))
            }
        }
    }
}

/// Runs a call of the store.
async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    tokio::task::spawn_blocking(call).await.map_err(|error| Status::internal(error.to_string()))
}

fn unreadable(error: &MarksError) -> Status {
    match error {
        MarksError::LowDisk { .. } | MarksError::State(StateError::Full { .. }) => {
            session_messages::refusal(Code::ResourceExhausted, FailureReason::NoSpace, &error.to_string())
        }
        _ => Status::internal(error.to_string()),
    }
}

fn not_stored(error: &NotStored) -> Status {
    match error {
        NotStored::Store(error) => unreadable(error),
        NotStored::Stopped => Status::unavailable(error.to_string()),
    }
}

fn no_ledger(error: &MarkLedgerError) -> Status {
    match error {
        MarkLedgerError::Gone => Status::not_found(error.to_string()),
        MarkLedgerError::TooLarge { .. } | MarkLedgerError::Full(_) => {
            Status::out_of_range(error.to_string())
        }
        MarkLedgerError::Marks(error) => unreadable(error),
    }
}

/// The jobs that a name means: of each user the one with this very name, and without one those whose workload has this id.
fn meant(mut found: Vec<MarkedJob>, name: &str) -> Vec<MarkedJob> {
    let named: BTreeSet<u32> = found.iter().filter(|job| job.name == name).map(|job| job.uid).collect();
    found.retain(|job| job.name == name || !named.contains(&job.uid));
    found
}

/// `unmarked`: the users who have a job of this name without marks.
fn several(name: &str, jobs: &[MarkedJob], unmarked: &BTreeSet<u32>) -> Status {
    let mut text = format!("several jobs are `{name}`:");
    // Writing to a string cannot fail.
    for job in jobs.iter().take(NAMES) {
        let _ = write!(text, " `{}` of uid {};", job.name, job.uid);
    }
    for uid in unmarked.iter().take(NAMES) {
        let _ = write!(text, " `{name}` of uid {uid}, without marks;");
    }
    Status::failed_precondition(text.trim_end_matches(';'))
}

fn unknown(name: &str, jobs: &[MarkedJob]) -> Status {
    if jobs.is_empty() {
        return Status::not_found(format!("no job `{name}`: no program of yours has sent marks"));
    }
    let names: Vec<_> = jobs.iter().take(NAMES).map(|job| format!("`{}`", job.name)).collect();
    let more = if jobs.len() > NAMES { " and more" } else { "" };
    Status::not_found(format!("no job `{name}` has marks; these have: {}{more}", names.join(", ")))
}

/// The user whose jobs the caller may read; `None`: all users.
fn readable(scope: &Scope, wanted: Option<u32>) -> Result<Option<u32>, Status> {
    match scope {
        Scope::All => Ok(wanted),
        Scope::User(uid) if wanted.is_none_or(|wanted| wanted == *uid) => Ok(Some(*uid)),
        Scope::User(_) => {
            Err(Status::permission_denied("the marks of another user: call as that user, or as root"))
        }
        Scope::UserInNamespace { .. } => {
            Err(Status::permission_denied("marks are read from the agent's pid namespace only; call there"))
        }
    }
}

/// The question of a request.
fn question(request: &MarkedGoodputRequest) -> Result<MarkLedgerQuestion, Status> {
    let instant = |seconds: f64| {
        Micros::from_seconds(seconds).map_err(|_| Status::invalid_argument("a time is out of range"))
    };
    let ledger = match request.ledger.as_str() {
        "exact" => MarkLedger::Exact,
        "strict" => MarkLedger::Strict,
        _ => return Err(Status::invalid_argument("ledger: expected exact or strict")),
    };
    let window = match (request.start, request.end) {
        (None, None) => None,
        (Some(start), Some(end)) if start < end => Some((instant(start)?, instant(end)?)),
        _ => return Err(Status::invalid_argument("a window has a start, and an end after it")),
    };
    Ok(MarkLedgerQuestion {
        ledger,
        now: request.now.map(instant).transpose()?,
        window,
        elastic: request.elastic,
        labels: SeriesLabels {
            location: request.location.clone(),
            workload_id: request.job.clone(),
            replica_id: request.replica_id.clone(),
            accelerator_type: request.accelerator_type.clone(),
            cluster_name: Some(request.cluster_name.clone()).filter(|name| !name.is_empty()),
        },
    })
}

#[tonic::async_trait]
impl marks_server::Marks for GrpcMarks {
    async fn record(
        &self,
        request: Request<RecordMarksRequest>,
    ) -> Result<Response<RecordMarksReply>, Status> {
        let Some(ConnectInfo::Unix(peer)) = request.extensions().get::<ConnectInfo>().cloned() else {
            return Err(Status::permission_denied("marks are taken from processes of this host only"));
        };
        let request = request.into_inner();
        protocol::check(request.peer.as_ref())?;
        if !self.takes_marks {
            return Err(Status::unavailable("the agent takes no marks: marks.max_size is 0B"));
        }
        if !(1..=PACKET_MARKS).contains(&request.marks.len()) {
            return Err(Status::invalid_argument(format!("expected 1 to {PACKET_MARKS} marks")));
        }
        let invalid = |error: &dyn ToString| Status::invalid_argument(error.to_string());
        let numbered = match (request.recorder.as_str(), request.first) {
            ("", 0) => None,
            ("", _) => return Err(Status::invalid_argument("numbers need a recorder")),
            (_, first) if first == 0 || first > 1 << 62 => {
                return Err(Status::invalid_argument("the number of a mark is from 1 to 2^62"));
            }
            (id, first) => {
                Some((RecorderId::parse(id).map_err(|error| invalid(&error))?.into_string(), first))
            }
        };
        let bytes = request.marks.iter().map(|mark| mark.payload.len()).sum();
        let wait = self.intake.quotas.charge(peer.uid(), request.marks.len(), bytes, Instant::now());
        if !wait.is_zero() {
            own_metrics::held_back();
            tokio::time::sleep(wait).await;
        }
        let workload = MarkingWorkload::of(&self.intake.workloads.borrow(), peer.uid(), peer.pid());
        let (mut marks, mut refused, mut refused_of) = (Vec::new(), Vec::new(), Vec::new());
        for (index, sent) in (0..).zip(&request.marks) {
            let checked = MarkLine::new(sent.at_unix_ns, &sent.payload);
            let mark = checked.and_then(|line| attributed(line, workload.as_ref()));
            if let Err(fault) = &mark {
                refused_of.extend(job_of_refused(&sent.payload, workload.as_ref()));
                own_metrics::refused(*fault, 1);
                let (reason, name) = (fault.to_string(), fault.as_str().to_owned());
                refused.push(RefusedMark { index, reason, fault: name });
            }
            marks.push(mark.ok());
        }
        let batch = MarkBatch { uid: peer.uid(), numbered, marks, refused_of };
        let appended = self.intake.inbox.store(batch).await.map_err(|error| not_stored(&error))?;
        let peer = Some(protocol::agent());
        Ok(Response::new(RecordMarksReply { peer, stored: appended.stored, refused }))
    }

    async fn goodput(
        &self,
        request: Request<MarkedGoodputRequest>,
    ) -> Result<Response<MarkedGoodputReply>, Status> {
        let scope = grpc_sessions::scope(&request)?;
        let request = request.into_inner();
        protocol::check(request.peer.as_ref())?;
        let (uid, question) = (readable(&scope, request.uid)?, question(&request)?);
        let _turn = self.questions.acquire().await.map_err(|error| Status::internal(error.to_string()))?;
        let job = self.job(&request.job, uid).await?;
        let ledgers = Arc::clone(&self.ledgers);
        let answered = blocking(move || {
            let (job, answer) = ledgers.ask(job.number, &question)?;
            let json = match answer {
                MarkAnswer::Exact(answer) => serde_json::to_string(&answer),
                MarkAnswer::Strict(answer) => serde_json::to_string(&answer),
            };
            Ok((job, json))
        });
        let (job, json) = answered.await?.map_err(|error: MarkLedgerError| no_ledger(&error))?;
        let answer = json.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(MarkedGoodputReply {
            peer: Some(protocol::agent()),
            job: job.name,
            uid: job.uid,
            answer,
            marks: job.marks,
            lost: job.lost,
            refused: job.refused,
            removed: job.removed,
            last_unix_ns: job.last.0,
        }))
    }
}

#[cfg(test)]
mod tests {
    use model::time::Timestamp;

    use super::*;
    use crate::access::tests::foreign;

    fn job(name: &str, uid: u32) -> MarkedJob {
        let (marks, last) = (1, Timestamp(5));
        MarkedJob {
            number: 1,
            uid,
            name: name.into(),
            workload: None,
            marks,
            lost: 0,
            refused: 0,
            removed: 0,
            last,
        }
    }

    #[test]
    fn a_user_reads_own_jobs_and_an_administrator_all() {
        let code = |scope: &Scope, wanted| readable(scope, wanted).map_err(|status| status.code());
        assert_eq!(code(&Scope::All, None), Ok(None));
        assert_eq!(code(&Scope::All, Some(7)), Ok(Some(7)));
        assert_eq!(code(&Scope::User(7), None), Ok(Some(7)));
        assert_eq!(code(&Scope::User(7), Some(7)), Ok(Some(7)));
        assert_eq!(code(&Scope::User(7), Some(8)), Err(Code::PermissionDenied));
        let container = Scope::UserInNamespace { uid: 7, pid_namespace: foreign(9) };
        assert_eq!(code(&container, None), Err(Code::PermissionDenied));
    }

    #[test]
    fn a_name_means_a_job_of_each_user() {
        let called = |jobs: Vec<MarkedJob>| {
            meant(jobs, "run:rest").into_iter().map(|job| (job.name, job.uid)).collect::<Vec<_>>()
        };
        // One user names the job so; the workload of another has this id.
        let jobs = vec![job("run:rest", 10001), job("rest", 0), job("other", 10001)];
        assert_eq!(called(jobs), [("run:rest".to_owned(), 10001), ("rest".to_owned(), 0)]);
        let text = several("rest", &[job("rest", 7)], &BTreeSet::from([0]));
        let wanted = "several jobs are `rest`: `rest` of uid 7; `rest` of uid 0, without marks";
        assert_eq!((text.message(), text.code()), (wanted, Code::FailedPrecondition));
    }

    #[test]
    fn refusals_name_the_jobs() {
        let jobs: Vec<_> = (0..9).map(|uid| job("a", uid)).collect();
        let text = several("a", &jobs, &BTreeSet::new());
        assert!(text.message().starts_with("several jobs are `a`: `a` of uid 0; "), "{text}");
        let text = unknown("b", &jobs);
        assert!(text.message().ends_with("these have: `a`, `a`, `a`, `a`, `a` and more"), "{text}");
        assert_eq!(unknown("b", &[]).code(), Code::NotFound);
    }

    #[test]
    fn a_question_has_a_known_ledger_and_a_whole_window() {
        let request = |ledger: &str, start, end, now| MarkedGoodputRequest {
            ledger: ledger.into(),
            start,
            end,
            now,
            ..MarkedGoodputRequest::default()
        };
        let good = question(&request("strict", Some(1.0), Some(2.0), Some(3.0))).unwrap();
        assert_eq!((good.ledger, good.now), (MarkLedger::Strict, Some(Micros(3_000_000))));
        for bad in [
            request("proxy", None, None, None),
            request("exact", Some(1.0), None, None),
            request("exact", Some(2.0), Some(1.0), None),
            request("exact", Some(f64::NAN), Some(1.0), None),
            request("exact", None, None, Some(f64::NAN)),
            request("exact", None, None, Some(1e300)),
        ] {
            assert_eq!(question(&bad).map_err(|status| status.code()).map(drop), Err(Code::InvalidArgument));
        }
    }
}
