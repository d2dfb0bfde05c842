//! Which upload is next: a pure queue with waits after failures, and a circuit breaker for each destination.
//!
//! ```text
//! breaker of a destination:  closed ──failed──> open until a random time ──> one upload tries ──succeeded──> closed
//!                                                ^───────────failed───────────────┘
//! ```
//!
//! No clock and no randomness of its own.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use model::{backoff::Backoff, time::Timestamp};
use tokio::time::Instant;

use crate::SessionPriority;

/// The longest wait after the first failure, and after many.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// Higher priorities first, then those that failed less often, then the older, then the one with the lower number: one that
/// always fails is not the one that tries a destination for all others.
type Order = (Reverse<SessionPriority>, u32, Timestamp, i64);

/// An upload that waits or runs.
#[derive(Debug)]
struct Entry {
    destination: String,
    order: Order,
    /// Of this upload alone, such as a file that cannot be read.
    backoff: Backoff,
    not_before: Option<Instant>,
}

#[derive(Debug)]
struct Breaker {
    backoff: Backoff,
    not_before: Option<Instant>,
    running: usize,
}

impl Default for Breaker {
    fn default() -> Self {
        Self { backoff: Backoff::new(FIRST_WAIT, LONGEST_WAIT), not_before: None, running: 0 }
    }
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Start this upload.
    Start(i64),
    /// Nothing before this time.
    Wait(Instant),
    /// Nothing until something changes.
    Nothing,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UploadAttempt {
    /// Nothing more to do for it: it is done, failed for good, or was dropped.
    Ended,
    /// It failed in a way that says nothing of the destination.
    SessionFailed,
    /// The destination failed; whether something was written there before.
    DestinationFailed { progressed: bool },
}

/// The uploads that are not done.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: BTreeMap<i64, Entry>,
    waiting: BTreeSet<Order>,
    breakers: BTreeMap<String, Breaker>,
}

impl Queue {
    /// Adds an upload.
    pub(crate) fn add(
        &mut self,
        number: i64,
        destination: &str,
        priority: SessionPriority,
        queued: Timestamp,
    ) {
        let order = (Reverse(priority), 0, queued, number);
        let backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
        let entry = Entry { destination: destination.to_owned(), order, backoff, not_before: None };
        if self.entries.insert(number, entry).is_none() {
            self.waiting.insert(order);
        }
    }

    /// Takes an upload out. One that runs ends by itself.
    pub(crate) fn remove(&mut self, number: i64) {
        if let Some(entry) = self.entries.get(&number)
            && self.waiting.remove(&entry.order)
        {
            self.entries.remove(&number);
        }
    }

    /// Lets these be the next of their priority.
    pub(crate) fn forgive(&mut self, numbers: &[i64]) {
        for number in numbers {
            let Some(entry) = self.entries.get_mut(number) else { continue };
            let waits = self.waiting.remove(&entry.order);
            entry.order.1 = 0;
            if waits {
                self.waiting.insert(entry.order);
            }
        }
    }

