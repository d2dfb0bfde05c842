//! What an agent does at a destination for a session over several hosts, beside sending its parts: it looks whether the
//! name is free before the window, and puts the manifest when the parts of all hosts are there.
//!
//! Must never write there what another session has, nor wait without a limit.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::time::timeout;
use xprof::session::{MANIFEST_FILE, Manifest, SessionId, SessionName};

use super::{
    PartsDestination, Uploads,
    manifest_put::{ManifestEvent, ManifestPut, ManifestStep, PutManifestError},
    rows,
    status::UploadShare,
    transfer::{claim_path, file_path},
};
use crate::{
    destinations::{
        self, Destination, SendRate, Transport, UploadUrl,
        target::{FailureClass, ObjectFacts, TransferError, UploadTarget},
    },
    own_thread,
};

/// Requests at the same time.
const MAX_STEPS: usize = 16;
/// The longest look at a name: the hosts of a capture wait for it.
const LOOK_LIMIT: Duration = Duration::from_secs(5);
/// The longest that all of a manifest may take: less than a caller waits.
const PUT_LIMIT: Duration = Duration::from_secs(25);

impl Uploads {
    /// Whether the session with this id can have the name there: nobody has it, or it has it already.
    ///
    /// # Errors
    /// If the destination does not answer.
    pub async fn is_free(
        &self,
        agreed: &PartsDestination,
        session: &SessionName,
        id: &SessionId,
    ) -> Result<bool, TransferError> {
        let (opening, path) = (self.opening(agreed.name.as_str(), &agreed.url)?, claim_path(session));
        let look = move || async move {
            let holder = timeout(LOOK_LIMIT, async { opening.open().await?.get(&path).await });
            holder.await.unwrap_or_else(|_| Err(too_slow(LOOK_LIMIT)))
        };
        let holder = own_thread::run("upload-name", look).await.map_err(TransferError::other)??;
        Ok(holder.is_none_or(|holder| holder == id.as_str().as_bytes()))
    }

    /// Puts the manifest of a session over several hosts beside its parts, some of which were sent from here. Returns the
    /// URL of the destination. One that is there already and is equal is as good.
    ///
    /// # Errors
    /// If it names what is not there as it says, or the destination fails.
    pub async fn put_manifest(
        &self,
        destination: &str,
        session: &SessionName,
        manifest: &Manifest,
    ) -> Result<UploadUrl, PutManifestError> {
        let (uploads, name) = (self.clone(), session.clone());
        let known = move || {
            let stored = uploads.of_session(&name)?;
            let checksums = |number| uploads.0.db.read(|db| rows::checksums(db, number));
            stored
                .into_iter()
                .map(|upload| Ok((checksums(upload.number)?.unwrap_or_default(), upload)))
                .collect()
        };
        let known: Result<Vec<_>, crate::StateError> =
            tokio::task::spawn_blocking(known).await.map_err(TransferError::other)?;
        let local = |error: crate::StateError| TransferError::new(FailureClass::Local, error);
        let sent = known.map_err(local)?.into_iter();
        let mut sent = sent
            .filter(|(_, upload)| upload.share == UploadShare::Parts && upload.destination == destination);
        let (checksums, upload) = sent.next().ok_or_else(|| PutManifestError::NoUpload {
            session: session.to_string(),
            destination: destination.to_owned(),
        })?;
        let id: SessionId = upload.manifest_id.parse().map_err(TransferError::other)?;
        let url: UploadUrl = upload.url.parse().map_err(TransferError::other)?;
        let text = manifest.text();
        let checksum = |file: &str| checksums.get(file).copied();
        let put = ManifestPut::new(session.clone(), id, manifest, &text, checksum)?;
        let (opening, session) = (self.opening(destination, &url)?, session.clone());
        let work = move || async move {
            let all = async { run(opening.open().await?, &session, put, text.into()).await };
            timeout(PUT_LIMIT, all).await.unwrap_or_else(|_| Err(too_slow(PUT_LIMIT).into()))
        };
        own_thread::run("upload-manifest", work).await.map_err(TransferError::other)??;
        Ok(url)
    }

    fn opening(&self, destination: &str, url: &UploadUrl) -> Result<Opening, TransferError> {
        let settings = self.0.settings();
        let destination = settings.destinations.find(destination).cloned().ok_or_else(|| {
            let message = format!("the settings have no destination {destination}");
            TransferError::new(FailureClass::NotFound, message)
        })?;
        Ok(Opening { destination, url: url.clone(), idle: settings.upload.idle_timeout.get() })
    }
}

/// A destination that is opened where it is used.
struct Opening {
    destination: Destination,
    url: UploadUrl,
    idle: Duration,
}

impl Opening {
    async fn open(self) -> Result<Arc<dyn UploadTarget>, TransferError> {
        let Self { destination, url, idle } = self;
        let transport = Transport::new(idle, SendRate::default());
        let open = move || destinations::open(&url, Some(&destination), transport);
        tokio::task::spawn_blocking(open).await.map_err(TransferError::other)?
    }
}

fn too_slow(limit: Duration) -> TransferError {
    TransferError::new(FailureClass::Timeout, format_args!("no end within {limit:?}"))
}

/// Makes steps until the manifest is there, or one fails.
async fn run(
    target: Arc<dyn UploadTarget>,
    session: &SessionName,
    mut put: ManifestPut,
    text: Bytes,
) -> Result<(), PutManifestError> {
    let mut running = FuturesUnordered::new();
    let mut in_flight = BTreeSet::new();
    loop {
        let free = MAX_STEPS - in_flight.len();
        let steps: Vec<_> = put.steps().filter(|step| !in_flight.contains(step)).take(free).collect();
        for step in steps {
            in_flight.insert(step);
            let made = start(&target, session, &put, step, &text);
            running.push(async move { (step, made.await) });
        }
        let Some((step, made)) = running.next().await else { return Ok(()) };
        in_flight.remove(&step);
        put.apply(step, made?)?;
    }
}

fn start(
    target: &Arc<dyn UploadTarget>,
    session: &SessionName,
    put: &ManifestPut,
    step: ManifestStep,
    text: &Bytes,
) -> BoxFuture<'static, Result<ManifestEvent, TransferError>> {
    let (target, text) = (target.clone(), text.clone());
    let manifest = file_path(session.as_str(), MANIFEST_FILE);
    match step {
        ManifestStep::ReadClaim => {
            let path = claim_path(session);
            Box::pin(async move {
                let holder = target.get(&path).await?;
                Ok(ManifestEvent::Claim(holder.map(|holder| holder.to_vec())))
            })
        }
        ManifestStep::Look(index) => {
            let part = put.part(index);
            let (path, compares) = (file_path(session.as_str(), &part.file), part.crc32c.is_some());
            Box::pin(async move {
                if compares {
                    return Ok(ManifestEvent::Found(target.head(&path).await?));
                }
                let size = target.size(&path).await?;
                let facts =
                    |size| ObjectFacts { size, crc32c: None, generation: String::new(), etag: String::new() };
                Ok(ManifestEvent::Found(size.map(facts)))
            })
        }
        ManifestStep::Put => Box::pin(async move {
            match target.put(&manifest, text, None).await {
                Ok(()) | Err(TransferError::Exists) => Ok(ManifestEvent::Put),
                Err(error) => Err(error),
            }
        }),
        ManifestStep::Compare => {
            Box::pin(async move { Ok(ManifestEvent::Found(target.head(&manifest).await?)) })
        }
    }
}
