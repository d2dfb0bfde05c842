//! A log of which each text is bounded by itself, and whose last line of a text is always written.
//!
//! Must never let lines with one text use up the budget of another. It keeps at most one line of a text that is still to be
//! written.

use std::{collections::BTreeMap, fmt};

use tokio::time::Instant;

use crate::log_budget::{LogBudget, LogPermit};

/// The log. A text is a constant of the program, so that their number is bounded.
#[derive(Default)]
pub struct BoundedLog {
    budgets: BTreeMap<&'static str, LogBudget>,
    /// The newest line of each text that was left out since its last line, oldest first.
    left_out: Vec<LeftOut>,
}

struct LeftOut {
    text: &'static str,
    at: Instant,
    line: Box<dyn FnOnce(BoundedText) + Send>,
}

/// The text of a line with what the bound adds to it.
#[derive(Debug, Clone, Copy)]
pub struct BoundedText {
    text: &'static str,
    permit: LogPermit,
}

impl fmt::Display for BoundedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.text, self.permit)
    }
}

impl BoundedLog {
    /// Calls `line` to write a line with this text: at once, or from a later [`flush`](Self::flush) if there were too many
    /// and no newer one with the text follows.
    pub fn write(
        &mut self,
        text: &'static str,
        now: Instant,
        line: impl FnOnce(BoundedText) + Send + 'static,
    ) {
        self.flush(now);
        // What is left out of this text is older.
        self.left_out.retain(|left_out| left_out.text != text);
        match self.budgets.entry(text).or_default().take(now) {
            Some(permit) => line(BoundedText { text, permit }),
            None => self.left_out.push(LeftOut { text, at: now, line: Box::new(line) }),
        }
    }

    /// Writes lines that were left out and may be written now, in the order in which they came.
    pub fn flush(&mut self, now: Instant) {
        while let Some(LeftOut { text, at, .. }) = self.left_out.first() {
            let (text, at) = (*text, *at);
            let Some(permit) = self.budgets.entry(text).or_default().take_late(at, now) else { return };
            (self.left_out.remove(0).line)(BoundedText { text, permit });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, Mutex},
        time::Duration,
    };

    use super::*;

    #[test]
    fn each_text_has_its_own_bound_and_the_last_line_of_each_is_written() {
        let (mut log, start) = (BoundedLog::default(), Instant::now());
        let written: Arc<Mutex<Vec<String>>> = Arc::default();
        let write = |log: &mut BoundedLog, text, number: u32, now| {
            let written = Arc::clone(&written);
            log.write(text, now, move |text| written.lock().unwrap().push(format!("{number} {text}")));
        };
        for number in 0..60 {
            write(&mut log, "job started", number, start);
            write(&mut log, "job ended", number, start);
        }
        write(&mut log, "chip vanished", 7, start);
        let take = || std::mem::take(&mut *written.lock().unwrap());
        let first = take();
        assert_eq!(first.len(), 101);
        assert_eq!(first[100], "7 chip vanished");
        log.flush(start + Duration::from_secs(9));
        assert_eq!(take(), [""; 0]);
        log.flush(start + Duration::from_secs(10));
        let more = "(too many lines like it: further ones may not be logged)";
        let late = |text: &str| {
            format!("59 {text} (seen 10 s before) (9 lines like it were not logged before) {more}")
        };
        // In the order in which they came.
        assert_eq!(take(), [late("job started"), late("job ended")]);
        log.flush(start + Duration::from_secs(100));
        assert_eq!(take(), [""; 0]);
        write(&mut log, "job ended", 60, start + Duration::from_secs(100));
        assert_eq!(take(), ["60 job ended"]);
    }
}
