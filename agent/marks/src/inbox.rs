//! The queue of marks on their way to the disk, and the task that stores them.
//!
//! Marks of all users that come within a second are stored together, with one wait for the disk. The queue is bounded: who
//! submits waits when it is full, and so a program is read more slowly. Must never say that a mark is stored before the
//! disk has it, or store a batch of a connection of which an earlier one could not be stored: the numbers would say that
//! the earlier one is lost, while the program still has it.

use std::{sync::Arc, time::Duration};

use model::log_budget::LogBudget;
use store::marks::{Appended, MarkBatch, Marks, MarksError};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{own_metrics, step_series::StepSeries};

/// Batches that wait, each of at most one packet.
const QUEUE: usize = 64;
/// The shortest time between two writes that nobody waits for, and between two that somebody waits for.
const INTERVAL: Duration = Duration::from_secs(1);
const SHORT_INTERVAL: Duration = Duration::from_millis(50);
/// What is written at once.
const MAX_MARKS: usize = 8192;
const MAX_BYTES: usize = 2 << 20;

/// How far the marks of a connection are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Acknowledgement {
    /// Nothing is stored yet.
    #[default]
    Nothing,
    /// All marks up to this number are stored.
    Stored(u64),
    /// What was submitted last could not be stored.
    Failed,
}

/// Who hears what becomes of a batch.
#[derive(Debug)]
enum Listener {
    /// A connection that goes on: only the latest is of interest.
    Connection(Arc<watch::Sender<Acknowledgement>>),
    /// A caller that waits.
    Caller(oneshot::Sender<Result<Appended, Arc<MarksError>>>),
}

#[derive(Debug)]
struct Submission {
    batch: MarkBatch,
    listener: Listener,
}

/// Why marks were not stored for a caller.
#[derive(Debug, thiserror::Error)]
pub enum NotStored {
    /// The store refuses.
    #[error(transparent)]
    Store(Arc<MarksError>),
    /// The agent stops.
    #[error("the agent stops")]
    Stopped,
}

/// Where marks are submitted. Clones share the queue.
#[derive(Debug, Clone)]
pub struct Inbox(mpsc::Sender<Submission>);

/// The other end of an [`Inbox`].
#[derive(Debug)]
pub struct Writer {
    queue: mpsc::Receiver<Submission>,
    marks: Arc<Marks>,
    steps: Arc<StepSeries>,
    written: Option<Instant>,
    failures: LogBudget,
    losses: LogBudget,
}

/// A queue, and what stores the marks in it and counts the steps of those that are stored.
pub fn inbox(marks: Arc<Marks>, steps: Arc<StepSeries>) -> (Inbox, Writer) {
    let (sender, queue) = mpsc::channel(QUEUE);
    let (failures, losses) = (LogBudget::new(), LogBudget::new());
    (Inbox(sender), Writer { queue, marks, steps, written: None, failures, losses })
}

impl Inbox {
    /// Submits a batch of a connection, which hears of it through `acknowledgements`. Waits while the queue is full.
    ///
    /// # Errors
    /// If the agent stops.
    pub async fn submit(
        &self,
        batch: MarkBatch,
        acknowledgements: Arc<watch::Sender<Acknowledgement>>,
    ) -> Result<(), NotStored> {
        let listener = Listener::Connection(acknowledgements);
        self.0.send(Submission { batch, listener }).await.map_err(|_| NotStored::Stopped)
    }

    /// Stores a batch at once, and returns when it is on the disk.
    ///
    /// # Errors
    /// If it cannot be stored.
    pub async fn store(&self, batch: MarkBatch) -> Result<Appended, NotStored> {
        let (sender, result) = oneshot::channel();
        let listener = Listener::Caller(sender);
        self.0.send(Submission { batch, listener }).await.map_err(|_| NotStored::Stopped)?;
        result.await.map_err(|_| NotStored::Stopped)?.map_err(NotStored::Store)
    }
}

/// What is written together.
#[derive(Debug, Default)]
struct Gathered {
    batches: Vec<MarkBatch>,
    listeners: Vec<Listener>,
    marks: usize,
    bytes: usize,
    /// A caller waits.
    urgent: bool,
}

impl Gathered {
    fn push(&mut self, Submission { batch, listener }: Submission) {
        if listener.has_failed() {
            return;
        }
        self.urgent |= matches!(listener, Listener::Caller(_));
        self.marks += batch.marks.len();
        self.bytes += batch.marks.iter().flatten().map(|mark| mark.payload.len()).sum::<usize>();
        self.batches.push(batch);
        self.listeners.push(listener);
    }

