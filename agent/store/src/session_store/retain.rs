//! The limits of the store in force: what they want to go, and its removal.

use std::{
    collections::BTreeSet,
    sync::{MutexGuard, PoisonError},
    time::Duration,
};

use model::{time::Timestamp, unit::Bytes};
use nix::sys::statvfs::statvfs;
use rusqlite::Connection;
use tokio::time::Instant;
use tracing::{info, warn};
use xprof::session::SessionName;

use super::{SessionStore, failed};
use crate::{
    StoreError, UploadState,
    catalog::rows::{self, RemovalOrder},
    own_metrics,
    retention::{Limits, Plan, Removal, clock_trust::ClockTrust},
    settings::MaxSize,
    state::migrations::{meta, set_meta},
};

/// Until when the limit that no setting names removes nothing, in nanoseconds since the epoch. Its presence says that
/// this state directory has been used with that limit.
const GRACE: &str = "default_limit_from_ns";
/// When the clock last stepped, in nanoseconds since the epoch.
const STEPPED: &str = "clock_stepped_ns";
/// How long a limit that comes with a new version removes nothing that was there before.
const GRACE_TIME: Duration = Duration::from_secs(7 * 24 * 3600);

/// What retention remembers.
#[derive(Debug, Default)]
pub(super) struct Retention {
    /// Whether the catalog knows all that is on the disk.
    complete: bool,
    /// The last session that was finished before the catalog was complete.
    due: Option<SessionName>,
    /// Whether this version is the first that keeps sessions here, and that is not yet noted.
    is_new: bool,
    /// The limit that no setting names removes nothing before.
    grace_until: Option<Timestamp>,
    clock: ClockTrust,
}

/// The file system of the store.
#[derive(Debug, Clone, Copy)]
struct Disk {
    size: u64,
    free: u64,
}

impl SessionStore {
    /// Removes what the limits say now.
    ///
    /// # Errors
    /// If the disk or the database refuses.
    pub fn retain(&self) -> Result<Vec<Removal>, StoreError> {
        self.look_at_the_clock()?;
        if !self.retention().complete {
            return Ok(Vec::new());
        }
        self.remove_planned(BTreeSet::new(), self.clock.now())
    }

    /// What the limits would remove now.
    ///
    /// # Errors
    /// If the disk or the database refuses.
    pub fn removals(&self) -> Result<Vec<Removal>, StoreError> {
        self.plan(BTreeSet::new(), self.clock.now())
    }

    /// Bytes that a session may have without pushing out another, or taking the disk that is to stay free.
    pub(crate) fn room(&self) -> Result<u64, StoreError> {
        let (limits, disk) = (self.limits_in_force(self.clock.now())?, self.disk()?);
        let bytes = self.db.read(rows::totals)?.unwrap_or_default().bytes;
        let free = disk.free.saturating_sub(self.limits().min_free.limit(disk.size));
        Ok(limits.max_size.map_or(free, |max| max.saturating_sub(bytes).min(free)))
    }

