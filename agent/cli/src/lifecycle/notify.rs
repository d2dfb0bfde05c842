//! What the service manager is told: ready after the first sample, alive while the sampler makes progress,
//! stopping. Without a service manager nothing is sent.

use sd_notify::NotifyState;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

/// The first sample is there.
pub fn ready() {
    send(&[NotifyState::Ready, NotifyState::Status("sampling")]);
}

/// The agent was told to stop.
pub fn stopping() {
    send(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        debug!(%error, "the service manager cannot be told");
    }
}

/// A task whose standstill ends the service.
pub struct Watched {
    /// Which.
    pub name: &'static str,
    /// Whether it stands still.
    pub is_late: Box<dyn Fn() -> bool + Send>,
}

/// Feeds the service manager's watchdog, where it has one, for as long as no task stands still.
pub async fn watchdog(watched: Vec<Watched>, stop: CancellationToken) {
    let Some(period) = sd_notify::watchdog_enabled() else {
        return stop.cancelled().await;
    };
    let mut told = vec![false; watched.len()];
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(period / 3) => {}
        }
        for (task, told) in watched.iter().zip(&mut told) {
            let late = (task.is_late)();
            if late && !*told {
                error!(task = task.name, "it stands still: the watchdog is not fed any more");
            }
            *told = late;
        }
        if !told.contains(&true) {
            send(&[NotifyState::Watchdog]);
        }
    }
}
