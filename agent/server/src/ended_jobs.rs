//! What follows when the hook of a job says that it ended: what it left is named in the log, and the uploads of its sessions go
//! before others.
//!
//! Must never end a process or remove a file of a job: the log says what an administrator can do.

use std::collections::BTreeSet;

use model::{
    job::JobKey,
    untrusted::{LABEL, MESSAGE, clean},
};
use proto::tpuscope::v1::Leftover;
use store::{AsyncStore, SessionStore, StoreError, uploads::Uploads};
use tracing::{info, warn};

/// The most leftovers of a job that are named, and the most files of one.
const MAX_LEFTOVERS: usize = 64;
const MAX_FILES: usize = 16;

/// What is told when a job has ended.
#[derive(Clone)]
pub struct EndedJobs {
    store: AsyncStore,
    uploads: Uploads,
}

impl EndedJobs {
    /// With the sessions of this store, and where they go.
    pub fn new(store: AsyncStore, uploads: Uploads) -> Self {
        Self { store, uploads }
    }

    /// The hook of a job said that it ended, and what it found. Returns at once.
    pub(crate) fn ended(&self, job: &JobKey, leftovers: &[Leftover]) {
        name_leftovers(job, leftovers);
        let (this, job) = (self.clone(), job.clone());
        tokio::spawn(async move { this.uploads_go_first(&job).await });
    }

    /// Lets the uploads of all sessions of a job go before others. A fault is logged: nothing waits for this.
    async fn uploads_go_first(&self, job: &JobKey) {
        let unfinished = self.uploads.unfinished();
        let waiting: BTreeSet<String> = unfinished.into_iter().map(|upload| upload.session).collect();
        if waiting.is_empty() {
            return;
        }
        let (kind, id, uploads) = (job.kind, job.id.clone(), self.uploads.clone());
        let of_job = move |store: &SessionStore| {
            let mut listed = store.list(usize::MAX, |key| waiting.contains(key.name.as_str()))?;
            listed.retain(|stored| {
                stored.context.jobs.iter().any(|of| of.kind == kind.as_str() && of.id == id)
            });
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

/// Names in the log what a job has left.
fn name_leftovers(job: &JobKey, leftovers: &[Leftover]) {
    for Leftover { pid, command, files } in leftovers.iter().take(MAX_LEFTOVERS) {
        let files: Vec<String> = files.iter().take(MAX_FILES).map(|file| clean(file, MESSAGE)).collect();
        let (uid, files, command) = (job.uid, files.join(","), clean(command, LABEL));
        if *pid == 0 {
            warn!(
                %job, uid, files,
                "a job has left the lock file of libtpu, which no process has locked: other users cannot use the chips until it is removed"
            );
        } else {
            warn!(
                %job, uid, pid, command, files,
                "a job has left a process that still holds chips: the next job cannot use them until it ends"
            );
        }
    }
}
