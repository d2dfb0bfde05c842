//! What goes on, on standard error: one line on a terminal, a line now and then elsewhere.
//!
//! A thread of its own shows it, so that it goes on while no event comes: a job that collects its trace says nothing.

use std::{
    io::IsTerminal,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use model::time::{Clock, SystemClock, Timestamp};

use crate::output;

/// The time between two updates of the line on a terminal.
const UPDATE_INTERVAL: Duration = Duration::from_millis(100);
/// The time between two lines elsewhere.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Something that is shown in one line.
pub(super) trait Shown: Send + 'static {
    /// The line.
    fn text(&self, now: Timestamp) -> String;
}

/// The line of a state; nothing is shown after it is dropped.
#[derive(Debug)]
pub(super) struct StatusLine<S> {
    state: Arc<Mutex<S>>,
    /// The thread that shows it, which ends with the sender.
    shower: Mutex<Option<(mpsc::Sender<()>, JoinHandle<()>)>>,
}

impl<S: Shown> StatusLine<S> {
    /// Shows a state from now on.
    pub(super) fn new(state: S) -> Self {
        let state = Arc::new(Mutex::new(state));
        let (stop, stopped) = mpsc::channel();
        let shown = Arc::clone(&state);
        let show = move || match std::io::stderr().is_terminal() {
            true => on_terminal(&shown, &stopped),
            false => every_so_often(&shown, &stopped),
        };
        // Without a thread nothing is shown, and the capture goes on.
        let thread = thread::Builder::new().name("progress".to_owned()).spawn(show).ok();
        Self { state, shower: Mutex::new(thread.map(|thread| (stop, thread))) }
    }
}

impl<S> StatusLine<S> {
    /// The state, to change it.
    pub(super) fn state(&self) -> MutexGuard<'_, S> {
        lock(&self.state)
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

impl<S> Drop for StatusLine<S> {
    fn drop(&mut self) {
        self.finish();
    }
}

fn lock<S>(state: &Mutex<S>) -> MutexGuard<'_, S> {
    // Every change is complete, even if a holder panicked.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn on_terminal<S: Shown>(state: &Mutex<S>, stopped: &mpsc::Receiver<()>) {
    let style =
        ProgressStyle::with_template("{spinner} {msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
    let bar = ProgressBar::new_spinner().with_style(style);
    loop {
        bar.set_message(lock(state).text(SystemClock.now()));
        bar.tick();
        if stopped.recv_timeout(UPDATE_INTERVAL) != Err(RecvTimeoutError::Timeout) {
            return bar.finish_and_clear();
        }
    }
}

fn every_so_often<S: Shown>(state: &Mutex<S>, stopped: &mpsc::Receiver<()>) {
    while stopped.recv_timeout(LINE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        output::print_error(&lock(state).text(SystemClock.now()));
    }
}
