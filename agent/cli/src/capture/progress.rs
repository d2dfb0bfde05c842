//! What a capture is doing, on the terminal; nothing where standard error is none.

use std::{
    sync::Mutex,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use sessions::capture::CaptureProgress;

/// How often the line is redrawn.
const TICK: Duration = Duration::from_millis(100);

/// A line that shows the window, then the bytes.
#[derive(Debug)]
pub(super) struct Progress {
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

impl Progress {
    pub(super) fn new(duration: Duration) -> Self {
        let style = ProgressStyle::with_template("{spinner} {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bar = ProgressBar::new_spinner().with_style(style).with_message("asking the profilers");
        bar.enable_steady_tick(TICK);
        Self { bar, duration, state: Mutex::default() }
    }

    /// Takes what a capture says.
    pub(super) fn hear(&self, event: &CaptureProgress) {
        match event {
            CaptureProgress::Started { targets, start, .. } => self.started(targets.len(), start.0),
            CaptureProgress::Received(index, bytes) => self.received(*index, *bytes),
            CaptureProgress::Part(..) | CaptureProgress::Failed(..) => self.done(),
        }
    }

    /// The window of so many targets begins at `start`.
    pub(super) fn started(&self, targets: usize, start_unix_ns: i64) {
        let Ok(mut state) = self.state.lock() else { return };
        state.received = vec![0; targets];
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let ahead = Duration::from_nanos(u64::try_from(start_unix_ns).unwrap_or(0)).saturating_sub(now);
        let wait = if ahead > Duration::from_secs(1) {
            format!(", which begins in {:.0} s", ahead.as_secs_f64())
        } else {
            String::new()
        };
        let window = self.duration.as_secs_f64();
        self.bar.set_message(format!("recording a window of {window:.1} s{wait}: {targets} process(es)"));
    }

    /// So many bytes of one target are there.
    pub(super) fn received(&self, index: usize, bytes: u64) {
        let Ok(mut state) = self.state.lock() else { return };
        if let Some(received) = state.received.get_mut(index) {
            *received = bytes;
        }
        if state.shown.is_none_or(|shown| shown.elapsed() >= TICK) {
            state.shown = Some(Instant::now());
            self.show(&state);
        }
    }

    /// One target is through, well or not.
    pub(super) fn done(&self) {
        let Ok(mut state) = self.state.lock() else { return };
        state.done += 1;
        self.show(&state);
    }

    fn show(&self, state: &State) {
        let (bytes, of) = (state.received.iter().sum(), state.received.len());
        self.bar.set_message(format!("receiving: {}, {} of {of} done", HumanBytes(bytes), state.done));
    }

    /// Takes the line away.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
