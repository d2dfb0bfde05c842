//! When to start, use, replace and give up the child. No I/O, no clock: time comes in as a span since some start.
//!
//! ```text
//!            due                    loaded
//!   Down ───────────▶ Starting ───────────────▶ Up ──┐ works
//!    ▲ backoff            │ failed              │ ▲──┘
//!    ├────────────────────┘                     │
//!    ├──────────────────────────────────────────┤ failed: backoff, after `trip_after` in a row the long `rest`
//!    └──────────────────────────────────────────┘ recycled in good health: at once
//! ```

use std::{collections::BTreeMap, time::Duration};

use model::backoff::{Backoff, spread};

/// The limits of a child's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChildPolicy {
    /// Wait after the first failure; doubled by each further one.
    pub first_wait: Duration,
    /// Longest such wait.
    pub longest_wait: Duration,
    /// Failures in a row after which the long rest begins.
    pub trip_after: u32,
    /// The long rest.
    pub rest: Duration,
    /// A child is replaced at this age.
    pub max_age: Duration,
    /// A child is replaced at this resident memory, bytes.
    pub max_memory: u64,
    /// One that must be replaced for its memory before this age has failed.
    pub least_age: Duration,
    /// How long a metric that ended a child is left out.
    pub set_aside: Duration,
}

impl Default for ChildPolicy {
    fn default() -> Self {
        Self {
            first_wait: Duration::from_secs(1),
            longest_wait: Duration::from_secs(120),
            trip_after: 5,
            rest: Duration::from_secs(900),
            max_age: Duration::from_secs(6 * 3600),
            max_memory: 384 << 20,
            least_age: Duration::from_secs(60),
            set_aside: Duration::from_secs(1800),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Down { until: Duration },
    Starting,
    Up { since: Duration },
}

/// What is to be done with the child now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildAction {
    /// Start one.
    Start,
    /// Wait for the one that is starting.
    AwaitStart,
    /// Use it.
    Use,
    /// End it in good health, then start anew.
    Recycle,
    /// There is none before this span is over.
    Wait {
        /// Time until the next start.
        left: Duration,
        /// It failed so often that this is the long rest.
        tripped: bool,
    },
}

/// The state of the child's life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildLifecycle {
    policy: ChildPolicy,
    phase: Phase,
    /// Counts the failures since the last round that worked.
    backoff: Backoff,
    /// Metrics left out, and until when.
    aside: BTreeMap<String, Duration>,
}

impl ChildLifecycle {
    /// No child yet.
    pub fn new(policy: ChildPolicy) -> Self {
        Self {
            policy,
            phase: Phase::Down { until: Duration::ZERO },
            backoff: Backoff::new(policy.first_wait, policy.longest_wait),
            aside: BTreeMap::new(),
        }
    }

    /// What is to be done at `now`, with a child of this resident memory.
    pub fn next_action(&self, now: Duration, memory: Option<u64>) -> ChildAction {
        match self.phase {
            Phase::Down { until } if now >= until => ChildAction::Start,
            Phase::Down { until } => ChildAction::Wait {
                left: until - now,
                tripped: self.backoff.failures() >= self.policy.trip_after,
            },
            Phase::Starting => ChildAction::AwaitStart,
            Phase::Up { since } => {
                let old = now.saturating_sub(since) >= self.policy.max_age;
                let large = memory.is_some_and(|bytes| bytes >= self.policy.max_memory);
                if old || large { ChildAction::Recycle } else { ChildAction::Use }
            }
        }
    }

    /// A child is being started.
    pub fn starting(&mut self) {
        self.phase = Phase::Starting;
    }

    /// The child has loaded its library.
    pub fn up(&mut self, now: Duration) {
        self.phase = Phase::Up { since: now };
    }

    /// A whole round went well.
    pub fn worked(&mut self) {
        self.backoff.succeeded();
    }

    /// The child has ended, or never came up. `random` from 0 to 1 spreads the waits of many hosts.
    pub fn failed(&mut self, now: Duration, random: f64) {
        let mut wait = self.backoff.failed(random);
        if self.backoff.failures() >= self.policy.trip_after {
            wait = spread(self.policy.rest / 2, self.policy.rest, random);
        }
        self.phase = Phase::Down { until: now + wait };
    }

    /// The child was ended because [`ChildAction::Recycle`] said so.
    pub fn recycled(&mut self, now: Duration, random: f64) {
        match self.phase {
            // One that grows so fast would be replaced again and again.
            Phase::Up { since } if now.saturating_sub(since) < self.policy.least_age => {
                self.failed(now, random);
            }
            _ => self.phase = Phase::Down { until: now },
        }
    }

    /// The child was ended to be replaced by another library's.
    pub fn replaced(&mut self, now: Duration) {
        self.phase = Phase::Down { until: now };
    }

    /// Leaves a metric out for a while: asking for it ended the child.
    pub fn set_aside(&mut self, metric: &str, now: Duration) {
        self.aside.insert(metric.to_owned(), now + self.policy.set_aside);
    }

