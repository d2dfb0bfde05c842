//! Sessions on their way to their destinations: a queue that outlives the agent, and a thread that works through it.
//!
//! ```text
//! add ──> waiting ──its turn──> running ──every file there, compared──> done
//!            ^  ^                  │  │
//!            │  └──failed, waits───┘  └──three times not as it was sent──> failed
//!            └──────────────────────── retry ────────────────────────────────┘
//! ```
//!
//! [`session_upload`] and [`file`] are the states of a session and a file, [`queue`] chooses, [`transfer`] makes the steps,
//! [`rows`] is the state on the disk. [`manifest_put`] and [`whole_manifest`] are for sessions over several hosts. Must never report an upload as done that the destination does not have, nor remove
//! anything of the session here.

mod check;
mod file;
mod live;
mod manifest_put;
mod part_memory;
mod queue;
mod rows;
mod session_upload;
pub mod settings;
mod source;
mod status;
mod transfer;
mod whole_manifest;
mod worker;

use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

pub use check::{DestinationCheck, check_destinations};
use live::Inner;
pub use manifest_put::PutManifestError;
use model::time::Clock;
use queue::Next;
pub use status::{UploadFailure, UploadPhase, UploadShare, UploadStatus, UploadsSummary};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use xprof::session::{HostName, Manifest, SessionName};

use crate::{
    SessionPriority, catalog,
    destinations::{Destination, DestinationName, Destinations, UploadUrl},
    state::{StateDb, StateError},
};

/// The time between two updates of the age of the oldest upload.
const MEASURE: Duration = Duration::from_secs(15);
/// The time between two searches for parts of which nothing came.
const CLEAN: Duration = Duration::from_secs(3600);

/// Where a new session goes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum UploadChoice {
    /// Only where every session goes.
    #[default]
    Always,
    /// There too.
    To(DestinationName),
    /// Nowhere.
    Nowhere,
    /// As one host of a session over several hosts: the parts alone there, and a session of this host where every session goes.
    Parts(Option<PartsDestination>),
}

/// Where all hosts of a session send their parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartsDestination {
    /// The destination.
    pub name: DestinationName,
    /// Its URL for the session, on which all hosts agreed.
    pub url: UploadUrl,
}

/// The settings of uploads.
#[derive(Debug, Clone, Default)]
pub struct UploadSettings {
    /// Sections `[[destination]]`.
    pub destinations: Destinations,
    /// Section `[upload]`.
    pub upload: settings::Settings,
}

/// The uploads of this agent. Clones are the same.
#[derive(Clone)]
pub struct Uploads(Arc<Inner>);

impl Uploads {
    /// Uploads of the sessions below `logdir`, which are of this `host`. [`Uploads::load`] has to follow.
    pub fn new(
        db: Arc<StateDb>,
        logdir: &Path,
        host: HostName,
        settings: UploadSettings,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self(Arc::new(Inner::new(db, logdir.to_owned(), host, settings, clock)))
    }

