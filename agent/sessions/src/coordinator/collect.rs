//! What becomes of the parts that a host recorded: they are copied to a folder here, or uploaded by the agent.

use std::{sync::Arc, time::Duration};

use proto::tpuscope::v1::{
    ChangeUploadsRequest, FetchSessionRequest, ListUploadsRequest, PutManifestRequest, SessionManifest,
    UploadStatus, uploads_client::UploadsClient,
};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};
use tonic::{Response, Status, transport::Channel};
use xprof::session::{PartWriter, SessionWriter};

use super::{conversation::Common, fault::HostFault};
use crate::fetch::{self, FetchError, HostPart};

/// The hosts that are copied from at a time: each has a few pieces in memory.
pub(super) const COPIES_AT_A_TIME: usize = 32;

/// The pause between two questions for the uploads of an agent.
const ASK: Duration = Duration::from_millis(500);

/// How far the parts of a host are.
#[derive(Debug)]
pub(super) enum PartsProgress {
    /// So many bytes are there.
    Bytes(u64),
    /// They wait, for this reason.
    Waits(String),
}

/// Where the parts go.
pub(super) enum Collection {
    /// To a folder here.
    Copied { writer: Arc<SessionWriter>, copies: Semaphore },
    /// To a destination of the agents.
    Uploaded {
        destination: String,
        /// The longest wait for an upload.
        limit: Duration,
    },
}

/// Waits until the parts are where they should be. Parts that were copied are not visible yet.
pub(super) async fn collect(
    common: &Common,
    channel: Channel,
    parts: Vec<HostPart>,
    mut progress: impl FnMut(PartsProgress),
) -> Result<Vec<PartWriter>, HostFault> {
    match &common.collection {
        Collection::Copied { writer, copies } => {
            // It is never closed.
            let _permit = copies.acquire().await;
            copy(common, channel, writer, parts, |bytes| progress(PartsProgress::Bytes(bytes))).await
        }
        Collection::Uploaded { destination, limit } => {
            uploaded(common, channel, destination, *limit, progress).await.map(|()| Vec::new())
        }
    }
}

/// The answer of an agent within the limit.
async fn answer<T>(
    common: &Common,
    asked: &'static str,
    answer: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, HostFault> {
    let late = |_| HostFault::Late { asked, limit: common.limit };
    let answer = timeout(common.limit, answer).await.map_err(late)?;
    answer.map(Response::into_inner).map_err(|status| HostFault::Refused(Box::new(status)))
}

/// Until the agent has uploaded its parts. An upload that waits because earlier ones failed there is tried at once.
async fn uploaded(
    common: &Common,
    channel: Channel,
    destination: &str,
    limit: Duration,
    mut progress: impl FnMut(PartsProgress),
) -> Result<(), HostFault> {
    let mut client = UploadsClient::new(channel);
    let deadline = Instant::now() + limit;
    let mut retried = false;
    loop {
        let session = common.identity.name.to_string();
        let request = ListUploadsRequest { peer: Some(common.peer.clone()), session };
        let uploads = answer(common, "asked for its uploads", client.list(request)).await?.uploads;
        let upload = uploads.into_iter().find(|upload| upload.destination == destination);
        let upload = upload.ok_or_else(|| HostFault::UploadGone(destination.to_owned()))?;
        progress(PartsProgress::Bytes(upload.sent_bytes));
        match upload.state.as_str() {
            "done" => return Ok(()),
            "failed" => return Err(HostFault::Upload(why(&upload))),
            "waiting" if !upload.failure.is_empty() && !retried => {
                retried = true;
                let request = ChangeUploadsRequest {
                    peer: Some(common.peer.clone()),
                    session: common.identity.name.to_string(),
                    destination: destination.to_owned(),
                };
                answer(common, "asked to try its upload again", client.retry(request)).await?;
                continue;
            }
            _ if Instant::now() >= deadline => {
                let why = why(&upload);
                return Err(HostFault::Upload(format!("not within {limit:?}: {why}")));
            }
            _ => {
                if upload.state == "waiting" && !upload.failure.is_empty() {
                    progress(PartsProgress::Waits(upload.failure));
                }
                sleep(ASK).await;
            }
        }
    }
}

fn why(upload: &UploadStatus) -> String {
    match upload.failure.as_str() {
        "" => format!("{} of {} bytes were sent", upload.sent_bytes, upload.bytes),
        failure => failure.to_owned(),
    }
}

/// Lets the agent put the manifest of the whole session beside the parts. Returns the URL of the destination.
pub(super) async fn put_manifest(
    common: &Common,
    channel: Channel,
    manifest: SessionManifest,
) -> Result<String, HostFault> {
    let Collection::Uploaded { destination, .. } = &common.collection else {
        return Err(HostFault::BadAnswer("no destination"));
    };
    let request = PutManifestRequest {
        peer: Some(common.peer.clone()),
        destination: destination.clone(),
        manifest: Some(manifest),
    };
    let mut client = UploadsClient::new(channel);
    answer(common, "asked to put the manifest", client.put_manifest(request)).await.map(|reply| reply.url)
}

async fn copy(
    common: &Common,
    channel: Channel,
    writer: &Arc<SessionWriter>,
    parts: Vec<HostPart>,
    copied: impl FnMut(u64),
) -> Result<Vec<PartWriter>, HostFault> {
    let id = common.identity.name.to_string();
    let request = FetchSessionRequest { peer: Some(common.peer.clone()), id };
    let copied = fetch::copy_parts(channel, request, writer, &parts, common.limit, copied).await;
    copied.map_err(|error| match error {
        FetchError::Call(status) => HostFault::Refused(status),
        FetchError::Damaged(file) => HostFault::DamagedPart(file),
        FetchError::Missing(file) => HostFault::MissingPart(file),
        other => HostFault::Copy(other),
    })
}
