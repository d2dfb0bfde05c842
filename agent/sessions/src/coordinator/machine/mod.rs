//! Which host is asked for what, and when. Pure: times and what hosts do come in, what is to be done goes out.
//!
//! ```text
//!           reached          all reached or missing           ready            all ready or missing: one start
//! Reaching ────────> Reached ──────────────────────> Reserving ─────> Ready ─────────────────────────────> Recording
//!                                                     │     ▲           │ another one stays busy             │   │ recorded
//!                                                busy │     │ later,    │                                    │   ▼
//!                                                     │     │ while it  │                                    │  Collecting
//!                                                     ▼     │ may wait  │        a profiler is in use        │   │ stored
//!                                                     Waiting <─────────┘        after all: all              │   ▼
//!                                                        ▲───────────────────────────────────────────────────┘  Stored
//!
//! Any of them but Stored ── failed, late, one too many ──> Missing
//! ```
//!
//! The capture is over when every host is stored or missing, or too few are left.
//!
//! Must never give a start before every host is ready or missing, two starts to one host, or wait for one host without a
//! limit.

mod busy;
#[cfg(test)]
mod contention_tests;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use cluster::{clock_offset::OffsetEstimate, hosts::HostAddress};
use model::time::Timestamp;
use xprof::session::HostName;

use crate::host_labels;
use busy::{BUSY_PAUSE, Held};

/// How often a lease is renewed; it lasts 10 s.
const RENEWAL: Duration = Duration::from_secs(3);
/// How long before a start that is far ahead the hosts are reserved, and their clocks measured.
const RESERVED_AHEAD: Duration = Duration::from_secs(10);
/// The time that sending a start takes beyond the round trip.
const SENDING: Duration = Duration::from_millis(20);
/// The time that sending it takes for each host, at least and at most.
const SENDING_EACH: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(2)];
/// The messages to a host until it is ready: those to its clock, and the reservation. Its start is one more.
const MESSAGES: u32 = 10;

/// A host, by its place in the list.
pub(super) type HostNumber = usize;

/// An instant in both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Now {
    /// The wall clock, in which the start is given.
    pub(super) wall: Timestamp,
    /// The time since boot, in which waits are measured.
    pub(super) uptime: Duration,
}

/// What the capture is to keep to.
#[derive(Debug, Clone)]
pub(super) struct CaptureRules {
    /// With fewer hosts nothing is kept; at least 1.
    pub(super) min_hosts: usize,
    /// The start of the window; none: as soon as the hosts are ready.
    pub(super) start: Option<Timestamp>,
    /// The start of a window that is over: hosts have recorded it already.
    pub(super) past: Option<Timestamp>,
    /// The longest time from the start of the window until a host has recorded.
    pub(super) recording: Duration,
    /// The longest wait for a busy host.
    pub(super) busy: Duration,
    /// What the lengths of pauses are made from: another one for each capture.
    pub(super) seed: u64,
    /// The longest time for all of it.
    pub(super) overall: Option<Duration>,
    /// Hosts name their parts themselves: no two may have the same name, and all send them to one place.
    pub(super) uploads: bool,
}

/// What a host did.
#[derive(Debug, Clone)]
pub(super) enum HostInput {
    /// Its agent answered, and can take part.
    Reached {
        /// Of the agent; empty if it does not say.
        instance: String,
    },
    /// Its profilers are reserved.
    Ready(ReservedHost),
    /// It recorded.
    Recorded,
    /// What it recorded is where it should be.
    Stored,
    /// Something failed.
    Failed {
        /// A profiler is in use: it may be free later.
        busy: bool,
    },
}

/// A host that waits for a start.
#[derive(Debug, Clone)]
pub(super) struct ReservedHost {
    /// What its agent calls it.
    pub(super) name: HostName,
    /// Its clock.
    pub(super) clock: OffsetEstimate,
    /// How long before the window the start must be there.
    pub(super) lead: Duration,
    /// Where its parts go to.
    pub(super) destination: String,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HostAction {
    /// Measure the clock and reserve.
    Reserve(HostNumber),
    /// Renew the lease.
    Renew(HostNumber),
    /// Free the profilers, and wait for another reservation.
    Release(HostNumber),
    /// Give the start, in the host's own clock.
    Start(HostNumber, Timestamp),
    /// See to it that what was recorded comes to where it should be.
    Collect(HostNumber),
    /// Leave the host: it is missing.
    GiveUp(HostNumber, GiveUp),
    /// The capture is over. With too few hosts nothing is kept.
    Conclude {
        /// Whether there are enough hosts.
        enough: bool,
    },
}

/// Why a host is given up that has not failed by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GiveUp {
    /// It has the agent of another one.
    SameAgent(HostNumber),
    /// Its agent calls it what another one is called.
    SameName(HostNumber),
    /// Its parts would go to another place than those of this one.
    OtherDestination(HostNumber),
    /// It did not end its recording in time.
    LateRecording,
    /// The time of the whole capture is over.
    Overall,
}

