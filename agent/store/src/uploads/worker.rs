//! The thread that uploads: it has a runtime of its own, so that TLS and disks never delay the sampler, starts when there
//! is something to send, and ends when there is not, so that its buffers and certificates go.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use rusqlite::Transaction;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use xprof::session::{MANIFEST_FILE, SessionName};

use super::{
    file::{FileState, ThereFile},
    live::Inner,
    part_memory::PartMemory,
    queue::{Next, UploadAttempt},
    rows::{self, BegunParts},
    session_upload::{SessionFiles, SessionUpload},
    source::{SessionSource, SourceFiles},
    status::{UploadFailure, UploadShare, UploadStatus},
    transfer::{Interrupted, Transfer, UploadJournal},
};
use crate::{
    destinations::{
        self, SendRate, Transport, UploadUrl,
        target::{FailureClass, TransferError, UploadTarget},
    },
    own_metrics,
};

/// The parts that are in memory at the same time, of all uploads together.
const PARTS_IN_MEMORY: usize = 2;
/// The thread ends after this time without work.
const IDLE: Duration = Duration::from_secs(5);
/// By how much the thread is nicer than the agent: the sampler comes first where the processor is busy.
const NICER: i32 = 5;
/// Threads that may block: reads of files, and the state.
const BLOCKING_THREADS: usize = 4;