    fn is_full(&self) -> bool {
        self.marks >= MAX_MARKS || self.bytes >= MAX_BYTES
    }
}

impl Writer {
    /// Stores what is submitted until `stop`; then what still waits.
    pub async fn run(&mut self, stop: CancellationToken) {
        while let Some(first) = stop.run_until_cancelled(self.queue.recv()).await.flatten() {
            let gathered = self.gather(first, &stop).await;
            self.write(gathered).await;
        }
        while let Ok(first) = self.queue.try_recv() {
            let gathered = self.take_waiting(first);
            self.write(gathered).await;
        }
    }

    /// What comes until it is time to write.
    async fn gather(&mut self, first: Submission, stop: &CancellationToken) -> Gathered {
        let mut gathered = Gathered::default();
        gathered.push(first);
        while !gathered.is_full() {
            let interval = if gathered.urgent { SHORT_INTERVAL } else { INTERVAL };
            let due = self.written.map_or_else(Instant::now, |written| written + interval);
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep_until(due) => break,
                next = self.queue.recv() => match next {
                    Some(next) => gathered.push(next),
                    None => break,
                },
            }
        }
        self.fill(&mut gathered);
        gathered
    }

    fn take_waiting(&mut self, first: Submission) -> Gathered {
        let mut gathered = Gathered::default();
        gathered.push(first);
        self.fill(&mut gathered);
        gathered
    }

    /// Adds what waits already.
    fn fill(&mut self, gathered: &mut Gathered) {
        while !gathered.is_full()
            && let Ok(next) = self.queue.try_recv()
        {
            gathered.push(next);
        }
    }

    async fn write(&mut self, Gathered { batches, listeners, .. }: Gathered) {
        if batches.is_empty() {
            return;
        }
        let (marks, steps) = (Arc::clone(&self.marks), Arc::clone(&self.steps));
        let append = move || {
            let appended = marks.append(&batches)?;
            batches.iter().zip(&appended).for_each(|(batch, appended)| steps.stored(batch, appended));
            Ok::<_, MarksError>((batches, appended))
        };
        let stored = tokio::task::spawn_blocking(append).await;
        self.written = Some(Instant::now());
        match stored {
            Ok(Ok((batches, appended))) => {
                self.log_losses(&batches, &appended);
                for (listener, appended) in listeners.into_iter().zip(appended) {
                    listener.stored(appended);
                }
            }
            Ok(Err(error)) => {
                self.log_failure(&error);
                let error = Arc::new(error);
                listeners.into_iter().for_each(|listener| listener.failed(Some(&error)));
            }
            // The panic is in the log.
            Err(_) => listeners.into_iter().for_each(|listener| listener.failed(None)),
        }
    }

    fn log_losses(&mut self, batches: &[MarkBatch], appended: &[Appended]) {
        for (batch, appended) in batches.iter().zip(appended) {
            own_metrics::appended(appended.added, appended.doubled, appended.lost);
            if appended.lost > 0
                && let Some(permit) = self.losses.take(Instant::now())
            {
                let job = batch.marks.iter().flatten().next().map(|mark| mark.job.as_str());
                let (uid, lost) = (batch.uid, appended.lost);
                warn!(
                    uid,
                    job,
                    lost,
                    "marks of a program never came: its buffer was full; the job's ledger is incomplete{permit}"
                );
            }
        }
    }

    fn log_failure(&mut self, error: &MarksError) {
        if let Some(permit) = self.failures.take(Instant::now()) {
            warn!(%error, "marks cannot be stored; the programs keep them as long as they have room{permit}");
        }
    }
}

impl Listener {
    /// An earlier batch of the connection could not be stored: the program sends all of them again.
    fn has_failed(&self) -> bool {
        matches!(self, Self::Connection(latest) if *latest.borrow() == Acknowledgement::Failed)
    }

    fn stored(self, appended: Appended) {
        match self {
            Self::Connection(acknowledgements) => {
                acknowledgements.send_replace(Acknowledgement::Stored(appended.stored));
            }
            // A caller may have hung up.
            Self::Caller(caller) => drop(caller.send(Ok(appended))),
        }
    }

