//! What is kept of the ledgers of jobs, in the database of the agent: for each job one row, and one for each hour.
//!
//! The hours are kept by the second at first and by the minute later. Bounded by age, by number and by bytes: the oldest
//! of the user who has most go first. What an hour holds is the business of whoever keeps it. All calls block.
//! Must never return the ledger of a job for that of another user, or lose one hour because another cannot be kept.

mod rows;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use model::{job::JobKey, time::Timestamp};

use crate::state::{StateDb, StateError};

/// How long hours are kept by the second.
pub const KEEP_SECONDS: Duration = Duration::from_secs(48 * 3600);
/// How long hours are kept at all, and ledgers after their end.
pub const KEEP_MINUTES: Duration = Duration::from_secs(30 * 24 * 3600);
/// Ledgers that are kept.
const MAX_LEDGERS: usize = 4096;
/// Bytes of all hours together.
const MAX_BYTES: u64 = 64 << 20;

/// The ledger of one job, without its hours.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeptLedger {
    /// The job.
    pub key: JobKey,
    /// What it is called, for people; it may be empty.
    pub name: String,
    /// Its first second since the epoch.
    pub first: i64,
    /// The second after its last.
    pub end: i64,
    /// What is known so far, as whoever keeps it wrote it.
    pub state: String,
}

/// What one entry of an hour is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HourStep {
    /// One second.
    Second,
    /// One minute.
    Minute,
}

impl HourStep {
    fn seconds(self) -> u32 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
        }
    }
}

/// One hour of a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptHour {
    /// Which one, counted from the first second of the ledger.
    pub hour: u64,
    /// What one entry is about.
    pub step: HourStep,
    /// The entries, as whoever keeps it wrote them.
    pub content: Vec<u8>,
}

/// The ledgers that are kept.
#[derive(Debug, Clone)]
pub struct Ledgers(Arc<StateDb>);

impl Ledgers {
    /// Those in this database.
    pub fn new(db: Arc<StateDb>) -> Self {
        Self(db)
    }

    /// Keeps ledgers, each with the hours of it that changed, all or none.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn keep(&self, ledgers: &[(KeptLedger, Vec<KeptHour>)]) -> Result<(), StateError> {
        self.0.write(|transaction| {
            for (ledger, hours) in ledgers {
                let number = rows::put(transaction, ledger)?;
                hours.iter().try_for_each(|hour| rows::put_hour(transaction, number, hour))?;
            }
            Ok(())
        })
    }

    /// All of them, the newest first, without their states.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn list(&self) -> Result<Vec<KeptLedger>, StateError> {
        Ok(self.0.read(rows::list)?.unwrap_or_default())
    }

    /// The ledger of a job.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn find(&self, key: &JobKey) -> Result<Option<KeptLedger>, StateError> {
        Ok(self.0.read(|connection| rows::find(connection, key))?.flatten())
    }

    /// Forgets the ledger of a job with its hours.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn forget(&self, key: &JobKey) -> Result<(), StateError> {
        self.0.write(|transaction| rows::forget(transaction, key))
    }

    /// The hours of a ledger from one to another, both included.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn hours(&self, key: &JobKey, from: u64, to: u64) -> Result<Vec<KeptHour>, StateError> {
        Ok(self.0.read(|connection| rows::hours(connection, key, from, to))?.unwrap_or_default())
    }

    /// Applies the limits. `by_minute` makes the entries of an hour by the minute of those by the second; an hour of which
    /// it makes none is removed.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn prune(
        &self,
        now: Timestamp,
        by_minute: impl Fn(&KeptHour) -> Option<Vec<u8>>,
    ) -> Result<(), StateError> {
        let second = |age: Duration| {
            let now = now.0.div_euclid(1_000_000_000);
            now.saturating_sub(i64::try_from(age.as_secs()).unwrap_or(i64::MAX))
        };
        // An agent with nothing to prune makes no database.
        let Some(long) = self.0.read(|connection| rows::by_second(connection, second(KEEP_SECONDS)))? else {
            return Ok(());
        };
        let (keep_from, is_surplus) = (second(KEEP_MINUTES), |connection: &_| {
            rows::surplus(connection, second(KEEP_MINUTES), MAX_LEDGERS)
        });
        let surplus = self.0.read(is_surplus)?.unwrap_or_default();
        let bytes = self.0.read(rows::bytes)?.unwrap_or(0);
        let old = self.0.read(|connection| rows::has_hours_before(connection, keep_from))?.unwrap_or(false);
        if long.is_empty() && surplus.is_empty() && bytes <= MAX_BYTES && !old {
            return Ok(());
        }
        self.0.write(|transaction| {
            for (ledger, hour) in &long {
                match by_minute(hour) {
                    Some(content) => {
                        let shorter = KeptHour { step: HourStep::Minute, content, ..*hour };
                        rows::put_hour(transaction, *ledger, &shorter)?;
                    }
                    None => rows::remove_hour(transaction, *ledger, hour.hour)?,
                }
            }
            surplus.iter().try_for_each(|ledger| rows::remove(transaction, *ledger))?;
            rows::remove_hours_before(transaction, keep_from)?;
            rows::remove_beyond(transaction, MAX_BYTES)
        })
    }
}