/// Uploads until there is nothing to do, on a thread of its own. With `finish` it waits for nothing that failed; with
/// `stop` it ends at once.
pub(super) async fn run(
    inner: Arc<Inner>,
    finish: CancellationToken,
    stop: CancellationToken,
) -> Result<(), String> {
    let (tell, ended) = oneshot::channel();
    let work = move || {
        // On Linux that is this thread and those that it starts. Where it is refused, all are equal.
        let _ = rustix::process::nice(NICER);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(BLOCKING_THREADS)
            .build();
        let result = match runtime {
            Ok(runtime) => {
                let worker = Worker::new(inner);
                runtime.block_on(stop.run_until_cancelled(worker.work(&finish)));
                // A read that hangs must not keep the thread.
                runtime.shutdown_background();
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        };
        // There is no receiver when the process ends.
        let _ = tell.send(result);
    };
    std::thread::Builder::new()
        .name("uploads".to_owned())
        .spawn(work)
        .map_err(|error| format!("cannot start the thread of the uploads: {error}"))?;
    ended.await.unwrap_or_else(|_| Err("the thread of the uploads panicked".to_owned()))
}

struct Worker {
    inner: Arc<Inner>,
    parallel: usize,
    transport: Transport,
    memory: PartMemory,
}

impl Worker {
    fn new(inner: Arc<Inner>) -> Self {
        let settings = inner.settings().upload.clone();
        let rate = SendRate::new(settings.max_rate.get());
        Self {
            inner,
            parallel: usize::from(settings.parallel),
            transport: Transport::new(settings.idle_timeout.get(), rate),
            memory: PartMemory::new(PARTS_IN_MEMORY),
        }
    }

    async fn work(&self, finish: &CancellationToken) {
        self.remove_stale_parts().await;
        let mut running: FuturesUnordered<BoxFuture<'_, (i64, UploadAttempt)>> = FuturesUnordered::new();
        loop {
            let mut wait = None;
            while running.len() < self.parallel {
                match self.inner.next(Instant::now()) {
                    Next::Start(number) => {
                        running.push(Box::pin(async move { (number, self.attempt(number).await) }));
                    }
                    Next::Wait(at) => {
                        wait = Some(at);
                        break;
                    }
                    Next::Nothing => break,
                }
            }
            let (idle, now) = (running.is_empty(), Instant::now());
            // What waits for long is started again by then.
            if idle && (finish.is_cancelled() || wait.is_some_and(|at| at > now + IDLE)) {
                return;
            }
            tokio::select! {
                Some((number, attempt)) = running.next() => {
                    self.inner.ended(number, attempt, Instant::now());
                }
                () = self.inner.changed.notified() => {}
                () = finish.cancelled(), if idle => {}
                () = sleep_until(wait.unwrap_or(now + IDLE)), if idle || wait.is_some() => {
                    if wait.is_none() {
                        return;
                    }
                }
            }
        }
    }

    /// One attempt at one upload.
    async fn attempt(&self, number: i64) -> UploadAttempt {
        let Some(status) = self.inner.started(number) else { return UploadAttempt::Ended };
        let mut progressed = false;
        let result = match self.prepare(&status).await {
            Ok(Some(mut prepared)) => {
                let journal = prepared.journal(&self.inner, &status);
                let transfer = Transfer {
                    target: prepared.target.clone(),
                    source: prepared.source.clone(),
                    memory: self.memory.clone(),
                    journal: &journal,
                    is_dropped: &|| self.inner.is_dropped(number),
                };
                if status.derived {
                    match transfer.find_claim(&mut prepared.upload).await {
                        Ok(true) => self.inner.set_found(number),
                        Ok(false) => {
                            self.inner.forget(number).await;
                            return UploadAttempt::Ended;
                        }
                        Err(error) => return self.failed(&status, &error, false).await,
                    }
                }
                match transfer.run(&mut prepared.upload).await {
                    Ok(false) => return UploadAttempt::Ended,
                    Ok(true) => self.done(&status, &prepared).await,
                    Err(Interrupted { error, progressed: some }) => {
                        progressed = some;
                        Err(error)
                    }
                }
            }
            Ok(None) => {
                info!(
                    session = status.session,
                    destination = status.destination,
                    "upload ended: the session is gone"
                );
                self.inner.forget(number).await;
                return UploadAttempt::Ended;
            }
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => UploadAttempt::Ended,
            Err(error) => self.failed(&status, &error, progressed).await,
        }
    }

    async fn done(&self, status: &UploadStatus, prepared: &Prepared) -> Result<(), TransferError> {
        // Not the status: its URL is from before the settings were corrected.
        let Prepared { upload, url, .. } = prepared;
        let unverified = upload
            .files
            .iter()
            .filter(|file| matches!(file.state, FileState::There(ThereFile { verified: false, .. })));
        let unverified = u32::try_from(unverified.count()).unwrap_or(u32::MAX);
        let (number, now) = (status.number, self.inner.clock.now());
        let saved = self.inner.save_durably(move |change| rows::done(change, number, unverified, now)).await;
        saved.map_err(|error| TransferError::new(FailureClass::Local, error))?;
        let name = upload.name_there().map_or_else(String::new, |name| name.to_string());
        info!(
            session = status.session,
            destination = status.destination,
            %url,
            name,
            unverified,
            "session uploaded"
        );
        own_metrics::uploaded();
        self.inner.set_done(number, unverified, now);
        Ok(())
    }

    async fn failed(&self, status: &UploadStatus, error: &TransferError, progressed: bool) -> UploadAttempt {
        let class = error.class();
        own_metrics::upload_failed(class);
        let failure = UploadFailure { class, message: error.to_string() };
        let is_final = class.is_final();
        // Each upload says once that it fails in this way.
        if status.failure.as_ref().is_none_or(|before| before.class != class) {
            warn!(
                session = status.session, destination = status.destination, class = class.as_str(), %error,
                "upload failed{}", if is_final { "" } else { "; it will be tried again" }
            );
        }
        let (number, saved) = (status.number, failure.clone());
        self.inner.save(move |change| rows::failed(change, number, &saved, is_final)).await;
        self.inner.set_failed(number, failure, is_final);
        match class {
            _ if is_final => UploadAttempt::Ended,
            class if class.is_of_the_session() => UploadAttempt::SessionFailed,
            _ => UploadAttempt::DestinationFailed { progressed },
        }
    }

    /// All that an attempt needs. `None`: the session is gone.
    async fn prepare(&self, status: &UploadStatus) -> Result<Option<Prepared>, TransferError> {
        let name = &status.destination;
        let destination = self.inner.settings().destinations.find(name).cloned();
        let destination = destination.ok_or_else(|| {
            TransferError::new(
                FailureClass::NoDestination,
                format_args!("the settings have no destination {name}"),
            )
        })?;
        let (inner, transport, status) = (self.inner.clone(), self.transport.clone(), status.clone());
        let prepare = move || {
            let local = |error: &dyn ToString| TransferError::new(FailureClass::Local, error.to_string());
            let session: SessionName = status.session.parse().map_err(|error| local(&error))?;
            let source = SessionSource::new(&inner.logdir, &session);
            let Some(SourceFiles { manifest, mut files }) = source.files()? else { return Ok(None) };
            let id = manifest.id.as_ref().map(ToString::to_string).unwrap_or_default();
            // Another session has the name by now.
            if id != status.manifest_id {
                return Ok(None);
            }
            if id.is_empty() {
                return Err(local(&"the session's manifest has no id: an older version wrote it"));
            }
            // All hosts of a session agreed on a URL before it began.
            let url = match status.share {
                UploadShare::Parts => status.url.parse(),
                UploadShare::Whole | UploadShare::OfHost => destination.url.resolve(&manifest),
            };
            let url = url.map_err(|error| TransferError::new(FailureClass::Other, error))?;
            let share = status.share;
            files.retain(|(name, _)| share != UploadShare::Parts || name != MANIFEST_FILE);
            let files = SessionFiles { session, id, host: inner.host.clone(), files, share };
            let upload = inner.restored(status.number, &url, files);
            let target = destinations::open(&url, Some(&destination), transport)?;
            Ok(Some(Prepared { target, source, upload, url }))
        };
        let prepared = tokio::task::spawn_blocking(prepare).await;
        prepared.unwrap_or_else(|error| Err(TransferError::new(FailureClass::Local, error)))
    }

    /// Removes parts that were sent and of which nothing came.
    async fn remove_stale_parts(&self) {
        for parts in self.inner.stale_parts().await {
            if let Err(error) = self.remove_parts(&parts).await {
                warn!(url = parts.url, path = parts.path, %error, "cannot remove the parts of an upload that was given up");
            }
        }
    }

    async fn remove_parts(&self, parts: &BegunParts) -> Result<(), TransferError> {
        let other = |error: &dyn ToString| TransferError::new(FailureClass::Other, error.to_string());
        let url: UploadUrl = parts.url.parse().map_err(|error| other(&error))?;
        let destination = self.inner.settings().destinations.find(&parts.destination).cloned();
        let transport = self.transport.clone();
        let open = move || destinations::open(&url, destination.as_ref(), transport);
        let opened = tokio::task::spawn_blocking(open).await;
        opened.map_err(|error| other(&error))??.abort(&parts.path, &parts.id).await?;
        let BegunParts { url, path, id, .. } = parts.clone();
        self.inner.save(move |change| rows::ended(change, &url, &path, &id)).await;
        Ok(())
    }
}

/// An attempt that can begin.
struct Prepared {
    target: Arc<dyn UploadTarget>,
    source: SessionSource,
    upload: SessionUpload,
    url: UploadUrl,
}

impl Prepared {
    fn journal(&self, inner: &Arc<Inner>, status: &UploadStatus) -> StateJournal {
        let (bytes, sent) = self.upload.bytes();
        inner.set_bytes(status.number, bytes, sent);
        StateJournal {
            inner: inner.clone(),
            number: status.number,
            destination: status.destination.clone(),
            url: self.url.to_string(),
            sent: Mutex::new(sent),
        }
    }
}

/// Saves what an upload tells in the state, and shows it.
struct StateJournal {
    inner: Arc<Inner>,
    number: i64,
    destination: String,
    url: String,
    /// The bytes that were there last.
    sent: Mutex<u64>,
}

impl StateJournal {
    fn save(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()> + Send + 'static,
    ) -> BoxFuture<'_, ()> {
        Box::pin(self.inner.save(change))
    }
}

