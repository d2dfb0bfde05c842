//! How often something is done: as the settings say, and less often on a host where there is nothing to watch.

use std::time::Duration;

use crate::snapshot::HostSnapshot;

/// The time between two ticks of one task.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    busy: Duration,
    idle: Duration,
}

impl Pace {
    /// Every `interval`; every `idle`, if that is longer, on an idle host.
    pub fn new(interval: Duration, idle: Duration) -> Self {
        Self { busy: interval, idle: idle.max(interval) }
    }

    /// This pace, but no slower than `least` on an idle host either.
    pub fn no_idler_than(self, least: Duration) -> Self {
        Self { idle: self.idle.min(least).max(self.busy), ..self }
    }

    /// The interval of this snapshot.
    pub fn interval(self, snapshot: &HostSnapshot) -> Duration {
        if snapshot.is_idle() { self.idle } else { self.busy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_host_is_never_asked_more_often_than_a_busy_one() {
        let second = Duration::from_secs(1);
        let idle = HostSnapshot::default();
        for (pace, wanted) in [
            (Pace::new(second, second * 5), second * 5),
            (Pace::new(second * 10, second * 5), second * 10),
            (Pace::new(second, second * 5).no_idler_than(second * 2), second * 2),
            (Pace::new(second * 3, second * 5).no_idler_than(second), second * 3),
        ] {
            assert_eq!(pace.interval(&idle), wanted);
        }
    }
}
