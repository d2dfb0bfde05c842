//! A bound on the lines of the log about one subject, so that something that comes and goes does not fill the log.

use std::time::{Duration, Instant};

/// The lines of one period.
const LINES: u32 = 50;
const PERIOD: Duration = Duration::from_secs(60);

/// How many lines may still be written.
#[derive(Debug, Default)]
pub struct LogBudget {
    written: u32,
    began: Option<Instant>,
}

/// Whether a line may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogPermit {
    /// It may.
    Line,
    /// It may, as the last one of this period. The line should say so.
    LastLine,
    /// It may not.
    Nothing,
}

impl LogBudget {
    /// Asks for one line. At most 50 in each minute are permitted.
    pub fn take(&mut self, now: Instant) -> LogPermit {
        if self.began.is_none_or(|began| now.saturating_duration_since(began) >= PERIOD) {
            (self.began, self.written) = (Some(now), 0);
        }
        self.written = self.written.saturating_add(1);
        match self.written {
            1..LINES => LogPermit::Line,
            LINES => LogPermit::LastLine,
            _ => LogPermit::Nothing,
        }
    }
}

impl LogPermit {
    /// What a permitted line has to add to its text. `None`: no line may be written.
    pub fn suffix(self) -> Option<&'static str> {
        match self {
            Self::Line => Some(""),
            Self::LastLine => Some(" (further changes of this minute are not logged)"),
            Self::Nothing => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_has_its_lines_and_the_last_says_so() {
        let (mut budget, start) = (LogBudget::default(), Instant::now());
        for period in 0..3 {
            let at = start + PERIOD * period;
            let permits: Vec<_> = (0..LINES + 5).map(|_| budget.take(at)).collect();
            let permitted = permits.iter().filter(|permit| **permit == LogPermit::Line).count();
            assert_eq!(permitted, LINES as usize - 1);
            assert_eq!(permits[LINES as usize - 1], LogPermit::LastLine);
            assert_eq!(permits.last(), Some(&LogPermit::Nothing));
        }
    }
}