    /// Gives an upload another priority.
    pub(crate) fn set_priority(&mut self, number: i64, priority: SessionPriority) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        let waits = self.waiting.remove(&entry.order);
        entry.order.0 = Reverse(priority);
        if waits {
            self.waiting.insert(entry.order);
        }
    }

    /// Lets all that wait after failures try now.
    pub(crate) fn retry_now(&mut self) {
        self.entries.values_mut().for_each(|entry| entry.not_before = None);
        self.breakers.values_mut().for_each(|breaker| breaker.not_before = None);
    }

    /// What to do now, without doing it.
    pub(crate) fn due(&self, now: Instant) -> Next {
        let mut wait: Option<Instant> = None;
        for order in &self.waiting {
            let Some(entry) = self.entries.get(&order.3) else { continue };
            let breaker = self.breakers.get(&entry.destination);
            // After a failure one upload tries, and the others wait for what comes of it.
            if breaker.is_some_and(|breaker| breaker.backoff.failures() > 0 && breaker.running > 0) {
                continue;
            }
            let not_before = entry.not_before.max(breaker.and_then(|breaker| breaker.not_before));
            match not_before.filter(|at| *at > now) {
                Some(at) => wait = Some(wait.map_or(at, |wait| wait.min(at))),
                None => return Next::Start(order.3),
            }
        }
        wait.map_or(Next::Nothing, Next::Wait)
    }

    /// The next upload. It runs from then on.
    pub(crate) fn next(&mut self, now: Instant) -> Next {
        let next = self.due(now);
        if let Next::Start(number) = next
            && let Some(entry) = self.entries.get(&number)
        {
            self.waiting.remove(&entry.order);
            self.breakers.entry(entry.destination.clone()).or_default().running += 1;
        }
        next
    }

    /// Notes how an attempt ended. `random` is from 0 to 1.
    pub(crate) fn ended(&mut self, number: i64, attempt: UploadAttempt, now: Instant, random: f64) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        let breaker = self.breakers.entry(entry.destination.clone()).or_default();
        breaker.running = breaker.running.saturating_sub(1);
        match attempt {
            UploadAttempt::Ended => {
                breaker.backoff.succeeded();
                breaker.not_before = None;
                self.entries.remove(&number);
                return;
            }
            UploadAttempt::SessionFailed => entry.not_before = Some(now + entry.backoff.failed(random)),
            UploadAttempt::DestinationFailed { progressed } => {
                if progressed {
                    breaker.backoff.succeeded();
                }
                breaker.not_before = Some(now + breaker.backoff.failed(random));
                entry.order.1 = entry.order.1.saturating_add(1);
            }
        }
        self.waiting.insert(entry.order);
    }

    /// When the oldest of them was queued.
    pub(crate) fn oldest(&self) -> Option<Timestamp> {
        self.entries.values().map(|entry| entry.order.2).min()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn queue(entries: &[(i64, &str, SessionPriority)]) -> Queue {
        let mut queue = Queue::default();
        for (number, destination, priority) in entries {
            queue.add(*number, destination, *priority, Timestamp(*number));
        }
        queue
    }

    #[tokio::test(start_paused = true)]
    async fn triggered_goes_before_asked_and_asked_before_periodic() {
        use SessionPriority::{Asked, Periodic, Triggered};
        let mut queue = queue(&[(1, "a", Periodic), (2, "a", Asked), (3, "a", Triggered), (4, "a", Asked)]);
        let now = Instant::now();
        let order: Vec<_> = (0..4).map(|_| queue.next(now)).collect();
        assert_eq!(order, [3, 2, 4, 1].map(Next::Start));
        assert_eq!((queue.next(now), queue.oldest()), (Next::Nothing, Some(Timestamp(1))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_priority_can_change_while_an_upload_waits_or_runs() {
        use SessionPriority::{Asked, Periodic, Triggered};
        let mut queue = queue(&[(1, "a", Asked), (2, "a", Periodic), (3, "a", Periodic)]);
        let now = Instant::now();
        queue.set_priority(3, Triggered);
        assert_eq!(queue.next(now), Next::Start(3));
        queue.set_priority(3, Periodic);
        queue.set_priority(9, Triggered);
        queue.ended(3, UploadAttempt::Ended, now, 1.0);
        let order: Vec<_> = (0..3).map(|_| queue.next(now)).collect();
        assert_eq!(order, [Next::Start(1), Next::Start(2), Next::Nothing]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_destination_that_fails_is_tried_by_one_upload_and_keeps_no_other_waiting() {
        use SessionPriority::Asked;
        let mut queue = queue(&[(1, "bad", Asked), (2, "bad", Asked), (3, "good", Asked)]);
        let now = Instant::now();
        assert_eq!(queue.next(now), Next::Start(1));
        queue.ended(1, UploadAttempt::DestinationFailed { progressed: false }, now, 1.0);
        assert_eq!(queue.next(now), Next::Start(3));
        queue.ended(3, UploadAttempt::Ended, now, 1.0);
        let later = now + FIRST_WAIT;
        assert_eq!(queue.next(now), Next::Wait(later));
        // Not the same again: it may be the only one that fails.
        assert_eq!((queue.next(later), queue.next(later)), (Next::Start(2), Next::Nothing));
        queue.ended(2, UploadAttempt::DestinationFailed { progressed: false }, later, 1.0);
        assert_eq!(queue.next(later), Next::Wait(later + 2 * FIRST_WAIT));
        queue.retry_now();
        queue.forgive(&[2]);
        assert_eq!(queue.next(later), Next::Start(2));
        queue.ended(2, UploadAttempt::Ended, later, 1.0);
        assert_eq!(queue.next(later), Next::Start(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_fails_keeps_only_its_own_upload_waiting() {
        let mut queue = queue(&[(1, "a", SessionPriority::Asked), (2, "a", SessionPriority::Asked)]);
        let now = Instant::now();
        assert_eq!(queue.next(now), Next::Start(1));
        queue.ended(1, UploadAttempt::SessionFailed, now, 1.0);
        assert_eq!(queue.next(now), Next::Start(2));
        assert_eq!(queue.next(now), Next::Wait(now + FIRST_WAIT));
    }

    proptest! {
        #[test]
        fn whatever_fails_every_upload_ends_at_last(
            destinations in prop::collection::vec(0..3u8, 1..12),
            attempts in prop::collection::vec((0..3u8, 0.0..=1.0f64), 0..200),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let mut queue = Queue::default();
                for (destination, number) in destinations.iter().zip(0..) {
                    queue.add(number, &destination.to_string(), SessionPriority::Asked, Timestamp(number));
                }
                let mut now = Instant::now();
                let (mut ended, mut attempts) = (0, attempts.into_iter());
                while ended < destinations.len() {
                    match queue.next(now) {
                        Next::Start(number) => {
                            let (kind, random) = attempts.next().unwrap_or((0, 0.5));
                            let attempt = match kind {
                                0 => UploadAttempt::Ended,
                                1 => UploadAttempt::SessionFailed,
                                _ => UploadAttempt::DestinationFailed { progressed: random > 0.5 },
                            };
                            ended += usize::from(attempt == UploadAttempt::Ended);
                            queue.ended(number, attempt, now, random);
                        }
                        Next::Wait(at) => {
                            assert!(at > now && at <= now + LONGEST_WAIT);
                            now = at;
                        }
                        Next::Nothing => panic!("an upload was lost"),
                    }
                }
                assert_eq!((queue.oldest(), queue.next(now)), (None, Next::Nothing));
            });
        }
    }
}
