//! What is done about hosts whose profilers are in use, while the capture may wait for them.
//!
//! That another program uses a profiler is found when the recording is to begin: all begin again then, with pauses that grow,
//! because each time disturbs the others.
//!
//! Another capture is found when a host is reserved. Hosts that are ready are released where the other one stays busy, and
//! all are reserved again after a pause: two captures that each hold a host of the other would wait for ever. Both times
//! grow, and are random, so that one of the two finds all hosts free.
//!
//! Must never wait for a busy host beyond the limit, or release a host that could not be reserved again within it.

use std::time::Duration;

use super::{HostAction, HostNumber, HostState, Machine, Now, Phase};

/// How long hosts stay reserved for a busy one at first, and the pause before all are reserved again, about.
const HELD: Duration = Duration::from_secs(2);
/// The pause before a busy host is asked again.
pub(super) const BUSY_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause before all hosts begin again, and how long they are held at most, about.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// How long hosts that are ready stay reserved while another one is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    /// None is ready, or none waits.
    No,
    /// Until then; all are reserved again after a pause of this length.
    Until { release: Duration, pause: Duration },
    /// The wait for busy hosts ends before all could be reserved again.
    ToTheEnd,
}

impl Machine {
    /// The pause after which a busy host is asked again: the last time at the end of the wait. None when that is over.
    pub(super) fn pause_before_retry(&self, now: Now, pause: Duration) -> Option<Duration> {
        let left = self.busy_until?.saturating_sub(now.uptime);
        (!left.is_zero()).then(|| pause.min(left))
    }

    /// The profiler of a host is used by another program, as it turned out at the start: all begin again, unless the time for
    /// that is over, or a host has recorded. Returns whether they do.
    pub(super) fn begin_again(&mut self, busy: HostNumber, now: Now, actions: &mut Vec<HostAction>) -> bool {
        let pause = BUSY_PAUSE.saturating_mul(1 << self.again.min(10)).min(LONGEST_PAUSE);
        let recorded = self.any(|host| matches!(host, HostState::Collecting | HostState::Stored));
        let Some(pause) = self.pause_before_retry(now, pause).filter(|_| !recorded) else { return false };
        for (number, host) in self.hosts.iter_mut().enumerate() {
            if matches!(host, HostState::Recording { .. }) {
                *host = HostState::Waiting { until: now.uptime + pause };
                if number != busy {
                    actions.push(HostAction::Release(number));
                }
            }
        }
        self.again += 1;
        self.held = Held::No;
        self.start = None;
        self.labels.clear();
        self.phase = Phase::Reserving;
        true
    }

    /// Asks hosts again whose pause is over.
    pub(super) fn reserve_again(&mut self, now: Now, actions: &mut Vec<HostAction>) {
        for (number, host) in self.hosts.iter_mut().enumerate() {
            if matches!(host, HostState::Waiting { until } if now.uptime >= *until) {
                *host = HostState::Reserving;
                self.reserving = now.uptime;
                actions.push(HostAction::Reserve(number));
            }
        }
    }

    /// When hosts that are ready are released for a busy one.
    pub(super) fn release_at(&self) -> Option<Duration> {
        match self.held {
            Held::Until { release, .. } if self.holds_for_busy() => Some(release),
            _ => None,
        }
    }

    fn holds_for_busy(&self) -> bool {
        self.any(|host| matches!(host, HostState::Ready { .. }))
            && self.any(|host| matches!(host, HostState::Waiting { .. }))
    }

    /// Releases what was held for long enough. All that wait are reserved again together.
    pub(super) fn release_for_busy(&mut self, now: Now, actions: &mut Vec<HostAction>) {
        if !self.any(|host| matches!(host, HostState::Ready { .. })) {
            self.held = Held::No;
        }
        if !self.holds_for_busy() {
            return;
        }
        match self.held {
            Held::No => self.held = self.new_hold(now),
            Held::Until { release, pause } if now.uptime >= release => {
                for (number, host) in self.hosts.iter_mut().enumerate() {
                    let ready = matches!(host, HostState::Ready { .. });
                    if ready || matches!(host, HostState::Waiting { .. }) {
                        *host = HostState::Waiting { until: now.uptime + pause };
                    }
                    if ready {
                        actions.push(HostAction::Release(number));
                    }
                }
                self.held = Held::No;
                self.releases += 1;
            }
            Held::Until { .. } | Held::ToTheEnd => {}
        }
    }

    fn new_hold(&mut self, now: Now) -> Held {
        let about = HELD.saturating_mul(1 << self.releases.min(10)).min(LONGEST_PAUSE);
        let [held, pause] = [(); 2].map(|()| about.mul_f64(0.5 + self.random.f64()));
        let fits = self.pause_before_retry(now, held + pause) == Some(held + pause);
        if fits { Held::Until { release: now.uptime + held, pause } } else { Held::ToTheEnd }
    }
}
