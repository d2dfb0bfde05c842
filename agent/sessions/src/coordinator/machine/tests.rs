//! The machine under any order of events, and 256 simulated hosts whose clocks and networks are bad.

use std::{collections::BTreeSet, time::Duration};

use cluster::clock_offset::{OffsetEstimate, RoundTrip, clock_offset};
use model::time::Timestamp;
use proptest::prelude::*;

use super::{CaptureRules, GiveUp, HostAction, HostInput, HostNumber, Machine, Now, ReservedHost};

const START: i64 = 1_800_000_000_000_000_000;

pub(super) fn at(ms: u64) -> Now {
    let uptime = Duration::from_millis(ms);
    Now { wall: Timestamp(START).plus(uptime), uptime }
}

pub(super) fn rules() -> CaptureRules {
    CaptureRules {
        min_hosts: 1,
        start: None,
        past: None,
        recording: Duration::from_secs(30),
        busy: Duration::ZERO,
        seed: 7,
        overall: None,
        uploads: false,
    }
}

pub(super) fn machine(hosts: usize, rules: CaptureRules) -> Machine {
    let given = (0..hosts).map(|number| format!("h{number}").parse().unwrap()).collect();
    Machine::new(given, rules, at(0))
}

pub(super) fn reached(instance: &str) -> HostInput {
    HostInput::Reached { instance: instance.to_owned() }
}

pub(super) fn ready(name: &str, offset_ns: i64, lead_ms: u64) -> HostInput {
    HostInput::Ready(ReservedHost {
        name: name.parse().unwrap(),
        clock: OffsetEstimate { offset_ns, bound_ns: 1_000_000 },
        lead: Duration::from_millis(lead_ms),
        destination: String::new(),
    })
}

const FAILED: HostInput = HostInput::Failed { busy: false };
pub(super) const BUSY: HostInput = HostInput::Failed { busy: true };

#[test]
fn two_hosts_get_one_start_and_are_collected() {
    let mut machine = machine(2, rules());
    assert_eq!(machine.take(0, reached("x"), at(1)), []);
    assert_eq!(machine.take(1, reached("y"), at(2)), [HostAction::Reserve(0), HostAction::Reserve(1)]);
    assert_eq!(machine.take(0, ready("a", 5_000, 10), at(3)), []);
    let start = at(3).wall.plus(Duration::from_micros(200 * 2) + Duration::from_millis(20 + 50 + 2));
    let starts = machine.take(1, ready("b", -7_000, 50), at(3));
    assert_eq!(
        starts,
        [HostAction::Start(0, start.stepped(5_000)), HostAction::Start(1, start.stepped(-7_000))]
    );
    assert_eq!(machine.start(), Some(start));
    assert_eq!(machine.take(1, HostInput::Recorded, at(100)), [HostAction::Collect(1)]);
    assert_eq!(machine.take(1, HostInput::Stored, at(101)), []);
    assert_eq!(machine.take(0, HostInput::Recorded, at(102)), [HostAction::Collect(0)]);
    assert_eq!(machine.take(0, HostInput::Stored, at(103)), [HostAction::Conclude { enough: true }]);
    assert_eq!((machine.tick(at(999_000)), machine.wake(at(103))), (vec![], None));
}

#[test]
fn where_messages_take_long_the_start_is_later() {
    let for_each_host = |ms: u64| {
        let mut machine = machine(2, rules());
        machine.take(0, reached("x"), at(0));
        machine.take(1, reached("y"), at(0));
        machine.take(0, ready("a", 0, 0), at(ms));
        machine.take(1, ready("b", 0, 0), at(ms));
        let ahead = at(ms).wall.age(machine.start().unwrap());
        (ahead - Duration::from_millis(20 + 2)) / 2
    };
    assert_eq!([0, 20, 60_000].map(for_each_host), [200, 1000, 2000].map(Duration::from_micros));
}

#[test]
fn failed_hosts_are_not_waited_for_and_too_few_end_it() {
    let mut one_left = machine(3, CaptureRules { min_hosts: 2, ..rules() });
    one_left.take(0, reached(""), at(1));
    assert_eq!(one_left.take(1, FAILED, at(1)), []);
    assert_eq!(one_left.take(2, reached(""), at(1)), [HostAction::Reserve(0), HostAction::Reserve(2)]);
    assert_eq!(one_left.take(2, FAILED, at(2)), [HostAction::Conclude { enough: false }]);
    let mut in_window = machine(2, rules());
    for host in 0..2 {
        in_window.take(host, reached(""), at(1));
    }
    in_window.take(0, ready("a", 0, 0), at(2));
    in_window.take(1, ready("b", 0, 0), at(2));
    assert_eq!(in_window.take(0, FAILED, at(3)), []);
    assert_eq!(in_window.take(1, HostInput::Recorded, at(4)), [HostAction::Collect(1)]);
    assert_eq!(in_window.take(1, HostInput::Stored, at(5)), [HostAction::Conclude { enough: true }]);
}

