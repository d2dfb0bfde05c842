//! The calls that open a session in the workload: a profile into a sink, and one that is passed on.
//!
//! A call is given up when its user is gone or cancels it. Must never leave a session open without saying so: then the
//! outcome is [`Outcome::Failed`], and the queue ends it.

use std::{future::Future, path::PathBuf};

use tokio_util::sync::CancellationToken;
use xprof::client::{self, ProfilerClient, Received};

use super::{
    ForwardJob, ProfileJob, ProfilerError, TraceSink,
    queue::Outcome,
    task::{END, EndedOperation, Reply, foreign, not_connected},
};

pub(super) async fn profile(
    client: Option<ProfilerClient>,
    procfs: Option<PathBuf>,
    job: Box<ProfileJob>,
    reply: Reply<Received<TraceSink>>,
) -> EndedOperation {
    let ProfileJob { request, sink, bounds, progress, cancel, enough } = *job;
    let Some(client) = client else { return failed(not_connected(), reply) };
    let session = OpenSession { client: &client, id: &request.session_id, cancel, enough };
    let call = async {
        let received = client.profile(&request, sink, bounds, progress).await?;
        let is_empty = received.said_empty || received.summary.events == 0;
        if is_empty { Err(client::Error::EmptyTrace) } else { Ok(received) }
    };
    session.record(call, procfs, reply).await
}

pub(super) async fn forward(
    client: Option<ProfilerClient>,
    procfs: Option<PathBuf>,
    job: Box<ForwardJob>,
    reply: Reply<()>,
) -> EndedOperation {
    let ForwardJob { request, to, bounds, cancel, enough } = *job;
    let Some(client) = client else { return failed(not_connected(), reply) };
    let session = OpenSession { client: &client, id: &request.session_id, cancel, enough };
    session.record(client.forward(&request, &to, bounds), procfs, reply).await
}

/// A session that a call is about to open in the workload.
struct OpenSession<'a> {
    client: &'a ProfilerClient,
    id: &'a str,
    cancel: CancellationToken,
    enough: CancellationToken,
}

impl OpenSession<'_> {
    /// Makes the call, which answers once the session is over.
    async fn record<T: Send + 'static>(
        self,
        call: impl Future<Output = Result<T, client::Error>>,
        procfs: Option<PathBuf>,
        mut reply: Reply<T>,
    ) -> EndedOperation {
        let result = tokio::select! {
            result = call => result,
            () = self.cancel.cancelled() => return failed(ProfilerError::Cancelled, reply),
            // Its user is gone.
            () = reply.closed() => return failed(ProfilerError::Cancelled, reply),
            () = end_early(self.client, self.id, self.enough) => return failed(ProfilerError::Cancelled, reply),
        };
        match result {
            Ok(answer) => ended(Outcome::Done, Ok(answer), reply),
            Err(error @ (client::Error::Busy(_) | client::Error::AlreadyExists(_))) => {
                foreign(error, procfs, self.client.target().port(), reply).await
            }
            Err(error) => failed(ProfilerError::Call { error, connected: Vec::new() }, reply),
        }
    }
}

/// A session may be left in the workload.
fn failed<T: Send + 'static>(error: ProfilerError, reply: Reply<T>) -> EndedOperation {
    ended(Outcome::Failed, Err(error), reply)
}

fn ended<T: Send + 'static>(
    outcome: Outcome,
    result: Result<T, ProfilerError>,
    reply: Reply<T>,
) -> EndedOperation {
    EndedOperation { outcome, client: None, answer: Box::new(move || drop(reply.send(result))) }
}

/// Ends the session once it is `enough`: the profile then returns what it has. Never returns.
async fn end_early(client: &ProfilerClient, session: &str, enough: CancellationToken) {
    enough.cancelled().await;
    // If it cannot be ended, it ends with its window or its lease.
    let _ = client.terminate(session, END).await;
    std::future::pending::<()>().await;
}
