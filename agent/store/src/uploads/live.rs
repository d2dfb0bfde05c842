//! The uploads that are not done, as those who ask and the thread that uploads share them.
//!
//! What cannot be saved is logged and does not stop an upload: sending a session is what frees a full disk.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use model::{
    log_budget::LogBudget,
    time::{Clock, Timestamp},
};
use rusqlite::Transaction;
use tokio::{sync::Notify, time::Instant};
use tracing::warn;
use xprof::session::{HostName, Manifest, SessionName};

use super::{
    UploadSettings,
    queue::{Next, Queue, UploadAttempt},
    rows::{self, BegunParts},
    session_upload::{SessionFiles, SessionUpload},
    source::{SessionSource, SourceFiles},
    status::{UploadFailure, UploadPhase, UploadShare, UploadStatus, UploadsSummary},
};
use crate::{
    SessionPriority,
    destinations::{Destination, UploadUrl, target::FailureClass},
    own_metrics,
    staging::Staging,
    state::{StateDb, StateError},
};

/// How many uploads that are done and that the state could not note are remembered.
const DONE_UNSAVED: usize = 64;
/// Parts of which nothing came are removed after this time.
const STALE: Duration = Duration::from_secs(24 * 3600);

pub(super) struct Inner {
    pub(super) db: Arc<StateDb>,
    pub(super) logdir: PathBuf,
    pub(super) host: HostName,
    pub(super) clock: Arc<dyn Clock>,
    settings: Mutex<Arc<UploadSettings>>,
    live: Mutex<Live>,
    /// There may be something to do.
    pub(super) changed: Notify,
    unsaved: Mutex<LogBudget>,
}

/// The uploads that are not done.
#[derive(Default)]
pub(super) struct Live {
    pub(super) queue: Queue,
    pub(super) statuses: BTreeMap<i64, UploadStatus>,
    /// Those that run and shall not go on.
    dropped: BTreeSet<i64>,
    /// How each destination failed last, until an upload to it succeeds: the others wait because of it.
    failing: BTreeMap<String, UploadFailure>,
    /// Those that the state could not note when they were added.
    unsaved: BTreeSet<i64>,
    /// Those of them that are done, the oldest first: who waits for one has to see that it is done.
    done_unsaved: VecDeque<UploadStatus>,
}

impl Live {
    /// Adds an upload, or lets it wait again. One that runs is left alone.
    pub(super) fn insert(&mut self, status: UploadStatus) {
        let known = self.statuses.get(&status.number);
        if known.is_some_and(|known| known.phase == UploadPhase::Running) {
            return;
        }
        if let Some(failure) = &status.failure {
            self.note_failure(&status.destination, failure);
        }
        if status.phase == UploadPhase::Waiting {
            self.queue.add(status.number, &status.destination, status.priority, status.queued);
        }
        // A session of the same name is another one.
        self.done_unsaved
            .retain(|done| (&done.session, &done.destination) != (&status.session, &status.destination));
        self.statuses.insert(status.number, status);
    }

    /// Adds a new upload that the state could not note.
    pub(super) fn insert_unsaved(&mut self, status: UploadStatus) {
        self.unsaved.insert(status.number);
        self.insert(status);
    }

    /// Takes out an upload whose session is gone.
    fn forget(&mut self, number: i64) {
        self.statuses.remove(&number);
        self.unsaved.remove(&number);
    }

    /// Takes out an upload that is done.
    fn done(&mut self, number: i64, unverified: u32, at: Timestamp) {
        let unsaved = self.unsaved.remove(&number);
        let Some(mut done) = self.statuses.remove(&number) else { return };
        self.failing.remove(&done.destination);
        if unsaved {
            done.phase = UploadPhase::Done { unverified, at };
            done.failure = None;
            if self.done_unsaved.len() == DONE_UNSAVED {
                self.done_unsaved.pop_front();
            }
            self.done_unsaved.push_back(done);
        }
    }