#[test]
fn an_agent_with_two_names_takes_part_once() {
    let mut machine = machine(3, rules());
    // The second one in the list is the second one, whichever answers first.
    machine.take(2, reached("x"), at(1));
    machine.take(1, reached("y"), at(1));
    let actions = machine.take(0, reached("x"), at(1));
    let second = HostAction::GiveUp(2, GiveUp::SameAgent(0));
    assert_eq!(actions, [HostAction::Reserve(0), HostAction::Reserve(1), second]);
}

#[test]
fn a_busy_host_is_asked_again_while_it_may_wait() {
    let mut machine = machine(2, CaptureRules { busy: Duration::from_secs(2), ..rules() });
    machine.take(0, reached(""), at(0));
    machine.take(1, reached(""), at(0));
    machine.take(1, ready("b", 0, 0), at(10));
    assert_eq!(machine.take(0, BUSY, at(100)), []);
    assert_eq!(machine.wake(at(100)), Some(Duration::from_secs(1)));
    assert_eq!(machine.tick(at(1100)), [HostAction::Reserve(0)]);
    // The last time at the end of the wait.
    assert_eq!(machine.take(0, BUSY, at(1200)), []);
    assert_eq!(machine.wake(at(1200)), Some(Duration::from_millis(800)));
    assert_eq!(machine.tick(at(2000)), [HostAction::Reserve(0)]);
    // Then the other host starts.
    let actions = machine.take(0, BUSY, at(2010));
    assert!(matches!(actions[..], [HostAction::Start(1, _)]) && machine.is_missing(0), "{actions:?}");
}

#[test]
fn where_a_profiler_turns_out_to_be_in_use_all_begin_again_while_they_may_wait() {
    let mut machine = machine(2, CaptureRules { busy: Duration::from_secs(6), ..rules() });
    let both_ready = |machine: &mut Machine, ms: u64| {
        machine.take(0, ready("a", 0, 0), at(ms));
        machine.take(1, ready("b", 0, 0), at(ms))
    };
    machine.take(0, reached(""), at(0));
    machine.take(1, reached(""), at(0));
    assert!(matches!(both_ready(&mut machine, 10)[..], [HostAction::Start(0, _), HostAction::Start(1, _)]));
    assert_eq!(machine.take(1, BUSY, at(20)), [HostAction::Release(0)]);
    assert_eq!((machine.start(), machine.is_recording(0)), (None, false));
    // What was on its way says nothing any more.
    assert_eq!(machine.take(0, HostInput::Recorded, at(21)), []);
    assert_eq!(machine.wake(at(20)), Some(Duration::from_secs(1)));
    assert_eq!(machine.tick(at(1020)), [HostAction::Reserve(0), HostAction::Reserve(1)]);
    both_ready(&mut machine, 1030);
    assert_eq!(machine.take(1, BUSY, at(1040)), [HostAction::Release(0)]);
    // The pause is twice as long, and the third ends with the wait.
    assert_eq!(machine.tick(at(2100)), []);
    assert_eq!(machine.tick(at(3040)), [HostAction::Reserve(0), HostAction::Reserve(1)]);
    both_ready(&mut machine, 3050);
    assert_eq!(machine.take(1, BUSY, at(3060)), [HostAction::Release(0)]);
    assert_eq!(machine.tick(at(6000)), [HostAction::Reserve(0), HostAction::Reserve(1)]);
    both_ready(&mut machine, 6010);
    assert_eq!(machine.take(1, BUSY, at(6020)), []);
    assert!(machine.is_missing(1) && machine.is_recording(0));
}

#[test]
fn a_host_that_has_recorded_does_not_begin_again() {
    let mut machine = machine(2, CaptureRules { busy: Duration::from_secs(60), ..rules() });
    for host in 0..2 {
        machine.take(host, reached(""), at(0));
    }
    machine.take(0, ready("a", 0, 0), at(1));
    machine.take(1, ready("b", 0, 0), at(1));
    assert_eq!(machine.take(0, HostInput::Recorded, at(30)), [HostAction::Collect(0)]);
    assert_eq!(machine.take(1, BUSY, at(31)), []);
    assert!(machine.is_missing(1));
}

