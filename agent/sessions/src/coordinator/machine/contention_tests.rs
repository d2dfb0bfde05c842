//! Several captures at a time over the same simulated hosts, each of which serves one capture at a time.

use std::{collections::BTreeMap, time::Duration};

use proptest::prelude::*;

use super::{
    CaptureRules, HostAction, HostInput, HostNumber, Machine, Now,
    tests::{BUSY, at, machine, reached, ready, rules},
};

/// The captures wait for at most so long.
const WAIT: Duration = Duration::from_secs(600);

#[test]
fn hosts_that_are_ready_are_released_while_another_one_stays_busy() {
    let mut machine = machine(2, CaptureRules { busy: WAIT, ..rules() });
    machine.take(0, reached(""), at(0));
    machine.take(1, reached(""), at(0));
    let mut ms = 0;
    let mut held = Vec::new();
    for _ in 0..5 {
        machine.take(0, BUSY, at(ms));
        machine.take(1, ready("b", 0, 0), at(ms));
        let since = ms;
        loop {
            ms += u64::try_from(machine.wake(at(ms)).unwrap().as_millis()).unwrap() + 1;
            let actions = machine.tick(at(ms));
            if actions.contains(&HostAction::Release(1)) {
                break;
            }
            if actions.contains(&HostAction::Reserve(0)) {
                assert!(!actions.contains(&HostAction::Reserve(1)), "it is reserved");
                assert_eq!(machine.take(0, BUSY, at(ms)), []);
            }
        }
        held.push(ms - since);
        // Both together, after a pause.
        let pause = machine.wake(at(ms)).unwrap();
        assert!(pause >= Duration::from_secs(1), "{pause:?}");
        ms += u64::try_from(pause.as_millis()).unwrap() + 1;
        assert_eq!(machine.tick(at(ms)), [HostAction::Reserve(0), HostAction::Reserve(1)]);
    }
    for (number, held) in held.into_iter().enumerate() {
        let about = [2000, 4000, 8000, 15_000, 15_000][number];
        assert!((about / 2..=about * 3 / 2 + 10).contains(&held), "{number}: {held} ms");
    }
}

#[test]
fn hosts_stay_reserved_where_the_wait_ends_too_soon_for_a_release() {
    let mut machine = machine(2, CaptureRules { busy: Duration::from_secs(2), ..rules() });
    machine.take(0, reached(""), at(0));
    machine.take(1, reached(""), at(0));
    machine.take(1, ready("b", 0, 0), at(0));
    let mut ms = 0;
    while !machine.is_missing(0) {
        let actions = machine.take(0, BUSY, at(ms));
        assert!(!actions.contains(&HostAction::Release(1)), "{actions:?}");
        if !machine.is_missing(0) {
            ms += u64::try_from(machine.wake(at(ms)).unwrap().as_millis()).unwrap();
            assert_eq!(machine.tick(at(ms)), [HostAction::Reserve(0)], "{ms}");
        }
    }
    assert_eq!((ms, machine.is_recording(1)), (2000, true));
}

/// What happens at a host, or of what a capture learns.
enum Happens {
    Begins(usize),
    ReserveArrives(usize, HostNumber),
    ReleaseArrives(usize, HostNumber),
    Recorded(usize, HostNumber),
    Learns(usize, HostNumber, HostInput),
}

/// Captures over the same hosts.
struct Simulation {
    ms: u64,
    captures: Vec<Option<Machine>>,
    /// The capture for which each host is reserved.
    reserved: Vec<Option<usize>>,
    due: BTreeMap<(u64, u64), Happens>,
    random: fastrand::Rng,
    window: u64,
    /// Each capture with the time of its end.
    ended: BTreeMap<usize, u64>,
}

impl Simulation {
    fn new(hosts: usize, begins: &[u64], window: u64, seed: u64) -> Self {
        let mut simulation = Self {
            ms: 0,
            captures: begins.iter().map(|_| None).collect(),
            reserved: vec![None; hosts],
            due: BTreeMap::new(),
            random: fastrand::Rng::with_seed(seed),
            window,
            ended: BTreeMap::new(),
        };
        for (capture, begin) in begins.iter().enumerate() {
            simulation.later(*begin, Happens::Begins(capture));
        }
        simulation
    }

    fn later(&mut self, after: u64, happens: Happens) {
        let place = self.random.u64(..);
        self.due.insert((self.ms + after, place), happens);
    }