    fn failed(self, error: Option<&Arc<MarksError>>) {
        match self {
            Self::Connection(acknowledgements) => {
                acknowledgements.send_replace(Acknowledgement::Failed);
            }
            Self::Caller(caller) => {
                if let Some(error) = error {
                    drop(caller.send(Err(Arc::clone(error))));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use model::{
        time::{SystemClock, Timestamp},
        unit::Bytes,
    };
    use store::{
        marks::{MarkLimits, NewMark},
        settings::MinFree,
        state::StateDb,
    };
    use tempfile::TempDir;

    use super::*;

    struct Host {
        _folder: TempDir,
        marks: Arc<Marks>,
        inbox: Inbox,
        writer: Writer,
    }

    fn limits() -> MarkLimits {
        MarkLimits { keep: Duration::from_secs(60), max_bytes: 1 << 20, min_free: MinFree::Share(0) }
    }

    fn host() -> Host {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(SystemClock);
        let db = Arc::new(StateDb::new(folder.path(), clock.clone()));
        let steps = Arc::new(StepSeries::new(clock.clone()));
        let marks = Arc::new(Marks::new(folder.path(), db, limits(), clock));
        let (inbox, writer) = inbox(Arc::clone(&marks), steps);
        Host { _folder: folder, marks, inbox, writer }
    }

    fn batch(first: u64) -> MarkBatch {
        let mark = NewMark { job: "j".into(), workload: None, at: Timestamp(5), payload: "{}".into() };
        MarkBatch {
            uid: 7,
            numbered: Some(("r".into(), first)),
            marks: vec![Some(mark)],
            refused_of: Vec::new(),
        }
    }

    fn stored(host: &Host) -> (u64, u64) {
        host.marks.jobs(None, None).unwrap().first().map_or((0, 0), |job| (job.marks, job.lost))
    }

    #[tokio::test]
    async fn what_waits_is_stored_together_and_acknowledged() {
        let mut host = host();
        let (sender, latest) = watch::channel(Acknowledgement::Nothing);
        let sender = Arc::new(sender);
        for number in 1..=5 {
            host.inbox.submit(batch(number), Arc::clone(&sender)).await.unwrap();
        }
        let stop = CancellationToken::new();
        stop.cancel();
        host.writer.run(stop).await;
        assert_eq!(*latest.borrow(), Acknowledgement::Stored(5));
        assert_eq!(stored(&host), (5, 0));
    }

    #[tokio::test]
    async fn a_caller_hears_when_its_mark_is_on_the_disk() {
        let Host { _folder, marks, inbox, mut writer } = host();
        let stop = CancellationToken::new();
        let running = tokio::spawn({
            let stop = stop.clone();
            async move { writer.run(stop).await }
        });
        let unnumbered = MarkBatch { numbered: None, ..batch(1) };
        assert_eq!(inbox.store(unnumbered).await.unwrap().added, 1);
        assert_eq!(
            inbox.store(batch(1)).await.unwrap(),
            Appended { stored: 1, added: 1, doubled: 0, lost: 0 }
        );
        assert_eq!(marks.jobs(None, None).unwrap()[0].marks, 2);
        stop.cancel();
        running.await.unwrap();
        assert!(matches!(inbox.store(batch(2)).await, Err(NotStored::Stopped)));
    }

    #[tokio::test]
    async fn what_follows_a_failure_is_not_stored_before_it_comes_again() {
        let mut host = host();
        let (sender, latest) = watch::channel(Acknowledgement::Nothing);
        let sender = Arc::new(sender);
        let submit = async |host: &mut Host, number, sender: &Arc<watch::Sender<Acknowledgement>>| {
            host.inbox.submit(batch(number), Arc::clone(sender)).await.unwrap();
            let first = host.writer.queue.try_recv().unwrap();
            let gathered = host.writer.take_waiting(first);
            host.writer.write(gathered).await;
        };
        submit(&mut host, 1, &sender).await;
        host.marks.set_limits(MarkLimits { min_free: MinFree::Size(Bytes::new(u64::MAX)), ..limits() });
        submit(&mut host, 2, &sender).await;
        assert_eq!(*latest.borrow(), Acknowledgement::Failed);
        host.marks.set_limits(limits());
        submit(&mut host, 3, &sender).await;
        assert_eq!((*latest.borrow(), stored(&host)), (Acknowledgement::Failed, (1, 0)));
        let (again, latest) = watch::channel(Acknowledgement::Nothing);
        let again = Arc::new(again);
        submit(&mut host, 2, &again).await;
        submit(&mut host, 3, &again).await;
        assert_eq!((*latest.borrow(), stored(&host)), (Acknowledgement::Stored(3), (3, 0)));
    }
}
