//! Ledgers on the disk: read when a job is seen, kept soon when a job starts or ends, and else every two minutes.
//!
//! A write costs as much as many seconds of a ledger, and wears the disk: so a running job is written seldom.
//! All that blocks runs on a thread for that. Must never wait for the disk longer than [`OPEN_TIMEOUT`], or take a ledger
//! that cannot be read for one without time.

use std::{sync::Arc, time::Duration};

use goodput::proxy::live::{BLOCK_SECONDS, LedgerBlock, MinuteBlock};
use model::job::JobKey;
use store::{
    StateError,
    ledgers::{HourStep, KeptHour, KeptLedger, Ledgers},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout},
};
use tracing::warn;

use super::{
    LiveLedgers,
    job_ledger::{JobLedger, KeptState},
    observed::ObservedJob,
};

/// How long a job waits for its ledger; then it is asked for again.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);
/// Time between two writes of jobs that go on.
const KEEP_EVERY: Duration = Duration::from_secs(120);
/// A job that started or ended, or could not be written, is written so long after that.
const KEEP_SOON: Duration = Duration::from_secs(10);
/// Time between two looks at the limits.
const PRUNE_EVERY: Duration = Duration::from_secs(600);
/// How long the agent waits for the last write when it stops.
const LAST_TIMEOUT: Duration = Duration::from_secs(2);

/// What was written last, and when.
pub(super) struct Keeping {
    kept: Ledgers,
    /// When the last write began, or the agent.
    written: Instant,
    /// When what is urgent is due.
    urgent_due: Option<Instant>,
    prune_due: Instant,
    writing: Option<Writing>,
    /// Whether the log said that the disk refuses.
    has_warned: bool,
}

struct Writing {
    keys: Vec<JobKey>,
    task: JoinHandle<Result<(), StateError>>,
}

/// The ledger of a job as it is to be written.
struct ChangedLedger {
    row: KeptLedger,
    state: KeptState,
    hours: Vec<LedgerBlock>,
}

impl Keeping {
    pub(super) fn new(kept: Ledgers) -> Self {
        let now = Instant::now();
        Self { kept, written: now, urgent_due: None, prune_due: now, writing: None, has_warned: false }
    }

    /// The ledger of a job that is seen in this second; `None` while the disk does not say whether there is one.
    pub(super) async fn open(&mut self, job: &ObservedJob, second: i64) -> Option<JobLedger> {
        let (kept, key) = (self.kept.clone(), job.key.clone());
        let reading = tokio::task::spawn_blocking(move || read(&kept, &key));
        let error = match timeout(OPEN_TIMEOUT, reading).await {
            Ok(Ok(Ok(Some((first, state, hours))))) => {
                return Some(JobLedger::kept(job, second, first, state, hours));
            }
            Ok(Ok(Ok(None))) => return Some(JobLedger::new(job, second)),
            Ok(Ok(Err(error))) => error.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the disk does not answer".to_owned(),
        };
        self.warn_once(&error);
        None
    }

    fn warn_once(&mut self, error: &str) {
        if !self.has_warned {
            warn!(
                error,
                "the ledgers of jobs cannot be read or written; what an end of the agent loses until then is unobserved"
            );
            self.has_warned = true;
        }
    }

    /// Writes what has changed when that is due, unless the last write is still under way.
    pub(super) async fn tick(&mut self, ledgers: &Arc<LiveLedgers>) {
        if let Some(writing) = &self.writing {
            if !writing.task.is_finished() {
                return;
            }
            self.settle(ledgers).await;
        }
        let now = Instant::now();
        if self.urgent_due.is_none() && ledgers.set().is_urgent() {
            self.urgent_due = Some(now + KEEP_SOON);
        }
        let due = self.written + KEEP_EVERY;
        if now >= self.urgent_due.map_or(due, |urgent| urgent.min(due)) {
            self.write(ledgers);
        }
    }