    /// Goes on with what an earlier agent left. A damaged state is moved aside: the uploads are then found again by
    /// [`Uploads::derive`]. Blocks.
    ///
    /// # Errors
    /// If the state cannot be read.
    pub fn load(&self) -> Result<(), StateError> {
        let found = match self.0.db.read(rows::unfinished) {
            Ok(Some(found)) => found,
            Ok(None) | Err(StateError::Damaged { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut live = self.0.live();
        for status in found {
            live.insert(status);
        }
        drop(live);
        self.0.changed.notify_one();
        Ok(())
    }

    /// Replaces the settings. What waits after a failure tries again.
    pub fn set_settings(&self, settings: UploadSettings) {
        self.0.set_settings(settings);
        self.0.live().queue.retry_now();
        self.0.changed.notify_one();
    }

    /// Adds the uploads of a new session. Returns them. Blocks.
    ///
    /// # Errors
    /// If the state cannot be written: then they are tried, and forgotten with the agent.
    pub fn add(
        &self,
        manifest: &Manifest,
        choice: &UploadChoice,
        priority: SessionPriority,
    ) -> (Vec<UploadStatus>, Result<(), StateError>) {
        let settings = self.0.settings();
        let wanted = |destination: &&Destination| match choice {
            UploadChoice::Nowhere => false,
            UploadChoice::Always | UploadChoice::Parts(None) => destination.always(),
            UploadChoice::To(name) | UploadChoice::Parts(Some(PartsDestination { name, .. })) => {
                destination.always() || destination.name == *name
            }
        };
        let share = matches!(choice, UploadChoice::Parts(_));
        let mut new: Vec<UploadStatus> = settings
            .destinations
            .0
            .iter()
            .filter(wanted)
            .map(|destination| self.0.status_of(manifest, destination, priority, share))
            .collect();
        if let UploadChoice::Parts(Some(agreed)) = choice {
            let named = new.iter_mut().filter(|status| status.destination == agreed.name.as_str());
            named.for_each(|status| {
                (status.url, status.share) = (agreed.url.to_string(), UploadShare::Parts);
            });
        }
        let saved = self.add_all(&mut new);
        (new, saved)
    }

    /// Adds the uploads of sessions that the store found in their folders: their agent died before it could note where they
    /// go, or the state is lost. They go where their capture said and where every session goes; and where a destination has a
    /// claim of the session, its upload goes on. Blocks.
    ///
    /// # Errors
    /// If the state cannot be read or written: then the next start tries again.
    pub fn derive(&self) -> Result<(), StateError> {
        let found = self.0.db.read(catalog::rows::undecided)?.unwrap_or_default();
        if found.is_empty() {
            return Ok(());
        }
        for name in &found {
            self.add_all(&mut self.0.derived(name))?;
        }
        self.0.db.write(|change| found.iter().try_for_each(|name| catalog::rows::stays_here(change, name)))
    }

    /// Adds uploads, without those that the state has already. If the state cannot be written, they are in memory only.
    fn add_all(&self, new: &mut Vec<UploadStatus>) -> Result<(), StateError> {
        if new.is_empty() {
            return Ok(());
        }
        let added = self.0.db.write_durable(|change| {
            new.iter().map(|status| rows::add(change, status)).collect::<rusqlite::Result<Vec<_>>>()
        });
        let saved = added.map(|added| {
            let mut added = added.into_iter();
            new.retain(|_| added.next().unwrap_or(false));
        });
        let mut live = self.0.live();
        for status in new.iter().cloned() {
            if saved.is_ok() { live.insert(status) } else { live.insert_unsaved(status) }
        }
        drop(live);
        self.0.changed.notify_one();
        saved
    }

    /// The uploads of a session. Blocks.
    ///
    /// # Errors
    /// If the state cannot be read.
    pub fn of_session(&self, session: &SessionName) -> Result<Vec<UploadStatus>, StateError> {
        let stored = self.0.db.read(|db| rows::of_session(db, session.as_str()))?.unwrap_or_default();
        let mut all = self.0.live().merged(stored);
        all.retain(|status| status.session == session.as_str());
        Ok(all)
    }

    /// All uploads, the oldest first. Blocks.
    ///
    /// # Errors
    /// If the state cannot be read.
    pub fn list(&self) -> Result<Vec<UploadStatus>, StateError> {
        let stored = self.0.db.read(rows::all)?.unwrap_or_default();
        Ok(self.0.live().merged(stored))
    }

    /// All uploads in short.
    pub fn summary(&self) -> UploadsSummary {
        self.0.summary()
    }

    /// The settings.
    pub fn settings(&self) -> Arc<UploadSettings> {
        self.0.settings()
    }

    /// The uploads that are not done.
    pub fn unfinished(&self) -> Vec<UploadStatus> {
        self.0.live().statuses.values().cloned().collect()
    }

    /// Lets these uploads try again now. Blocks.
    ///
    /// # Errors
    /// If the state cannot be written.
    pub fn retry(&self, numbers: &[i64]) -> Result<(), StateError> {
        let found = self.0.db.write(|change| {
            numbers.iter().try_for_each(|number| rows::retry(change, *number))?;
            rows::unfinished(change)
        })?;
        let mut live = self.0.live();
        for status in found.into_iter().filter(|status| numbers.contains(&status.number)) {
            live.insert(status);
        }
        live.queue.retry_now();
        live.queue.forgive(numbers);
        drop(live);
        self.0.changed.notify_one();
        Ok(())
    }

    /// Lets the uploads of these sessions go before those of others, as those of sessions that were triggered do. Returns how
    /// many do that now. Blocks.
    ///
    /// # Errors
    /// If the state cannot be written: then nothing is changed.
    pub fn go_first(&self, sessions: &BTreeSet<String>) -> Result<usize, StateError> {
        const FIRST: SessionPriority = SessionPriority::Triggered;
        let of_sessions =
            |status: &UploadStatus| status.priority < FIRST && sessions.contains(&status.session);
        let unfinished = self.unfinished();
        let numbers: Vec<i64> =
            unfinished.iter().filter(|status| of_sessions(status)).map(|status| status.number).collect();
        if numbers.is_empty() {
            return Ok(0);
        }
        self.0.db.write(|change| {
            numbers.iter().try_for_each(|number| rows::set_priority(change, *number, FIRST))
        })?;
        let mut live = self.0.live();
        for number in &numbers {
            live.set_priority(*number, FIRST);
        }
        drop(live);
        self.0.changed.notify_one();
        Ok(numbers.len())
    }

    /// Forgets these uploads. What they sent stays hidden, and is removed later. Blocks.
    ///
    /// # Errors
    /// If the state cannot be written.
    pub fn remove(&self, numbers: &[i64]) -> Result<(), StateError> {
        self.0.db.write(|change| numbers.iter().try_for_each(|number| rows::remove(change, *number)))?;
        let mut live = self.0.live();
        for number in numbers {
            live.drop_upload(*number);
        }
        drop(live);
        self.0.measure();
        self.0.changed.notify_one();
        Ok(())
    }

    /// Works until `stop`, and then for as long as it is polled on what can be sent without waiting. Dropped, it ends at
    /// once.
    ///
    /// # Errors
    /// If its thread cannot be started or panicked.
    pub async fn run(&self, stop: CancellationToken) -> Result<(), String> {
        let now_or_never = CancellationToken::new();
        let _ends_the_thread = now_or_never.clone().drop_guard();
        let mut clean_at = Instant::now();
        loop {
            self.0.measure();
            let now = Instant::now();
            let due = self.0.live().queue.due(now);
            let mut work = matches!(due, Next::Start(_));
            if clean_at <= now {
                clean_at = now + CLEAN;
                work |= self.0.has_stale_parts().await;
            }
            if work {
                worker::run(self.0.clone(), stop.clone(), now_or_never.clone()).await?;
            }
            if stop.is_cancelled() {
                return Ok(());
            }
            if work {
                continue;
            }
            let wake = match due {
                Next::Wait(at) => at.min(now + MEASURE),
                Next::Start(_) | Next::Nothing => clean_at,
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.0.changed.notified() => {}
                () = sleep_until(wake.min(clean_at)) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
