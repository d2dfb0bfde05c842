//! What follows when the hook of a job says that it ended: the log has what it left and its goodput, and the uploads of its
//! sessions go before others.
//!
//! Must never end a process or remove a file of a job: the log says what an administrator can do.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use jobs::{
    attempt::AttemptLeftover,
    ledger::{JobGoodput, LedgerQuestion, LedgerSubject, LiveLedgers},
};
use model::job::JobKey;
use store::{AsyncStore, SessionStore, StoreError, uploads::Uploads};
use tracing::{info, warn};
use xprof::session::SessionContext;

/// The ledgers settle a second some seconds after it: the last of the job are known after this time.
const SETTLED_AFTER: Duration = Duration::from_secs(5);

/// What is told when a job has ended.
#[derive(Clone)]
pub struct EndedJobs {
    store: AsyncStore,
    uploads: Uploads,
    ledgers: Arc<LiveLedgers>,
}

impl EndedJobs {
    /// With the sessions of this store, where they go, and the ledgers of the jobs.
    pub fn new(store: AsyncStore, uploads: Uploads, ledgers: Arc<LiveLedgers>) -> Self {
        Self { store, uploads, ledgers }
    }

    /// The hook of a job said that it ended, and what it found. Returns at once.
    pub(crate) fn ended(&self, job: &JobKey, leftovers: &[AttemptLeftover]) {
        name_leftovers(job, leftovers);
        let (this, job) = (self.clone(), job.clone());
        tokio::spawn(async move {
            this.uploads_go_first(&job).await;
            tokio::time::sleep(SETTLED_AFTER).await;
            this.say_goodput(&job).await;
        });
    }

    /// Says in the log where the time of a job went, if there is a ledger of it.
    async fn say_goodput(&self, job: &JobKey) {
        let ended = job.clone();
        let of_job = move |subject: &LedgerSubject| ended.may_be(&subject.key);
        match self.ledgers.ask(LedgerQuestion::default(), of_job).await {
            Ok(answers) => {
                for JobGoodput { counts, disruptions, .. } in answers {
                    let goodput = counts.goodput().map_or_else(|| "unknown".to_owned(), percent);
                    let (coverage, elapsed) = (percent(counts.coverage()), counts.elapsed());
                    info!(%job, goodput, coverage, seconds = elapsed, disruptions, "goodput of a job that ended, as this host saw it");
                }
            }
            Err(error) => warn!(%job, %error, "the goodput of a job that ended is not known"),
        }
    }

    /// Lets the uploads of all sessions of a job go before others. A fault is logged: nothing waits for this.
    async fn uploads_go_first(&self, job: &JobKey) {
        let unfinished = self.uploads.unfinished();
        let waiting: BTreeSet<String> = unfinished.into_iter().map(|upload| upload.session).collect();
        if waiting.is_empty() {
            return;
        }
        let (ended, uploads) = (job.clone(), self.uploads.clone());
        let of_job = move |store: &SessionStore| {
            let mut listed = store.list(usize::MAX, |key| waiting.contains(key.name.as_str()))?;
            listed.retain(|stored| is_of(&stored.context, &ended));
            let names = listed.into_iter().map(|stored| stored.name.to_string()).collect();
            Ok::<_, StoreError>(uploads.go_first(&names)?)
        };
        match self.store.call(of_job).await {
            Ok(0) => {}
            Ok(count) => info!(%job, count, "the uploads of a job that ended go first"),
            Err(error) => warn!(%job, %error, "the uploads of a job that ended do not go first"),
        }
    }
}

/// Whether a session has a part of this job. A manifest names no cluster: its host belongs to one.
fn is_of(context: &SessionContext, job: &JobKey) -> bool {
    let mut jobs = context.jobs.iter();
    let mut users = context.users.iter();
    jobs.any(|of| of.kind == job.kind.as_str() && of.id == job.id)
        && users.any(|user| user.uid == Some(job.uid))
}

fn percent(ratio: f64) -> String {
    format!("{:.1}%", ratio * 100.0)
}

/// Names in the log what a job has left.
fn name_leftovers(job: &JobKey, leftovers: &[AttemptLeftover]) {
    for AttemptLeftover { pid, command, files } in leftovers {
        let (uid, files) = (job.uid, files.join(","));
        match pid {
            None => warn!(
                %job, uid, files,
                "a job has left the lock file of libtpu, which no process has locked: other users cannot use the chips until it is removed"
            ),
            Some(pid) => warn!(
                %job, uid, pid, command, files,
                "a job has left a process that still holds chips: the next job cannot use them until it ends"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use model::job::JobKind;
    use xprof::session::{PartJob, SessionUser};

    use super::*;

    #[test]
    fn a_session_is_of_the_job_of_its_user() {
        let key = |kind, id: &str, uid| JobKey { kind, id: id.into(), uid, cluster: "a".into() };
        let job = PartJob {
            kind: "slurm".into(),
            id: "7".into(),
            attempt: Some(1),
            name: None,
            user: None,
            rank: None,
        };
        let users = vec![SessionUser { uid: Some(1000), name: None }];
        let context = SessionContext { jobs: vec![job], users, ..SessionContext::default() };
        for (wanted, of) in [
            (true, key(JobKind::Slurm, "7", 1000)),
            (false, key(JobKind::Slurm, "7", 1001)),
            (false, key(JobKind::Slurm, "8", 1000)),
            (false, key(JobKind::Run, "7", 1000)),
        ] {
            assert_eq!(is_of(&context, &of), wanted, "{of:?}");
        }
    }
}