#[test]
fn a_window_that_is_over_is_asked_for_in_each_clock_at_once() {
    let past = at(0).wall.stepped(-60_000_000_000);
    let mut machine = machine(2, CaptureRules { past: Some(past), ..rules() });
    machine.take(0, reached(""), at(0));
    machine.take(1, reached(""), at(0));
    assert_eq!(machine.take(0, ready("a", 9, 0), at(1)), []);
    let both = [HostAction::Start(0, past.stepped(9)), HostAction::Start(1, past.stepped(-7))];
    assert_eq!(machine.take(1, ready("b", -7, 0), at(2)), both);
    assert_eq!(machine.start(), Some(past));
    assert_eq!(machine.take(1, HostInput::Recorded, at(3)), [HostAction::Collect(1)]);
    // 30 s after the start was given, however long ago the window was.
    assert_eq!(machine.tick(at(30_001)), [HostAction::Renew(0)]);
    assert_eq!(machine.tick(at(30_002)), [HostAction::GiveUp(0, GiveUp::LateRecording)]);
}

#[test]
fn a_start_far_ahead_reserves_shortly_before_it() {
    let start = at(60_000).wall;
    let mut machine = machine(1, CaptureRules { start: Some(start), ..rules() });
    assert_eq!(machine.take(0, reached(""), at(0)), []);
    assert_eq!(machine.wake(at(0)), Some(Duration::from_secs(50)));
    assert_eq!(machine.tick(at(50_000)), [HostAction::Reserve(0)]);
    assert_eq!(machine.take(0, ready("a", 9, 10), at(50_100)), [HostAction::Start(0, start.stepped(9))]);
    assert_eq!(machine.wake(at(50_100)), Some(Duration::from_secs(3)));
    assert_eq!(machine.tick(at(53_100)), [HostAction::Renew(0)]);
    // 30 s after the window.
    assert_eq!(machine.tick(at(90_100)).last(), Some(&HostAction::Conclude { enough: false }));
    assert!(machine.is_missing(0));
}

#[test]
fn uploads_go_to_one_place_under_different_names() {
    let mut machine = machine(4, CaptureRules { uploads: true, ..rules() });
    for host in 0..4 {
        machine.take(host, reached(""), at(0));
    }
    let to = |name: &str, destination: &str| match ready(name, 0, 0) {
        HostInput::Ready(host) => {
            HostInput::Ready(ReservedHost { destination: destination.to_owned(), ..host })
        }
        other => other,
    };
    machine.take(0, to("a", "gs://x"), at(1));
    machine.take(1, to("b", "gs://y"), at(1));
    machine.take(2, to("b", "gs://y"), at(1));
    let actions = machine.take(3, to("c", "gs://y"), at(1));
    let given_up =
        [HostAction::GiveUp(0, GiveUp::OtherDestination(1)), HostAction::GiveUp(2, GiveUp::SameName(1))];
    assert_eq!(actions[..2], given_up);
    assert!(matches!(actions[2..], [HostAction::Start(1, _), HostAction::Start(3, _)]), "{actions:?}");
}

/// What a driver sees, and what must hold.
#[derive(Default)]
struct Checker {
    hosts: usize,
    min_hosts: usize,
    settled: BTreeSet<HostNumber>,
    ready: BTreeSet<HostNumber>,
    started: BTreeSet<HostNumber>,
    recorded: BTreeSet<HostNumber>,
    stored: BTreeSet<HostNumber>,
    over: bool,
}

impl Checker {
    fn check(&mut self, machine: &Machine, actions: &[HostAction], now: Now) {
        assert!(!self.over || actions.is_empty(), "{actions:?} after the end");
        // Without a start nobody has begun, or all begin again.
        if machine.start().is_none() {
            assert!(self.recorded.is_empty(), "a second window after {:?} recorded", self.recorded);
            self.started.clear();
        }
        for action in actions {
            match action {
                HostAction::Reserve(_) => {
                    let reached = self
                        .settled
                        .iter()
                        .copied()
                        .chain((0..self.hosts).filter(|&host| machine.is_missing(host)));
                    assert_eq!(
                        reached.collect::<BTreeSet<_>>().len(),
                        self.hosts,
                        "{action:?} before all are reached"
                    );
                }
                HostAction::Start(host, _) => {
                    assert!(self.ready.contains(host) && self.started.insert(*host), "{action:?}");
                    assert!(machine.start().is_some_and(|start| start > now.wall), "a start in the past");
                }
                HostAction::Renew(host) => assert!(self.ready.contains(host), "{action:?}"),
                HostAction::Collect(host) => {
                    assert!(self.started.contains(host) && self.recorded.insert(*host), "{action:?}");
                }
                HostAction::Release(host) => assert!(!machine.is_recording(*host), "{action:?}"),
                HostAction::GiveUp(host, _) => assert!(machine.is_missing(*host)),
                HostAction::Conclude { enough } => {
                    self.over = true;
                    let left = (0..self.hosts).filter(|&host| !machine.is_missing(host));
                    let left: BTreeSet<HostNumber> = left.collect();
                    assert_eq!(*enough, left.len() >= self.min_hosts, "{left:?}");
                    assert!(!enough || left.is_subset(&self.stored), "{left:?} {:?}", self.stored);
                }
            }
        }
    }
}