    /// Gives an upload another priority.
    pub(super) fn set_priority(&mut self, number: i64, priority: SessionPriority) {
        if let Some(status) = self.statuses.get_mut(&number) {
            status.priority = priority;
        }
        self.queue.set_priority(number, priority);
    }

    /// Forgets an upload. One that runs ends before its next step.
    pub(super) fn drop_upload(&mut self, number: i64) {
        if self.statuses.remove(&number).is_some_and(|status| status.phase == UploadPhase::Running) {
            self.dropped.insert(number);
        }
        self.unsaved.remove(&number);
        self.done_unsaved.retain(|done| done.number != number);
        self.queue.remove(number);
    }

    /// These uploads of the state, as they are now, and those that the state does not have.
    pub(super) fn merged(&self, stored: Vec<UploadStatus>) -> Vec<UploadStatus> {
        let known: BTreeSet<i64> = stored.iter().map(|status| status.number).collect();
        let unsaved = self.statuses.values().chain(&self.done_unsaved);
        let unsaved = unsaved.filter(|status| !known.contains(&status.number)).cloned();
        let stored =
            stored.into_iter().map(|status| self.statuses.get(&status.number).cloned().unwrap_or(status));
        stored.chain(unsaved).map(|status| self.explained(status)).collect()
    }

    /// An upload that waits because its destination failed for another one, with that failure.
    fn explained(&self, status: UploadStatus) -> UploadStatus {
        if status.phase != UploadPhase::Waiting || status.failure.is_some() {
            return status;
        }
        UploadStatus { failure: self.failing.get(&status.destination).cloned(), ..status }
    }

    fn note_failure(&mut self, destination: &str, failure: &UploadFailure) {
        if !failure.class.is_of_the_session() {
            self.failing.insert(destination.to_owned(), failure.clone());
        }
    }
}

