//! What the service manager is told: ready after the first sample, alive while the sampler makes progress,
//! stopping. Without a service manager nothing is sent.

use std::time::{Duration, Instant};

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

/// A counter that rises while its task makes progress.
pub struct Progress {
    /// Whose.
    pub name: &'static str,
    /// Its counter.
    pub count: Box<dyn Fn() -> u64 + Send>,
    /// The longest that it stands still in good health, as things are.
    pub patience: Box<dyn Fn() -> Duration + Send>,
}

/// Feeds the service manager's watchdog, where it has one, for as long as every counter rises.
pub async fn watchdog(watched: Vec<Progress>, stop: CancellationToken) {
    let Some(period) = sd_notify::watchdog_enabled() else {
        return stop.cancelled().await;
    };
    let begin = Instant::now();
    let mut pulses: Vec<(Progress, Pulse)> = watched
        .into_iter()
        .map(|progress| {
            let pulse = Pulse::new((progress.count)(), begin);
            (progress, pulse)
        })
        .collect();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(period / 3) => {}
        }
        let mut all_alive = true;
        for (progress, pulse) in &mut pulses {
            let patience = (progress.patience)();
            let health = pulse.check((progress.count)(), patience, Instant::now());
            all_alive &= health == Health::Alive;
            if health == Health::JustStopped {
                error!(task = progress.name, ?patience, "it stands still: the watchdog is not fed any more");
            }
        }
        if all_alive {
            send(&[NotifyState::Watchdog]);
        }
    }
}

/// What a counter says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Alive,
    /// For the first time since it was alive.
    JustStopped,
    Stopped,
}

/// A counter that must rise.
struct Pulse {
    seen: u64,
    moved: Instant,
    alive: bool,
}

impl Pulse {
    fn new(seen: u64, now: Instant) -> Self {
        Self { seen, moved: now, alive: true }
    }

    fn check(&mut self, count: u64, patience: Duration, now: Instant) -> Health {
        if count != self.seen {
            (self.seen, self.moved) = (count, now);
        }
        let was_alive = std::mem::replace(&mut self.alive, now.duration_since(self.moved) <= patience);
        match (was_alive, self.alive) {
            (_, true) => Health::Alive,
            (true, false) => Health::JustStopped,
            (false, false) => Health::Stopped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_progress_keeps_it_alive() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let patience = Duration::from_secs(3);
        let mut pulse = Pulse::new(0, start);
        assert_eq!(pulse.check(1, patience, at(10)), Health::Alive);
        assert_eq!(pulse.check(1, patience, at(13)), Health::Alive);
        assert_eq!(pulse.check(1, patience * 2, at(14)), Health::Alive, "on an idle host it goes slower");
        assert_eq!(pulse.check(1, patience, at(14)), Health::JustStopped);
        assert_eq!(pulse.check(1, patience, at(20)), Health::Stopped);
        assert_eq!(
            pulse.check(2, patience, at(30)),
            Health::Alive,
            "a sampler that woke up is fed for again"
        );
    }
}