    /// Writes what is left.
    pub(super) async fn finish(&mut self, ledgers: &Arc<LiveLedgers>) {
        let last = async {
            self.settle(ledgers).await;
            self.write(ledgers);
            self.settle(ledgers).await;
        };
        if timeout(LAST_TIMEOUT, last).await.is_err() {
            warn!("the last seconds of the ledgers of jobs were not kept: the disk does not answer");
        }
    }

    /// Waits for the last write. What it did not keep is to be kept by the next one; jobs that ended and are kept leave the
    /// memory.
    pub(super) async fn settle(&mut self, ledgers: &Arc<LiveLedgers>) {
        let Some(Writing { keys, task }) = self.writing.take() else { return };
        let error = match task.await {
            Ok(Ok(())) => {
                self.has_warned = false;
                ledgers.set().forget_ended();
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        ledgers.set().jobs_mut().filter(|job| keys.contains(&job.key)).for_each(JobLedger::not_kept);
        self.warn_once(&error);
    }

    fn write(&mut self, ledgers: &Arc<LiveLedgers>) {
        let changed: Vec<ChangedLedger> =
            ledgers.set().jobs_mut().filter(|job| job.has_changed).map(take).collect();
        (self.written, self.urgent_due) = (Instant::now(), None);
        let prune_at = (self.written >= self.prune_due).then(|| ledgers.clock.now());
        if prune_at.is_some() {
            self.prune_due = self.written + PRUNE_EVERY;
        }
        if changed.is_empty() && prune_at.is_none() {
            return;
        }
        let keys = changed.iter().map(|ledger| ledger.row.key.clone()).collect();
        let kept = self.kept.clone();
        let task = tokio::task::spawn_blocking(move || {
            let rows: Vec<_> = changed.into_iter().map(ChangedLedger::rows).collect();
            if !rows.is_empty() {
                kept.keep(&rows)?;
            }
            prune_at.map_or(Ok(()), |now| kept.prune(now, by_minute))
        });
        self.writing = Some(Writing { keys, task });
    }
}

fn take(job: &mut JobLedger) -> ChangedLedger {
    let row = KeptLedger {
        key: job.key.clone(),
        name: job.name.clone(),
        first: job.first(),
        end: job.end(),
        state: String::new(),
    };
    ChangedLedger { row, state: job.state(), hours: job.take_changed() }
}

impl ChangedLedger {
    fn rows(self) -> (KeptLedger, Vec<KeptHour>) {
        let Self { row, state, hours } = self;
        // A state without a text would be read as none, and the time before it would be lost: plain numbers always have one.
        let state = serde_json::to_string(&state).unwrap_or_default();
        let hour = |block: LedgerBlock| KeptHour {
            hour: block.number(),
            step: HourStep::Second,
            content: block.to_bytes(),
        };
        (KeptLedger { state, ..row }, hours.into_iter().map(hour).collect())
    }
}

/// The ledger of a job: its first second, its state and its last hours. One that cannot be read is forgotten.
fn read(kept: &Ledgers, key: &JobKey) -> Result<Option<(i64, KeptState, Vec<LedgerBlock>)>, StateError> {
    let Some(row) = kept.find(key)? else { return Ok(None) };
    let Some(state) = state(&row) else {
        warn!(job = %key, "the ledger of a job cannot be read and begins again");
        kept.forget(key)?;
        return Ok(None);
    };
    let last = state.ledger.len() / BLOCK_SECONDS;
    let hours = kept.hours(key, last.saturating_sub(1), last)?;
    Ok(Some((row.first, state, hours.iter().filter_map(by_second).collect())))
}

/// What a row says of its ledger.
pub(super) fn state(row: &KeptLedger) -> Option<KeptState> {
    serde_json::from_str(&row.state).ok()
}

/// The seconds of an hour that is kept by the second.
pub(super) fn by_second(hour: &KeptHour) -> Option<LedgerBlock> {
    (hour.step == HourStep::Second).then(|| LedgerBlock::from_bytes(hour.hour, &hour.content)).flatten()
}

/// The minutes of an hour that is kept by the second, as bytes.
fn by_minute(hour: &KeptHour) -> Option<Vec<u8>> {
    Some(MinuteBlock::from(&by_second(hour)?).to_bytes())
}