    /// The way of a message.
    fn way(&mut self) -> u64 {
        self.random.u64(1..200)
    }

    fn begin(&mut self, capture: usize) {
        let hosts = self.reserved.len();
        let given = (0..hosts).map(|number| format!("h{number}").parse().unwrap()).collect();
        let seed = self.random.u64(..);
        let rules = CaptureRules { min_hosts: hosts, busy: WAIT, seed, ..rules() };
        self.captures[capture] = Some(Machine::new(given, rules, at(self.ms)));
        for host in 0..hosts {
            let way = self.way();
            self.later(way, Happens::Learns(capture, host, reached("")));
        }
    }

    /// Goes on to what is due next. Returns whether there is anything.
    fn step(&mut self) -> bool {
        let now: Now = at(self.ms);
        let wake = |machine: &Machine| machine.wake(now).map(|after| after.as_nanos().div_ceil(1_000_000));
        let running = self.captures.iter().enumerate();
        let waking = running.filter_map(|(number, machine)| Some((wake(machine.as_ref()?)?, number))).min();
        let waking = waking.map(|(after, number)| (self.ms + u64::try_from(after).unwrap(), number));
        let next = self.due.first_key_value().map(|((at, _), _)| *at);
        match (waking, next) {
            (Some((at_ms, capture)), next) if next.is_none_or(|next| at_ms <= next) => {
                self.ms = at_ms;
                let actions = self.captures[capture].as_mut().unwrap().tick(at(at_ms));
                self.act(capture, actions);
            }
            (_, Some(_)) => {
                let ((at, _), happens) = self.due.pop_first().unwrap();
                self.ms = at;
                self.happens(happens);
            }
            _ => return false,
        }
        true
    }

    fn happens(&mut self, happens: Happens) {
        let way = self.way();
        match happens {
            Happens::Begins(capture) => self.begin(capture),
            Happens::ReserveArrives(capture, host) => {
                let input = match self.reserved[host] {
                    Some(_) => BUSY,
                    None => {
                        self.reserved[host] = Some(capture);
                        ready(&format!("vm-{host}"), 0, 0)
                    }
                };
                self.later(way, Happens::Learns(capture, host, input));
            }
            Happens::ReleaseArrives(capture, host) => {
                assert_eq!(self.reserved[host].take(), Some(capture));
            }
            Happens::Recorded(capture, host) => {
                assert_eq!(self.reserved[host].take(), Some(capture));
                self.later(way, Happens::Learns(capture, host, HostInput::Recorded));
            }
            Happens::Learns(capture, host, input) => {
                let now = at(self.ms);
                let actions = self.captures[capture].as_mut().map(|machine| machine.take(host, input, now));
                self.act(capture, actions.unwrap_or_default());
            }
        }
    }

    fn act(&mut self, capture: usize, actions: Vec<HostAction>) {
        for action in actions {
            let way = self.way();
            match action {
                HostAction::Reserve(host) => self.later(way, Happens::ReserveArrives(capture, host)),
                HostAction::Release(host) => self.later(way, Happens::ReleaseArrives(capture, host)),
                HostAction::Start(host, start) => {
                    let ahead = u64::try_from(at(self.ms).wall.age(start).as_millis()).unwrap();
                    self.later(ahead + self.window, Happens::Recorded(capture, host));
                }
                HostAction::Collect(host) => {
                    self.later(way, Happens::Learns(capture, host, HostInput::Stored));
                }
                HostAction::Conclude { enough: true } => {
                    self.ended.insert(capture, self.ms);
                    self.captures[capture] = None;
                }
                HostAction::Renew(_) => {}
                HostAction::GiveUp(..) | HostAction::Conclude { enough: false } => {
                    panic!("capture {capture} after {} ms: {action:?}", self.ms)
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn captures_that_share_hosts_all_end_with_all_of_them(
        hosts in 2_usize..6,
        begins in prop::collection::vec(0_u64..1000, 2..4),
        window in 1_u64..5000,
        seed in any::<u64>(),
    ) {
        let mut simulation = Simulation::new(hosts, &begins, window, seed);
        while simulation.step() {}
        prop_assert_eq!(simulation.ended.len(), begins.len());
        prop_assert!(simulation.reserved.iter().all(Option::is_none));
        // Long before their wait ends.
        let last = simulation.ended.values().max().unwrap();
        prop_assert!(Duration::from_millis(*last) < WAIT / 2, "{:?}", simulation.ended);
    }
}
