//! What a capture is doing, on the terminal; nothing where standard error is none.

use std::{
    sync::Mutex,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

use crate::session::capture::Event;

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

    /// Takes what the capture says.
    pub(super) fn hear(&self, event: &Event) {
        let Ok(mut state) = self.state.lock() else { return };
        match event {
            Event::Started { targets, start } => {
                state.received = vec![0; targets.len()];
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let ahead = Duration::from_nanos(u64::try_from(start.0).unwrap_or(0)).saturating_sub(now);
                let wait = if ahead > Duration::from_secs(1) {
                    format!(", which begins in {:.0} s", ahead.as_secs_f64())
                } else {
                    String::new()
                };
                self.bar.set_message(format!(
                    "recording a window of {:.1} s{wait}: {} process(es)",
                    self.duration.as_secs_f64(),
                    targets.len(),
                ));
                return;
            }
            Event::Received(index, bytes) => {
                if let Some(received) = state.received.get_mut(*index) {
                    *received = *bytes;
                }
                if state.shown.is_some_and(|shown| shown.elapsed() < TICK) {
                    return;
                }
                state.shown = Some(Instant::now());
            }
            Event::Part(..) | Event::Failed(..) => state.done += 1,
        }
        let bytes = state.received.iter().sum();
        let of = state.received.len();
        self.bar.set_message(format!("receiving: {}, {} of {of} done", HumanBytes(bytes), state.done));
    }

    /// Takes the line away.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
