//! Notifications to the service manager: ready after the first sample, alive while the sampler makes progress, stopping.
//! Without a service manager nothing is sent.

use sd_notify::NotifyState;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

/// Reports that the agent is ready.
pub fn ready() {
    send(&[NotifyState::Ready, NotifyState::Status("sampling")]);
}

/// Reports that the agent stops.
pub fn stopping() {
    send(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        debug!(%error, "cannot notify the service manager");
    }
}

/// A task that the watchdog monitors.
pub struct Watched {
    /// Its name in the log.
    pub name: &'static str,
    /// Whether it has stopped making progress.
    pub is_late: Box<dyn Fn() -> bool + Send>,
}

/// Feeds the service manager's watchdog, if it has one, while all tasks make progress.
pub async fn watchdog(watched: Vec<Watched>, stop: CancellationToken) {
    let Some(period) = sd_notify::watchdog_enabled() else {
        return stop.cancelled().await;
    };
    let mut logged = vec![false; watched.len()];
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(period / 3) => {}
        }
        for (task, logged) in watched.iter().zip(&mut logged) {
            let late = (task.is_late)();
            if late && !*logged {
                error!(task = task.name, "the task makes no progress: the watchdog is no longer fed");
            }
            *logged = late;
        }
        if !logged.contains(&true) {
            send(&[NotifyState::Watchdog]);
        }
    }
}
