//! The gRPC service `tpuscope.v1.Goodput`: where the time of jobs went, each for the user whose job it is.

use std::{sync::Arc, time::Duration};

use jobs::ledger::{LedgerError, LedgerQuestion, LedgerSubject, LiveLedgers};
use model::time::{Clock, Timestamp};
use proto::tpuscope::v1::{GoodputReply, GoodputRequest, goodput_server};
use tonic::{Request, Response, Status};

use super::{access::Scope, goodput_messages, grpc_sessions, protocol};

/// The service.
pub struct GrpcGoodput {
    ledgers: Arc<LiveLedgers>,
    host: String,
    clock: Arc<dyn Clock>,
}

impl GrpcGoodput {
    /// The ledgers of the host with this name.
    pub fn new(ledgers: Arc<LiveLedgers>, host: String, clock: Arc<dyn Clock>) -> Self {
        Self { ledgers, host, clock }
    }
}

/// Whether the caller may know of a job. In another pid namespace only running jobs are known to be of the caller.
fn may_see(scope: &Scope, job: &LedgerSubject) -> bool {
    match scope {
        Scope::UserInNamespace { .. } => {
            job.is_running && scope.covers_process(job.key.uid, job.pid_namespace)
        }
        Scope::All | Scope::User(_) => scope.covers_users(&[job.key.uid]),
    }
}

fn refused(error: &LedgerError) -> Status {
    match error {
        LedgerError::NoJob(_) => Status::not_found(error.to_string()),
        LedgerError::Ambiguous(..) => Status::invalid_argument(error.to_string()),
        LedgerError::State(_) | LedgerError::Panicked(_) => Status::internal(error.to_string()),
    }
}

#[tonic::async_trait]
impl goodput_server::Goodput for GrpcGoodput {
    async fn ask(&self, request: Request<GoodputRequest>) -> Result<Response<GoodputReply>, Status> {
        let scope = grpc_sessions::scope(&request)?;
        let request = request.into_inner();
        protocol::check(request.peer.as_ref())?;
        if let (Some(from), Some(until)) = (request.from_unix_ns, request.until_unix_ns)
            && from >= until
        {
            return Err(Status::invalid_argument("the time that is asked for ends before it begins"));
        }
        let question = LedgerQuestion {
            job: (!request.job.is_empty()).then_some(request.job),
            uid: request.uid,
            from: request.from_unix_ns.map(Timestamp),
            until: request.until_unix_ns.map(Timestamp),
            last: request.last_ns.map(Duration::from_nanos),
            with_seconds: request.with_states,
        };
        let answers = self.ledgers.ask(question, move |job| may_see(&scope, job)).await;
        let answers = answers.map_err(|error| refused(&error))?;
        Ok(Response::new(GoodputReply {
            peer: Some(protocol::agent()),
            host: self.host.clone(),
            at_unix_ns: self.clock.now().0,
            jobs: answers.iter().map(goodput_messages::job).collect(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use model::job::{JobKey, JobKind};

    use super::*;
    use crate::access::tests::foreign;

    #[test]
    fn a_job_is_seen_by_its_user_and_by_administrators() {
        let job = |uid, pid_namespace, is_running| {
            let key = JobKey { kind: JobKind::Slurm, id: "7".into(), uid, ..JobKey::default() };
            LedgerSubject::new(key, pid_namespace, is_running)
        };
        let inside = |inode| Scope::UserInNamespace { uid: 1000, pid_namespace: foreign(inode) };
        for (scope, job, wanted) in [
            (Scope::All, job(1000, None, false), true),
            (Scope::User(1000), job(1000, None, false), true),
            (Scope::User(1001), job(1000, Some(7), true), false),
            (inside(7), job(1000, Some(7), true), true),
            (inside(7), job(1000, Some(8), true), false),
            (inside(7), job(1000, None, true), false),
            (inside(7), job(1001, Some(7), true), false),
            // Nobody knows any more where it ran.
            (inside(7), job(1000, Some(7), false), false),
        ] {
            assert_eq!(may_see(&scope, &job), wanted, "{scope:?} {job:?}");
        }
    }
}