impl UploadJournal for StateJournal {
    fn claimed(&self, upload: &SessionUpload) -> BoxFuture<'_, ()> {
        let (number, url, claim) = (self.number, self.url.clone(), upload.claim.clone());
        let files = upload.files.clone();
        let name = upload.name_there();
        if let Some(name) = &name
            && upload.is_renamed()
        {
            info!(
                session = %upload.session(), destination = self.destination, %name,
                "another session has this name at the destination: the session is uploaded under another one"
            );
        }
        self.inner.set_name(number, name);
        self.save(move |change| {
            rows::save_claim(change, number, &url, &claim)?;
            files.iter().try_for_each(|file| rows::save_file(change, number, file))
        })
    }

    fn begun(&self, path: &str, id: &str) -> BoxFuture<'_, ()> {
        let (destination, url) = (self.destination.clone(), self.url.clone());
        let parts = BegunParts { destination, url, path: path.to_owned(), id: id.to_owned() };
        let now = self.inner.clock.now();
        self.save(move |change| rows::begun(change, &parts, now))
    }

    fn changed(&self, upload: &SessionUpload, file: usize, part: Option<u32>) -> BoxFuture<'_, ()> {
        let (bytes, sent) = upload.bytes();
        let mut before = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        own_metrics::sent(sent.saturating_sub(*before));
        *before = sent;
        drop(before);
        self.inner.set_bytes(self.number, bytes, sent);
        let (number, file) = (self.number, &upload.files[file]);
        if let (Some(part), FileState::Parts { sent, .. }) = (part, &file.state)
            && let Some(sent) = sent.get(&part).cloned()
        {
            let name = file.name.clone();
            return self.save(move |change| rows::save_part(change, number, &name, part, &sent));
        }
        // Parts have rows of their own.
        let mut file = file.clone();
        if let FileState::Parts { sent, .. } = &mut file.state {
            *sent = BTreeMap::new();
        }
        self.save(move |change| rows::save_file(change, number, &file))
    }

    fn ended(&self, path: &str, id: &str) -> BoxFuture<'_, ()> {
        let (url, path, id) = (self.url.clone(), path.to_owned(), id.to_owned());
        self.save(move |change| rows::ended(change, &url, &path, &id))
    }
}
