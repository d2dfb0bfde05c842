//! A bar for what takes more than a second; nothing where standard error is no terminal.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// What is done sooner needs no bar.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the bar is redrawn.
const TICK: Duration = Duration::from_millis(100);

/// The bar, once there is one.
#[derive(Debug)]
pub(super) struct Progress {
    began: Instant,
    bar: Option<ProgressBar>,
    message: &'static str,
    drawn: Duration,
}

impl Progress {
    pub(super) fn new(message: &'static str) -> Self {
        Self { began: Instant::now(), bar: None, message, drawn: Duration::ZERO }
    }

    /// `done` bytes of `all`.
    pub(super) fn at(&mut self, done: u64, all: u64) {
        let now = self.began.elapsed();
        if now < PATIENCE || now.saturating_sub(self.drawn) < TICK {
            return;
        }
        self.drawn = now;
        let message = self.message;
        let bar = self.bar.get_or_insert_with(|| {
            let style =
                ProgressStyle::with_template("{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
                    .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(all).with_style(style).with_message(message).with_elapsed(now)
        });
        bar.set_length(all);
        bar.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
