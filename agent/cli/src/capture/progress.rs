//! The progress line of a capture. Nothing is printed if standard error is not a terminal.

use std::{sync::Mutex, time::Duration};

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use model::time::{Clock, SystemClock, Timestamp};
use sessions::capture::CaptureProgress;
use tokio::time::Instant;

/// The interval between two updates of the line.
const UPDATE_INTERVAL: Duration = Duration::from_millis(100);

/// The line: first the recording, then the received bytes.
#[derive(Debug)]
pub(super) struct ProgressLine {
    bar: ProgressBar,
    duration: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    received: Vec<u64>,
    done: usize,
    shown: Option<Instant>,
}

impl ProgressLine {
    pub(super) fn new(duration: Duration) -> Self {
        let style = ProgressStyle::with_template("{spinner} {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bar = ProgressBar::new_spinner().with_style(style).with_message("contacting the profilers");
        bar.enable_steady_tick(UPDATE_INTERVAL);
        Self { bar, duration, state: Mutex::default() }
    }

    /// Shows an event of the capture.
    pub(super) fn show_event(&self, event: &CaptureProgress) {
        match event {
            CaptureProgress::Started { targets, start, .. } => self.started(targets.len(), *start),
            CaptureProgress::Received(index, bytes) => self.received(*index, *bytes),
            CaptureProgress::Part(..) | CaptureProgress::Failed(..) => self.done(),
        }
    }

    /// The recording of this number of targets starts at `start`.
    pub(super) fn started(&self, targets: usize, start: Timestamp) {
        let Ok(mut state) = self.state.lock() else { return };
        state.received = vec![0; targets];
        let ahead = SystemClock.now().age(start);
        let wait = if ahead > Duration::from_secs(1) {
            format!(", which starts in {:.0} s", ahead.as_secs_f64())
        } else {
            String::new()
        };
        let window = self.duration.as_secs_f64();
        self.bar.set_message(format!("recording {window:.1} s of {targets} process(es){wait}"));
    }

    /// This number of bytes of one target was received.
    pub(super) fn received(&self, index: usize, bytes: u64) {
        let Ok(mut state) = self.state.lock() else { return };
        if let Some(received) = state.received.get_mut(index) {
            *received = bytes;
        }
        if state.shown.is_none_or(|shown| shown.elapsed() >= UPDATE_INTERVAL) {
            state.shown = Some(Instant::now());
            self.show(&state);
        }
    }

    /// One target is finished.
    pub(super) fn done(&self) {
        let Ok(mut state) = self.state.lock() else { return };
        state.done += 1;
        self.show(&state);
    }

    fn show(&self, state: &State) {
        let (bytes, of) = (state.received.iter().sum(), state.received.len());
        self.bar.set_message(format!("receiving: {}, {} of {of} done", HumanBytes(bytes), state.done));
    }

    /// Removes the line.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
