//! A bound on the lines of the log about one subject, so that something that comes and goes does not fill the log.

use std::{fmt, time::Duration};

use tokio::time::Instant;

/// The most lines at once.
const BURST: u32 = 50;
/// The time after which one more line may be written.
const REFILL: Duration = Duration::from_secs(10);

/// How many lines may still be written: 50 at once, and one more every 10 seconds.
#[derive(Debug, Default)]
pub struct LogBudget {
    /// Lines that were written and not refilled since `since`.
    used: u32,
    since: Option<Instant>,
    unlogged: u64,
}

/// A line that may be written. Its text is what the line has to add to its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPermit {
    /// Lines before this one that were not written.
    unlogged: u64,
    /// Whether the next line may have to be left out.
    last: bool,
    /// Time since what the line tells was seen.
    late: Duration,
}

impl LogBudget {
    /// A budget of which nothing is used.
    pub const fn new() -> Self {
        Self { used: 0, since: None, unlogged: 0 }
    }

    /// Asks for one line. `None`: it may not be written; it is counted.
    pub fn take(&mut self, now: Instant) -> Option<LogPermit> {
        self.refill(now);
        if self.used == BURST {
            self.unlogged += 1;
            return None;
        }
        self.used += 1;
        let unlogged = std::mem::take(&mut self.unlogged);
        Some(LogPermit { unlogged, last: self.used == BURST, late: Duration::ZERO })
    }

    /// Asks for the newest line that was not written, of what was seen `at`. `None`: it may not be written yet.
    pub(crate) fn take_late(&mut self, at: Instant, now: Instant) -> Option<LogPermit> {
        self.refill(now);
        if self.used == BURST {
            return None;
        }
        // It was counted itself.
        self.unlogged = self.unlogged.saturating_sub(1);
        Some(LogPermit { late: now.saturating_duration_since(at), ..self.take(now)? })
    }

    fn refill(&mut self, now: Instant) {
        let since = *self.since.get_or_insert(now);
        let periods = now.saturating_duration_since(since).as_secs() / REFILL.as_secs();
        let periods = u32::try_from(periods).unwrap_or(u32::MAX);
        if periods >= self.used {
            (self.used, self.since) = (0, Some(now));
        } else {
            self.used -= periods;
            self.since = Some(since + REFILL * periods);
        }
    }
}

impl fmt::Display for LogPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.late.as_secs() > 0 {
            write!(f, " (seen {} s before)", self.late.as_secs())?;
        }
        match self.unlogged {
            0 => {}
            1 => f.write_str(" (1 line like it was not logged before)")?,
            unlogged => write!(f, " ({unlogged} lines like it were not logged before)")?,
        }
        if self.last {
            f.write_str(" (too many lines like it: further ones may not be logged)")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_written_and_what_is_left_out_is_counted() {
        let (mut budget, start) = (LogBudget::default(), Instant::now());
        let permits: Vec<_> = (0..BURST + 5).map(|_| budget.take(start)).collect();
        let plain = LogPermit { unlogged: 0, last: false, late: Duration::ZERO };
        assert!(permits[..49].iter().all(|permit| *permit == Some(plain)), "{permits:?}");
        assert_eq!(permits[49], Some(LogPermit { last: true, ..plain }));
        assert_eq!(permits[50..], [None; 5]);
        assert_eq!(budget.take(start + REFILL / 2), None);
        let later = budget.take(start + REFILL).expect("one line is refilled");
        assert_eq!(later, LogPermit { unlogged: 6, last: true, ..plain });
        assert_eq!(
            later.to_string(),
            " (6 lines like it were not logged before) (too many lines like it: further ones may not be logged)"
        );
        assert_eq!(budget.take(start + REFILL * 3 / 2), None);
        let quiet = start + REFILL * BURST * 2;
        let one = LogPermit { unlogged: 1, ..plain };
        assert_eq!(budget.take(quiet), Some(one));
        assert_eq!(one.to_string(), " (1 line like it was not logged before)");
        assert_eq!(budget.take(quiet).map(|permit| permit.to_string()), Some(String::new()));
    }

    #[test]
    fn a_steady_stream_is_bounded_by_the_refill() {
        let (mut budget, start) = (LogBudget::default(), Instant::now());
        let hour = 3600;
        let written = (0..hour).filter(|second| budget.take(start + Duration::from_secs(*second)).is_some());
        let most = u64::from(BURST) + hour / REFILL.as_secs();
        assert!((most - 1..=most).contains(&(written.count() as u64)));
    }
}
