//! The progress of a capture on standard error: one line on a terminal, a line now and then elsewhere.
//!
//! A thread of its own shows it, so that it goes on while no event comes: a job that collects its trace says nothing.

use std::{
    io::IsTerminal,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use model::time::{Clock, SystemClock, Timestamp};
use sessions::capture::CaptureProgress;
use xprof::wording::counted;

use crate::output;

/// The time between two updates of the line on a terminal.
const UPDATE_INTERVAL: Duration = Duration::from_millis(100);
/// The time between two lines elsewhere.
const LINE_INTERVAL: Duration = Duration::from_secs(10);
/// A start that is further ahead is shown as a wait.
const AHEAD: Duration = Duration::from_secs(1);

/// The progress; nothing is shown after it is dropped.
#[derive(Debug)]
pub(super) struct ProgressLine {
    phase: Arc<Mutex<Phase>>,
    /// The thread that shows it, which ends with the sender.
    shower: Mutex<Option<(mpsc::Sender<()>, JoinHandle<()>)>>,
}

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
        let phase = Phase { duration, begin: None, received: Vec::new(), done: 0 };
        let phase = Arc::new(Mutex::new(phase));
        let (stop, stopped) = mpsc::channel();
        let shown = Arc::clone(&phase);
        let show = move || match std::io::stderr().is_terminal() {
            true => on_terminal(&shown, &stopped),
            false => every_so_often(&shown, &stopped),
        };
        // Without a thread nothing is shown, and the capture goes on.
        let thread = thread::Builder::new().name("progress".to_owned()).spawn(show).ok();
        Self { phase, shower: Mutex::new(thread.map(|thread| (stop, thread))) }
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
        let mut phase = lock(&self.phase);
        (phase.begin, phase.received) = (Some(start), vec![0; targets]);
    }

    /// This number of bytes of one target was received.
    pub(super) fn received(&self, index: usize, bytes: u64) {
        if let Some(received) = lock(&self.phase).received.get_mut(index) {
            *received = bytes;
        }
    }

    /// One target is finished.
    pub(super) fn done(&self) {
        lock(&self.phase).done += 1;
    }

    /// Removes the line. Nothing is shown any more.
    pub(super) fn finish(&self) {
        let shower = self.shower.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((stop, thread)) = shower {
            drop(stop);
            // A panic of the thread is no reason to fail: it only shows.
            let _ = thread.join();
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.finish();
    }
}

fn lock(phase: &Mutex<Phase>) -> std::sync::MutexGuard<'_, Phase> {
    // Every change is complete, even if a holder panicked.
    phase.lock().unwrap_or_else(PoisonError::into_inner)
}

fn on_terminal(phase: &Mutex<Phase>, stopped: &mpsc::Receiver<()>) {
    let style =
        ProgressStyle::with_template("{spinner} {msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
    let bar = ProgressBar::new_spinner().with_style(style);
    loop {
        bar.set_message(lock(phase).text(SystemClock.now()));
        bar.tick();
        if stopped.recv_timeout(UPDATE_INTERVAL) != Err(RecvTimeoutError::Timeout) {
            return bar.finish_and_clear();
        }
    }
}

fn every_so_often(phase: &Mutex<Phase>, stopped: &mpsc::Receiver<()>) {
    while stopped.recv_timeout(LINE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        output::print_error(&lock(phase).text(SystemClock.now()));
    }
}

impl Phase {
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
