//! The progress of a capture on one host, on standard error.

use std::time::Duration;

use indicatif::HumanBytes;
use model::time::Timestamp;
use sessions::capture::CaptureProgress;
use xprof::wording::counted;

use super::status_line::{Shown, StatusLine};

/// A start that is further ahead is shown as a wait.
pub(super) const AHEAD: Duration = Duration::from_secs(1);

/// The progress; nothing is shown after it is dropped.
#[derive(Debug)]
pub(super) struct ProgressLine(StatusLine<Phase>);

/// How far the capture is.
#[derive(Debug)]
struct Phase {
    /// Length of the window.
    duration: Duration,
    /// Begin of the window, once the profilers were contacted.
    begin: Option<Timestamp>,
    /// Received bytes of each target.
    received: Vec<u64>,
    /// The number of targets that are finished.
    done: usize,
}

impl ProgressLine {
    /// Shows the progress of a capture with a window of this length.
    pub(super) fn new(duration: Duration) -> Self {
        Self(StatusLine::new(Phase { duration, begin: None, received: Vec::new(), done: 0 }))
    }

    /// Takes an event of the capture.
    pub(super) fn show_event(&self, event: &CaptureProgress) {
        match event {
            CaptureProgress::Started { targets, start, .. } => self.started(targets.len(), *start),
            CaptureProgress::Received(index, bytes) => self.received(*index, *bytes),
            CaptureProgress::Part(..) | CaptureProgress::Failed(..) => self.done(),
        }
    }

    /// The recording of this number of targets starts at `start`.
    pub(super) fn started(&self, targets: usize, start: Timestamp) {
        let mut phase = self.0.state();
        (phase.begin, phase.received) = (Some(start), vec![0; targets]);
    }

    /// This number of bytes of one target was received.
    pub(super) fn received(&self, index: usize, bytes: u64) {
        if let Some(received) = self.0.state().received.get_mut(index) {
            *received = bytes;
        }
    }

    /// One target is finished.
    pub(super) fn done(&self) {
        self.0.state().done += 1;
    }

    /// Removes the line. Nothing is shown any more.
    pub(super) fn finish(&self) {
        self.0.finish();
    }
}

impl Shown for Phase {
    fn text(&self, now: Timestamp) -> String {
        let Some(begin) = self.begin else { return "contacting the profilers".to_owned() };
        let (targets, bytes) = (self.received.len(), self.received.iter().sum::<u64>());
        let ahead = now.age(begin);
        if ahead > AHEAD {
            return format!("the recording starts in {:.0} s", ahead.as_secs_f64());
        }
        let end = begin.plus(self.duration);
        if bytes > 0 || self.done > 0 {
            return format!("receiving: {}, {} of {targets} done", HumanBytes(bytes), self.done);
        }
        let targets = counted(targets, "process");
        if now < end {
            let (window, left) = (self.duration.as_secs_f64(), now.age(end).as_secs_f64());
            return format!("recording {window:.1} s of {targets}, {left:.0} s left");
        }
        let since = end.age(now).as_secs_f64();
        format!("waiting for the traces of {targets}, {since:.0} s since the end of the recording")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_phase_has_its_words() {
        let second = |seconds: u64| Timestamp(0).plus(Duration::from_secs(seconds));
        let mut phase =
            Phase { duration: Duration::from_secs(60), begin: None, received: Vec::new(), done: 0 };
        assert_eq!(phase.text(second(0)), "contacting the profilers");
        (phase.begin, phase.received) = (Some(second(100)), vec![0; 2]);
        assert_eq!(phase.text(second(70)), "the recording starts in 30 s");
        assert_eq!(phase.text(second(112)), "recording 60.0 s of 2 processes, 48 s left");
        assert_eq!(
            phase.text(second(172)),
            "waiting for the traces of 2 processes, 12 s since the end of the recording"
        );
        phase.received[1] = 3 << 20;
        assert_eq!(phase.text(second(173)), "receiving: 3.00 MiB, 0 of 2 done");
        phase.done = 1;
        assert_eq!(phase.text(second(173)), "receiving: 3.00 MiB, 1 of 2 done");
    }
}