impl Inner {
    pub(super) fn new(
        db: Arc<StateDb>,
        logdir: PathBuf,
        host: HostName,
        settings: UploadSettings,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            db,
            logdir,
            host,
            clock,
            settings: Mutex::new(Arc::new(settings)),
            live: Mutex::default(),
            changed: Notify::new(),
            unsaved: Mutex::default(),
        }
    }

    pub(super) fn settings(&self) -> Arc<UploadSettings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_settings(&self, settings: UploadSettings) {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    pub(super) fn live(&self) -> MutexGuard<'_, Live> {
        // Every change is one insertion or removal.
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The uploads of a session that was found in its folder: to the destination that its capture named, and to those of
    /// every session; of others, where they have its claim already. Blocks.
    pub(super) fn derived(&self, name: &str) -> Vec<UploadStatus> {
        let settings = self.settings();
        let Ok(session) = name.parse() else { return Vec::new() };
        let owners = Staging::new(&self.logdir).owners(&session);
        if owners.stays_here {
            return Vec::new();
        }
        let source = Some(SessionSource::new(&self.logdir, &session));
        // What cannot be read is not uploaded.
        let files = source.filter(|_| !settings.destinations.0.is_empty()).map(|source| source.files());
        let Some(Ok(Some(SourceFiles { manifest, .. }))) = files else { return Vec::new() };
        // Without an id it could not be told from another session of its name.
        let destinations = settings.destinations.0.iter().filter(|_| manifest.id.is_some());
        let uploads = destinations.map(|destination| {
            let chosen =
                owners.destination.as_ref().filter(|chosen| chosen.name == destination.name.as_str());
            let priority = if chosen.is_some() { SessionPriority::Asked } else { SessionPriority::Periodic };
            let status = self.status_of(&manifest, destination, priority, owners.parts_only);
            let agreed = chosen.and_then(|chosen| chosen.url.clone());
            // At a destination that is not for every session a claim can only be that of the session of all hosts.
            let of_all = owners.parts_only && (agreed.is_some() || !destination.always());
            let share = if of_all { UploadShare::Parts } else { status.share };
            let url = agreed.unwrap_or(status.url);
            UploadStatus { derived: !destination.always() && chosen.is_none(), url, share, ..status }
        });
        let found: Vec<_> = uploads.filter(|status| status.phase == UploadPhase::Waiting).collect();
        if let Some(chosen) = &owners.destination
            && settings.destinations.find(&chosen.name).is_none()
        {
            warn!(
                session = name,
                destination = chosen.name,
                "the settings have no longer the destination that the session was captured for: it is not uploaded there"
            );
        }
        found
    }

    /// A new upload of a session; `of_several`: it is one host's share of a session over several hosts.
    pub(super) fn status_of(
        &self,
        manifest: &Manifest,
        destination: &Destination,
        priority: SessionPriority,
        of_several: bool,
    ) -> UploadStatus {
        let url = destination.url.resolve(manifest);
        let failure = url.as_ref().err();
        UploadStatus {
            number: fastrand::i64(1..),
            session: manifest.session.clone(),
            destination: destination.name.to_string(),
            url: url.as_ref().map(ToString::to_string).unwrap_or_default(),
            manifest_id: manifest.id.as_ref().map(ToString::to_string).unwrap_or_default(),
            name_there: None,
            priority,
            queued: self.clock.now(),
            bytes: manifest.parts_bytes(),
            sent_bytes: 0,
            phase: if failure.is_some() { UploadPhase::Failed } else { UploadPhase::Waiting },
            derived: false,
            // A folder for each host has room for the session of one under its name.
            share: match of_several && !destination.url.names_host() {
                true => UploadShare::OfHost,
                false => UploadShare::Whole,
            },
            failure: failure
                .map(|error| UploadFailure { class: FailureClass::Other, message: error.to_string() }),
        }
    }

    pub(super) fn next(&self, now: Instant) -> Next {
        self.live().queue.next(now)
    }

    /// An upload begins to run. `None` if it was dropped.
    pub(super) fn started(&self, number: i64) -> Option<UploadStatus> {
        let mut live = self.live();
        let status = live.statuses.get_mut(&number)?;
        status.phase = UploadPhase::Running;
        Some(status.clone())
    }

    pub(super) fn is_dropped(&self, number: i64) -> bool {
        self.live().dropped.contains(&number)
    }

    /// An attempt ended.
    pub(super) fn ended(&self, number: i64, attempt: UploadAttempt, now: Instant) {
        let mut live = self.live();
        let attempt = if live.dropped.remove(&number) { UploadAttempt::Ended } else { attempt };
        live.queue.ended(number, attempt, now, fastrand::f64());
        drop(live);
        self.measure();
    }

    /// Forgets an upload whose session is gone.
    pub(super) async fn forget(self: &Arc<Self>, number: i64) {
        self.live().forget(number);
        self.save(move |change| rows::remove(change, number)).await;
    }

    /// The destination has a claim of the session, which was found without a state.
    pub(super) fn set_found(&self, number: i64) {
        if let Some(status) = self.live().statuses.get_mut(&number) {
            status.derived = false;
        }
    }

    pub(super) fn set_done(&self, number: i64, unverified: u32, at: Timestamp) {
        self.live().done(number, unverified, at);
    }

    pub(super) fn set_failed(&self, number: i64, failure: UploadFailure, is_final: bool) {
        let mut live = self.live();
        let Some(status) = live.statuses.get_mut(&number) else { return };
        status.phase = if is_final { UploadPhase::Failed } else { UploadPhase::Waiting };
        status.failure = Some(failure.clone());
        let destination = status.destination.clone();
        live.note_failure(&destination, &failure);
    }

    pub(super) fn set_name(&self, number: i64, name: Option<SessionName>) {
        if let Some(status) = self.live().statuses.get_mut(&number) {
            status.name_there = name.map(|name| name.to_string());
        }
    }

    pub(super) fn set_url(&self, number: i64, url: &UploadUrl) {
        if let Some(status) = self.live().statuses.get_mut(&number) {
            status.url = url.to_string();
        }
    }

    pub(super) fn set_bytes(&self, number: i64, bytes: u64, sent: u64) {
        if let Some(status) = self.live().statuses.get_mut(&number) {
            (status.bytes, status.sent_bytes) = (bytes, sent);
        }
    }

    /// The upload as it was saved. Nothing of it is known if it went to another URL, because the settings have changed, or
    /// if the state cannot be read. Blocks.
    pub(super) fn restored(&self, number: i64, url: &UploadUrl, files: SessionFiles) -> SessionUpload {
        let mut upload = SessionUpload::new(files);
        let fresh = upload.clone();
        let text = url.to_string();
        let read = self.db.read(|db| rows::restore(db, number, &text, &mut upload));
        match read {
            Ok(_) => {}
            Err(error) => {
                self.warn_unsaved(&error);
                upload = fresh;
            }
        }
        self.set_url(number, url);
        upload
    }

    /// Saves a change of a running upload.
    pub(super) async fn save(
        self: &Arc<Self>,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()> + Send + 'static,
    ) {
        let inner = self.clone();
        let saved = tokio::task::spawn_blocking(move || inner.db.write(change)).await;
        match saved {
            Ok(Err(error)) => self.warn_unsaved(&error),
            Err(error) => self.warn_unsaved(&error),
            Ok(Ok(())) => {}
        }
    }

    /// Saves a change that is reported.
    pub(super) async fn save_durably(
        self: &Arc<Self>,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()> + Send + 'static,
    ) -> Result<(), String> {
        let inner = self.clone();
        let saved = tokio::task::spawn_blocking(move || inner.db.write_durable(change)).await;
        saved.map_err(|error| error.to_string())?.map_err(|error: StateError| error.to_string())
    }

    fn warn_unsaved(&self, error: &dyn std::error::Error) {
        let mut budget = self.unsaved.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(permit) = budget.take(Instant::now()) {
            warn!(%error, "the progress of an upload is not saved; after a restart it is found at the destination{permit}");
        }
    }

    pub(super) async fn has_stale_parts(self: &Arc<Self>) -> bool {
        !self.stale_parts().await.is_empty()
    }

    /// Parts that were begun and that no upload goes on with.
    pub(super) async fn stale_parts(self: &Arc<Self>) -> Vec<BegunParts> {
        let stale = i64::try_from(STALE.as_nanos()).unwrap_or(i64::MAX);
        let before = Timestamp(self.clock.now().0.saturating_sub(stale));
        let inner = self.clone();
        let read =
            tokio::task::spawn_blocking(move || inner.db.read(|db| rows::stale_parts(db, before))).await;
        // What cannot be read now is found the next time.
        read.ok().and_then(Result::ok).flatten().unwrap_or_default()
    }

    /// All uploads in short.
    pub(super) fn summary(&self) -> UploadsSummary {
        let destinations = self.settings().destinations.0.len();
        let live = self.live();
        let (failed, waiting): (Vec<_>, Vec<_>) =
            live.statuses.values().partition(|status| status.phase == UploadPhase::Failed);
        let failures: BTreeSet<_> =
            live.statuses.values().filter_map(|status| Some(status.failure.as_ref()?.class)).collect();
        UploadsSummary {
            destinations,
            waiting: waiting.len(),
            failed: failed.len(),
            bytes: waiting.iter().map(|status| status.bytes).sum(),
            sent_bytes: waiting.iter().map(|status| status.sent_bytes).sum(),
            oldest: live.queue.oldest().map(|queued| queued.age(self.clock.now())),
            failures: failures.into_iter().collect(),
        }
    }

    /// Sets the metrics of the queue.
    pub(super) fn measure(&self) {
        let UploadsSummary { waiting, failed, oldest, .. } = self.summary();
        own_metrics::upload_queue(waiting, failed, oldest.unwrap_or_default());
    }
}