#[derive(Debug, Clone)]
enum HostState {
    Reaching,
    Reached { instance: String },
    Reserving,
    Waiting { until: Duration },
    Ready { host: ReservedHost, renew: Duration },
    Recording { renew: Duration },
    Collecting,
    Stored,
    Missing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Reaching,
    Reserving,
    Recording { until: Duration },
    Over,
}

/// The state of a capture.
#[derive(Debug)]
pub(super) struct Machine {
    given: Vec<HostAddress>,
    hosts: Vec<HostState>,
    rules: CaptureRules,
    overall: Option<Duration>,
    phase: Phase,
    /// Since when hosts are being reserved.
    reserving: Duration,
    /// Until when a busy host is asked again; known from the first reservation on.
    busy_until: Option<Duration>,
    /// How often all began again.
    again: u32,
    held: Held,
    /// How often hosts were released for a busy one.
    releases: u32,
    random: fastrand::Rng,
    start: Option<Timestamp>,
    labels: BTreeMap<HostNumber, HostName>,
}

impl Machine {
    /// A capture of these hosts that begins now, by reaching all of them.
    pub(super) fn new(given: Vec<HostAddress>, rules: CaptureRules, now: Now) -> Self {
        let overall = rules.overall.map(|limit| now.uptime + limit);
        let hosts = vec![HostState::Reaching; given.len()];
        let random = fastrand::Rng::with_seed(rules.seed);
        Self {
            given,
            hosts,
            rules,
            overall,
            phase: Phase::Reaching,
            reserving: now.uptime,
            busy_until: None,
            again: 0,
            held: Held::No,
            releases: 0,
            random,
            start: None,
            labels: BTreeMap::new(),
        }
    }

    /// The start of the window, once it is given.
    pub(super) fn start(&self) -> Option<Timestamp> {
        self.start
    }

    /// What a host that was started is called in the session: no two have one name.
    pub(super) fn label(&self, host: HostNumber) -> Option<&HostName> {
        self.labels.get(&host)
    }

    /// Whether the host is missing.
    pub(super) fn is_missing(&self, host: HostNumber) -> bool {
        matches!(self.hosts.get(host), Some(HostState::Missing))
    }

    /// Whether the host has a start, and has not recorded yet.
    pub(super) fn is_recording(&self, host: HostNumber) -> bool {
        matches!(self.hosts.get(host), Some(HostState::Recording { .. }))
    }

    /// Takes what a host did. What does not fit its state is ignored: it came too late.
    pub(super) fn take(&mut self, host: HostNumber, input: HostInput, now: Now) -> Vec<HostAction> {
        let mut actions = Vec::new();
        let busy = matches!(input, HostInput::Failed { busy: true });
        let retry = self.pause_before_retry(now, BUSY_PAUSE).filter(|_| busy).map(|pause| now.uptime + pause);
        if busy && self.is_recording(host) && self.begin_again(host, now, &mut actions) {
            return actions;
        }
        let phase = self.phase;
        let Some(state) = self.hosts.get_mut(host).filter(|_| phase != Phase::Over) else { return actions };
        match (&mut *state, input) {
            (HostState::Missing | HostState::Stored, _) => {}
            (HostState::Reserving, HostInput::Failed { .. }) => {
                *state = retry.map_or(HostState::Missing, |until| HostState::Waiting { until });
            }
            (_, HostInput::Failed { .. }) => *state = HostState::Missing,
            (HostState::Reaching, HostInput::Reached { instance }) => {
                *state = HostState::Reached { instance }
            }
            (HostState::Reserving, HostInput::Ready(host)) => {
                *state = HostState::Ready { host, renew: now.uptime + RENEWAL };
            }
            (HostState::Recording { .. }, HostInput::Recorded) => {
                *state = HostState::Collecting;
                actions.push(HostAction::Collect(host));
            }
            (HostState::Collecting, HostInput::Stored) => *state = HostState::Stored,
            _ => {}
        }
        self.step(now, &mut actions);
        actions
    }