    /// How long a metric is still left out.
    pub fn left_out(&mut self, metric: &str, now: Duration) -> Option<Duration> {
        self.aside.retain(|_, until| *until > now);
        self.aside.get(metric).map(|until| *until - now)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_child_that_keeps_dying_rests_longer_and_longer() {
        let mut lifecycle = ChildLifecycle::new(ChildPolicy::default());
        let mut waits = Vec::new();
        for _ in 0..6 {
            lifecycle.starting();
            lifecycle.failed(at(0), 1.0);
            let ChildAction::Wait { left, tripped } = lifecycle.next_action(at(0), None) else {
                panic!("must wait")
            };
            waits.push((left.as_secs(), tripped));
        }
        assert_eq!(waits, [(1, false), (2, false), (4, false), (8, false), (900, true), (900, true)]);
        assert_eq!(lifecycle.next_action(at(900), None), ChildAction::Start);
        lifecycle.starting();
        lifecycle.up(at(900));
        lifecycle.worked();
        lifecycle.failed(at(901), 0.0);
        assert_eq!(
            lifecycle.next_action(at(901), None),
            ChildAction::Wait { left: SECOND / 2, tripped: false }
        );
    }

    #[test]
    fn a_large_or_old_child_is_replaced_at_once() {
        let policy = ChildPolicy::default();
        let mut lifecycle = ChildLifecycle::new(policy);
        lifecycle.starting();
        lifecycle.up(at(0));
        assert_eq!(lifecycle.next_action(at(100), Some(policy.max_memory - 1)), ChildAction::Use);
        assert_eq!(lifecycle.next_action(at(100), Some(policy.max_memory)), ChildAction::Recycle);
        assert_eq!(lifecycle.next_action(policy.max_age, None), ChildAction::Recycle);
        lifecycle.recycled(at(100), 0.5);
        assert_eq!(lifecycle.next_action(at(100), None), ChildAction::Start);
    }

    #[test]
    fn one_that_is_too_large_at_once_has_failed() {
        let mut lifecycle = ChildLifecycle::new(ChildPolicy::default());
        lifecycle.starting();
        lifecycle.up(at(10));
        lifecycle.recycled(at(12), 1.0);
        assert!(matches!(lifecycle.next_action(at(12), None), ChildAction::Wait { .. }));
    }

    #[test]
    fn a_metric_that_ends_the_child_is_left_out_for_a_while() {
        let mut lifecycle = ChildLifecycle::new(ChildPolicy::default());
        lifecycle.set_aside("hbm_util", at(5));
        assert_eq!(lifecycle.left_out("hbm_util", at(5)), Some(ChildPolicy::default().set_aside));
        assert_eq!(lifecycle.left_out("duty_cycle_pct", at(5)), None);
        assert_eq!(lifecycle.left_out("hbm_util", at(5) + ChildPolicy::default().set_aside), None);
    }

    #[derive(Debug, Clone)]
    enum Event {
        Pass(u64),
        Fail(f64),
        Load,
        Work,
        Grow(u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            (0_u64..2_000_000).prop_map(Event::Pass),
            (0.0..1.0).prop_map(Event::Fail),
            Just(Event::Load),
            Just(Event::Work),
            (0_u64..1 << 30).prop_map(Event::Grow),
        ]
    }

    proptest! {
        /// Whatever happens: never two children, never a start before its time, never a child used that is too
        /// large or too old, and never more starts than the waits allow.
        #[test]
        fn it_keeps_its_promises(events in proptest::collection::vec(event(), 1..200)) {
            let policy = ChildPolicy::default();
            let mut lifecycle = ChildLifecycle::new(policy);
            let (mut now, mut memory) = (Duration::ZERO, 0);
            let (mut alive, mut born) = (false, Duration::ZERO);
            let mut failed_at: Option<Duration> = None;
            for event in events {
                match lifecycle.next_action(now, Some(memory)) {
                    ChildAction::Start => {
                        prop_assert!(!alive);
                        if let Some(failed) = failed_at {
                            prop_assert!(now - failed >= policy.first_wait / 2);
                        }
                        lifecycle.starting();
                        (alive, memory) = (true, 0);
                    }
                    ChildAction::AwaitStart => prop_assert!(alive),
                    ChildAction::Use => {
                        prop_assert!(alive && memory < policy.max_memory && now - born < policy.max_age);
                    }
                    ChildAction::Recycle => {
                        prop_assert!(alive);
                        let young = now - born < policy.least_age;
                        lifecycle.recycled(now, 0.0);
                        alive = false;
                        failed_at = young.then_some(now);
                    }
                    ChildAction::Wait { left, .. } => {
                        prop_assert!(!alive && left > Duration::ZERO && left <= policy.rest);
                    }
                }
                match event {
                    Event::Pass(milliseconds) => now += Duration::from_millis(milliseconds),
                    Event::Fail(random) if alive => {
                        lifecycle.failed(now, random);
                        (alive, failed_at) = (false, Some(now));
                    }
                    Event::Load if alive && lifecycle.phase == Phase::Starting => {
                        lifecycle.up(now);
                        born = now;
                    }
                    Event::Work if matches!(lifecycle.phase, Phase::Up { .. }) => lifecycle.worked(),
                    Event::Grow(bytes) => memory = bytes,
                    _ => {}
                }
            }
        }
    }
}
