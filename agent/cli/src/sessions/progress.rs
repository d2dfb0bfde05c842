//! The progress bar of commands that take more than a second. Nothing is printed if standard error is not a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

/// The bar appears after this time.
const DELAY: Duration = Duration::from_secs(1);
/// The interval between two updates of the bar.
const UPDATE_INTERVAL: Duration = Duration::from_millis(100);

/// The bar, if it is visible.
#[derive(Debug)]
pub(crate) struct ByteProgress {
    started: Instant,
    bar: Option<ProgressBar>,
    message: &'static str,
    drawn: Duration,
}

impl ByteProgress {
    pub(crate) fn new(message: &'static str) -> Self {
        Self { started: Instant::now(), bar: None, message, drawn: Duration::ZERO }
    }

    /// `done` bytes of `all`.
    pub(crate) fn at(&mut self, done: u64, all: u64) {
        let now = self.started.elapsed();
        if now < DELAY || now.saturating_sub(self.drawn) < UPDATE_INTERVAL {
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

impl Drop for ByteProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