    /// Measures the free disk, for the agent's own metrics.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn measure_free(&self) -> Result<(), StoreError> {
        own_metrics::free(self.disk()?.free);
        Ok(())
    }

    /// Whether the disk has room for another session, after what was uploaded has made room.
    pub(super) fn check_free(&self) -> Result<(), StoreError> {
        let needed = |disk: Disk| self.limits().min_free.limit(disk.size);
        let disk = self.disk()?;
        if disk.free >= needed(disk) {
            return Ok(());
        }
        if let Err(error) = self.retain() {
            warn!(%error, "cannot make room for a session");
        }
        let disk = self.disk()?;
        if disk.free >= needed(disk) {
            return Ok(());
        }
        let (free, needed) = (Bytes::new(disk.free), Bytes::new(needed(disk)));
        Err(StoreError::LowDisk { folder: self.logdir.clone(), free, needed })
    }

    /// A session was finished: it stays, whatever the limits say.
    pub(super) fn finished(&self, name: SessionName, now: Timestamp) {
        let complete = {
            let mut retention = self.retention();
            if !retention.complete {
                retention.due = Some(name.clone());
            }
            retention.complete
        };
        if complete {
            self.retain_all_but(name, now);
        }
    }

    /// The limits apply from now on.
    pub(super) fn catalog_is_complete(&self) {
        let due = {
            let mut retention = self.retention();
            retention.complete = true;
            retention.due.take()
        };
        if let Some(name) = due {
            self.retain_all_but(name, self.clock.now());
        }
    }

    /// Finds out whether this state directory was used with the limit that no setting names. If it was not and has
    /// sessions, nothing is removed for that limit for a week.
    pub(super) fn begin_limits(&self, has_sessions: bool) -> Result<(), StoreError> {
        let stepped = self.db.read(|connection| meta(connection, STEPPED))?.flatten().map(Timestamp);
        self.retention().clock.remember(stepped);
        let known: Option<i64> = self.db.read(|connection| meta(connection, GRACE))?.flatten();
        if let Some(until) = known {
            self.retention().grace_until = Some(Timestamp(until));
            return Ok(());
        }
        if !has_sessions {
            // Noted with its first session: a host without sessions has no database.
            self.retention().is_new = true;
            return Ok(());
        }
        let until = self.clock.now().plus(GRACE_TIME);
        self.db.write(|transaction| set_meta(transaction, GRACE, until.0))?;
        self.retention().grace_until = Some(until);
        if let (MaxSize::Auto, Some(limit)) = (self.limits().max_size, MaxSize::Auto.limit(self.disk()?.size))
        {
            warn!(
                limit = %Bytes::new(limit), %until,
                "this version bounds the sessions (store.max_size): from the given time on the oldest that exceed \
                 the limit are removed; `tpuscope sessions pin` keeps a session, and store.max_size sets another limit"
            );
        }
        Ok(())
    }

    fn retain_all_but(&self, keep: SessionName, now: Timestamp) {
        if self.retention().is_new {
            match self.db.write(|transaction| set_meta(transaction, GRACE, 0)) {
                Ok(()) => self.retention().is_new = false,
                Err(error) => warn!(%error, "the start of the store's limits could not be noted"),
            }
        }
        if let Err(error) = self.remove_planned(BTreeSet::from([keep]), now) {
            warn!(%error, "the limits of the store could not be applied");
        }
    }

    /// Removes what the limits have no room for, but not `stay`.
    fn remove_planned(
        &self,
        mut stay: BTreeSet<SessionName>,
        now: Timestamp,
    ) -> Result<Vec<Removal>, StoreError> {
        let mut removed = Vec::new();
        loop {
            let planned = self.plan(stay.clone(), now)?;
            if planned.is_empty() {
                return Ok(removed);
            }
            for removal in planned {
                stay.insert(removal.name.clone());
                // One that cannot be removed keeps no other from going.
                match self.remove_folder(&removal.name) {
                    Ok(()) => {
                        log(&removal);
                        removed.push(removal);
                    }
                    // The catalog still counts it: what else would have to go is not known.
                    Err(error @ StoreError::State(_)) => return Err(error),
                    Err(error) => warn!(session = %removal.name, %error, "cannot remove an old session"),
                }
            }
        }
    }

    fn plan(&self, stay: BTreeSet<SessionName>, now: Timestamp) -> Result<Vec<Removal>, StoreError> {
        // A database that still counts what was removed would let more go than has to.
        if !self.catalog.save_again() {
            return Ok(Vec::new());
        }
        let limits = self.limits_in_force(now)?;
        let planned = self.db.read(|connection: &Connection| {
            let bytes = rows::totals(connection)?.bytes;
            let mut plan = Plan::new(limits, now, bytes, stay);
            rows::candidates(connection, RemovalOrder::Oldest, |candidate| plan.oldest(candidate))?;
            rows::candidates(connection, RemovalOrder::Uploaded, |candidate| plan.uploaded(candidate))?;
            rows::candidates(connection, RemovalOrder::Unsent, |candidate| plan.unsent(candidate))?;
            Ok(plan.removals)
        });
        Ok(planned?.unwrap_or_default())
    }

    pub(super) fn limits_in_force(&self, now: Timestamp) -> Result<Limits, StoreError> {
        let (limits, disk) = (self.limits(), self.disk()?);
        let retention = self.retention();
        let in_grace = retention.grace_until.is_some_and(|until| now < until);
        let max_size = match limits.max_size {
            MaxSize::Auto if in_grace => None,
            max_size => max_size.limit(disk.size),
        };
        let max_age = Some(limits.max_age.get()).filter(|max_age| !max_age.is_zero());
        let max_age = max_age.filter(|_| retention.clock.trusts(now, (self.is_synchronised)()));
        let lacking = limits.min_free.limit(disk.size).saturating_sub(disk.free);
        Ok(Limits { max_size, max_age, lacking })
    }

    /// Why `store.max_age` removes nothing now; `None` if it does, or is not set.
    pub fn why_no_age(&self) -> Option<&'static str> {
        let is_set = !self.limits().max_age.get().is_zero();
        let synchronised = (self.is_synchronised)();
        let trusted = self.retention().clock.trusts(self.clock.now(), synchronised);
        (is_set && !trusted).then_some(if synchronised {
            "the clock stepped by more than an hour, less than a day ago"
        } else {
            "the clock is not synchronised"
        })
    }

    fn look_at_the_clock(&self) -> Result<(), StoreError> {
        let now = self.clock.now();
        if self.retention().clock.look(now, Instant::now()) {
            warn!("the clock stepped by more than an hour: no session is removed for its age for a day");
            if self.db.read(|_| Ok(()))?.is_some() {
                self.db.write(|transaction| set_meta(transaction, STEPPED, now.0))?;
            }
        }
        Ok(())
    }

    fn disk(&self) -> Result<Disk, StoreError> {
        let disk = statvfs(&self.logdir)
            .map_err(|error| failed("read the free disk of", &self.logdir)(error.into()))?;
        let bytes = |blocks: u64| blocks.saturating_mul(disk.fragment_size());
        Ok(Disk { size: bytes(disk.blocks()), free: bytes(disk.blocks_available()) })
    }

    fn retention(&self) -> MutexGuard<'_, Retention> {
        // Every change is one assignment.
        self.retention.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn log(removal: &Removal) {
    let (session, limit) = (&removal.name, removal.reason.setting());
    match removal.upload {
        UploadState::Pending => {
            warn!(%session, limit, "a session that was not yet uploaded was removed: there is no room, and no uploaded one is left");
        }
        UploadState::Local | UploadState::Uploaded => {
            info!(%session, limit, "old session removed: the store is over its limits");
        }
    }
}