fn any_input() -> impl Strategy<Value = HostInput> {
    prop_oneof![
        4 => "[xyz]?".prop_map(|instance| reached(&instance)),
        4 => ("[abc]", -10_000_000_000_i64..10_000_000_000, 0_u64..200)
            .prop_map(|(name, offset, lead)| ready(&name, offset, lead)),
        4 => Just(HostInput::Recorded),
        4 => Just(HostInput::Stored),
        1 => Just(FAILED),
        1 => Just(BUSY),
    ]
}

proptest! {
    #[test]
    fn any_order_of_events_keeps_the_promises(
        hosts in 1_usize..5,
        min_hosts in 1_usize..3,
        start in prop::option::of(0_u64..30_000),
        uploads in any::<bool>(),
        events in prop::collection::vec((0_usize..5, any_input(), 0_u64..3000), 0..60),
    ) {
        let overall = Some(Duration::from_secs(3600));
        let busy = Duration::from_secs(3);
        let start = start.map(|ms| at(ms).wall);
        let mut machine = machine(hosts, CaptureRules { min_hosts, start, busy, overall, uploads, ..rules() });
        let mut checker = Checker { hosts, min_hosts, ..Checker::default() };
        let mut ms = 0;
        for (host, input, after) in events {
            let until = ms + after;
            while let Some(due) = machine.wake(at(ms)).filter(|due| *due <= Duration::from_millis(until - ms)) {
                ms += u64::try_from(due.as_millis()).unwrap() + u64::from(due.subsec_nanos() % 1_000_000 != 0);
                let actions = machine.tick(at(ms));
                checker.check(&machine, &actions, at(ms));
            }
            ms = ms.max(until);
            if host < hosts {
                match &input {
                    HostInput::Reached { .. } | HostInput::Failed { .. } => drop(checker.settled.insert(host)),
                    HostInput::Ready(_) => drop(checker.ready.insert(host)),
                    HostInput::Stored => drop(checker.stored.insert(host)),
                    HostInput::Recorded => {}
                }
            }
            let actions = machine.take(host, input, at(ms));
            checker.check(&machine, &actions, at(ms));
        }
        // Whatever is left ends with the time of the whole.
        let actions = machine.tick(at(3_700_000));
        checker.check(&machine, &actions, at(3_700_000));
        prop_assert!(checker.over);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn the_starts_of_256_hosts_lie_within_their_bounds(
        hosts in prop::collection::vec(
            (-10_000_000_000_i64..10_000_000_000, 100_000_i64..10_000_000, 100_000_i64..10_000_000, 0_i64..10_000_000, any::<u64>()),
            256,
        ),
    ) {
        let mut machine = machine(hosts.len(), rules());
        for host in 0..hosts.len() {
            machine.take(host, reached(""), at(0));
        }
        let mut starts = Vec::new();
        let mut known = Vec::new();
        for (number, &(offset, there, back, jitter, seed)) in hosts.iter().enumerate() {
            let random = fastrand::Rng::with_seed(seed);
            let trips = round_trips(random, offset, there, back, jitter);
            let clock = clock_offset(&trips).unwrap();
            prop_assert!(clock.offset_ns.abs_diff(offset) <= clock.bound_ns);
            known.push(clock);
            let name = format!("vm-{number}").parse().unwrap();
            let lead = Duration::from_millis(20);
            let ready = ReservedHost { name, clock, lead, destination: String::new() };
            starts = machine.take(number, HostInput::Ready(ready), at(1000));
        }
        let start = machine.start().unwrap();
        prop_assert_eq!(starts.len(), hosts.len());
        for action in starts {
            let HostAction::Start(host, given) = action else { panic!("{action:?}") };
            let (offset, there, _, jitter, _) = hosts[host];
            let began = given.stepped(-offset);
            let error = began.0.abs_diff(start.0);
            prop_assert!(error <= known[host].bound_ns, "{} of {:?}", error, known[host]);
            // It is there in time on the slowest way that there is.
            let arrives = at(1000).wall.stepped(there + jitter);
            prop_assert!(arrives.plus(Duration::from_millis(20)) <= began, "{host} is late");
        }
    }
}

/// Round trips to a clock with this offset, on ways with these least times and this jitter.
fn round_trips(mut random: fastrand::Rng, offset: i64, there: i64, back: i64, jitter: i64) -> Vec<RoundTrip> {
    let mut sent = START;
    let mut trip = || {
        let received = sent + there + random.i64(0..=jitter);
        let replied = received + random.i64(0..=500_000);
        let returned = replied + back + random.i64(0..=jitter);
        let trip = RoundTrip { sent, received: received + offset, replied: replied + offset, returned };
        sent = returned + 1000;
        trip
    };
    (0..8).map(|_| trip()).collect()
}