    /// Does what is due.
    pub(super) fn tick(&mut self, now: Now) -> Vec<HostAction> {
        let mut actions = Vec::new();
        self.step(now, &mut actions);
        actions
    }

    /// After how long something is due, if nothing happens before.
    pub(super) fn wake(&self, now: Now) -> Option<Duration> {
        let of_host = |host: &HostState| match host {
            HostState::Waiting { until } => Some(*until),
            HostState::Ready { renew, .. } | HostState::Recording { renew } => Some(*renew),
            _ => None,
        };
        let of_phase = match self.phase {
            Phase::Reaching if !self.any(|host| matches!(host, HostState::Reaching)) => {
                self.reserve_at().map(|at| now.uptime + now.wall.age(at))
            }
            Phase::Recording { until } if self.any(|host| matches!(host, HostState::Recording { .. })) => {
                Some(until)
            }
            Phase::Reaching | Phase::Reserving | Phase::Recording { .. } => None,
            Phase::Over => return None,
        };
        let of_all = of_phase.into_iter().chain(self.release_at()).chain(self.overall);
        let due = self.hosts.iter().filter_map(of_host).chain(of_all).min();
        due.map(|at| at.saturating_sub(now.uptime))
    }

    fn any(&self, is: impl Fn(&HostState) -> bool) -> bool {
        self.hosts.iter().any(is)
    }

    fn step(&mut self, now: Now, actions: &mut Vec<HostAction>) {
        if self.phase == Phase::Over {
            return;
        }
        if self.overall.is_some_and(|at| now.uptime >= at) {
            self.give_up_all(GiveUp::Overall, |host| !matches!(host, HostState::Stored), actions);
        }
        match self.phase {
            Phase::Reaching => self.reserve(now, actions),
            Phase::Reserving => self.reserve_again(now, actions),
            Phase::Recording { until } if now.uptime >= until => {
                let late = |host: &HostState| matches!(host, HostState::Recording { .. });
                self.give_up_all(GiveUp::LateRecording, late, actions);
            }
            Phase::Recording { .. } | Phase::Over => {}
        }
        // No host may be left to reserve.
        if self.phase == Phase::Reserving
            && !self.any(|host| matches!(host, HostState::Reserving | HostState::Waiting { .. }))
        {
            self.start_all(now, actions);
        }
        self.release_for_busy(now, actions);
        self.renew(now, actions);
        self.conclude(actions);
    }

    fn give_up(&mut self, host: HostNumber, why: GiveUp, actions: &mut Vec<HostAction>) {
        self.hosts[host] = HostState::Missing;
        actions.push(HostAction::GiveUp(host, why));
    }

    fn give_up_all(&mut self, why: GiveUp, is: impl Fn(&HostState) -> bool, actions: &mut Vec<HostAction>) {
        for host in 0..self.hosts.len() {
            if is(&self.hosts[host]) && !matches!(self.hosts[host], HostState::Missing) {
                self.give_up(host, why, actions);
            }
        }
    }

    /// When the hosts are reserved that have to wait for a start.
    fn reserve_at(&self) -> Option<Timestamp> {
        let ahead = i64::try_from(RESERVED_AHEAD.as_nanos()).unwrap_or(i64::MAX);
        self.rules.start.map(|start| start.stepped(-ahead))
    }

    /// Once all are reached or missing: an agent that is reached twice takes part once.
    fn reserve(&mut self, now: Now, actions: &mut Vec<HostAction>) {
        let waits = self.reserve_at().is_some_and(|at| now.wall < at);
        if waits || self.any(|host| matches!(host, HostState::Reaching)) {
            return;
        }
        let mut agents: HashMap<String, HostNumber> = HashMap::new();
        for host in 0..self.hosts.len() {
            let HostState::Reached { instance } = &mut self.hosts[host] else { continue };
            let instance = std::mem::take(instance);
            let first = (!instance.is_empty()).then(|| *agents.entry(instance).or_insert(host));
            match first.filter(|&first| first != host) {
                Some(first) => self.give_up(host, GiveUp::SameAgent(first), actions),
                None => {
                    self.hosts[host] = HostState::Reserving;
                    actions.push(HostAction::Reserve(host));
                }
            }
        }
        self.reserving = now.uptime;
        self.busy_until = Some(now.uptime + self.rules.busy);
        self.phase = Phase::Reserving;
    }

    /// The time that the starts of so many hosts take to be sent. A busy machine takes longer, as it did with the messages before.
    fn sending(&self, hosts: usize, now: Now) -> Duration {
        let hosts = u32::try_from(hosts.max(1)).unwrap_or(u32::MAX);
        let message = now.uptime.saturating_sub(self.reserving) / hosts.saturating_mul(MESSAGES);
        let [least, most] = SENDING_EACH;
        SENDING + message.clamp(least, most) * hosts
    }

    /// Gives one start to all that are ready.
    fn start_all(&mut self, now: Now, actions: &mut Vec<HostAction>) {
        if self.rules.uploads {
            self.one_destination(actions);
        }
        self.name_all(actions);
        let ready = self.ready();
        if ready.len() < self.rules.min_hosts {
            return;
        }
        let slowest = ready.iter().map(|(_, host)| host.lead + Duration::from_nanos(host.clock.bound_ns) * 2);
        let earliest = now.wall.plus(slowest.max().unwrap_or_default() + self.sending(ready.len(), now));
        let to_come = self.rules.start.map_or(earliest, |start| start.max(earliest));
        let start = self.rules.past.unwrap_or(to_come);
        for (host, ready) in ready {
            actions.push(HostAction::Start(host, start.stepped(ready.clock.offset_ns)));
            self.hosts[host] = HostState::Recording { renew: now.uptime + RENEWAL };
        }
        self.start = Some(start);
        self.phase = Phase::Recording { until: now.uptime + now.wall.age(start) + self.rules.recording };
    }

    fn ready(&self) -> Vec<(HostNumber, ReservedHost)> {
        let ready = self.hosts.iter().enumerate().filter_map(|(number, host)| match host {
            HostState::Ready { host, .. } => Some((number, host.clone())),
            _ => None,
        });
        ready.collect()
    }

    /// All parts go to the place that most hosts name: of two, to that of the first host.
    fn one_destination(&mut self, actions: &mut Vec<HostAction>) {
        let ready = self.ready();
        let mut named: Vec<(&str, HostNumber, usize)> = Vec::new();
        for (number, host) in &ready {
            match named.iter_mut().find(|(destination, ..)| *destination == host.destination) {
                Some((.., count)) => *count += 1,
                None => named.push((&host.destination, *number, 1)),
            }
        }
        // The first of the largest.
        let Some((destination, first, _)) = named.into_iter().rev().max_by_key(|(.., count)| *count) else {
            return;
        };
        for (number, host) in &ready {
            if host.destination != destination {
                self.give_up(*number, GiveUp::OtherDestination(first), actions);
            }
        }
    }

    /// Agents that upload name their parts themselves, so that a second host of one name would have no place.
    fn name_all(&mut self, actions: &mut Vec<HostAction>) {
        let ready = self.ready();
        if self.rules.uploads {
            let mut named: HashMap<HostName, HostNumber> = HashMap::new();
            for (number, host) in ready {
                match *named.entry(host.name.clone()).or_insert(number) {
                    first if first != number => self.give_up(number, GiveUp::SameName(first), actions),
                    _ => drop(self.labels.insert(number, host.name)),
                }
            }
            return;
        }
        let labels =
            host_labels::allot(ready.iter().map(|(number, host)| (&self.given[*number], &host.name)));
        self.labels = ready.iter().map(|(number, _)| *number).zip(labels).collect();
    }

    fn renew(&mut self, now: Now, actions: &mut Vec<HostAction>) {
        for (number, host) in self.hosts.iter_mut().enumerate() {
            if let HostState::Ready { renew, .. } | HostState::Recording { renew } = host
                && now.uptime >= *renew
            {
                *renew = now.uptime + RENEWAL;
                actions.push(HostAction::Renew(number));
            }
        }
    }

    fn conclude(&mut self, actions: &mut Vec<HostAction>) {
        let left = self.hosts.iter().filter(|host| !matches!(host, HostState::Missing)).count();
        let enough = left >= self.rules.min_hosts;
        if !enough || !self.any(|host| !matches!(host, HostState::Missing | HostState::Stored)) {
            self.phase = Phase::Over;
            actions.push(HostAction::Conclude { enough });
        }
    }
}
