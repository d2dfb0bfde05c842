//! The watch against jobs that grow, slow down, or do nothing of the kind.

use proptest::prelude::*;

use super::*;

const S: Duration = Duration::from_secs(1);
const MIB: u64 = 1 << 20;
const LIMITS: HarmLimits =
    HarmLimits { every: Duration::from_secs(5), max_growth: 100 * MIB, max_slowdown: 0.05 };

fn watch() -> HarmWatch {
    HarmWatch::new(LIMITS, ContinuousLevel::HostAndDevices, Some(1000 * MIB), Duration::ZERO)
}

/// A job whose steps have this length while it is recorded and while it is not.
struct Job {
    now: Duration,
    number: i64,
    recorded: Duration,
    alone: Duration,
}

impl Job {
    fn ns(&self) -> i64 {
        i64::try_from(self.now.as_nanos()).unwrap()
    }

    fn run(&mut self, time: Duration, step: Duration) -> (StepSeen, StepSeen) {
        let steps = i64::try_from(time.as_nanos() / step.as_nanos()).unwrap();
        let first = StepSeen { number: self.number, begin_ns: self.ns() };
        self.now += step * u32::try_from(steps).unwrap();
        self.number += steps;
        (first, StepSeen { number: self.number, begin_ns: self.ns() })
    }

    fn drained(&mut self, memory: u64) -> DrainSeen {
        let steps = self.run(LIMITS.every, self.recorded);
        DrainSeen { at: self.now, took: S / 10, memory: Some(memory), steps: Some(steps) }
    }

    /// Drains for an hour and a quarter, with the pauses that are due. The first verdict that is not fine.
    fn hour(&mut self, watch: &mut HarmWatch) -> HarmVerdict {
        while self.now < 4500 * S {
            if watch.is_pause_due(self.now) {
                watch.pause(self.now);
                self.run(PAUSE, self.alone);
            }
            let verdict = watch.drained(self.drained(1000 * MIB));
            if verdict != HarmVerdict::Fine {
                return verdict;
            }
        }
        HarmVerdict::Fine
    }
}

fn job(recorded_us: u64, alone_us: u64) -> Job {
    Job {
        now: Duration::ZERO,
        number: 0,
        recorded: Duration::from_micros(recorded_us),
        alone: Duration::from_micros(alone_us),
    }
}

#[test]
fn memory_that_grows_lowers_the_level_and_then_ends() {
    let mut watch = watch();
    let mut job = job(10_000, 10_000);
    let harm = Harm::Memory { grown: 101 * MIB, limit: 100 * MIB };
    let mut verdicts = Vec::new();
    for _ in 0..2 * IN_A_ROW {
        verdicts.push(watch.drained(job.drained(1101 * MIB)));
    }
    let fine = HarmVerdict::Fine;
    let lower = HarmVerdict::Lower(ContinuousLevel::Host, harm);
    assert_eq!(verdicts, [fine, fine, lower, fine, fine, HarmVerdict::Stop(harm)]);
    assert!(harm.to_string().contains("101") && harm.to_string().contains("max_growth"), "{harm}");
}

#[test]
fn one_large_value_is_no_growth() {
    let (mut watch, mut job) = (watch(), job(10_000, 10_000));
    for memory in [1000, 1200, 1200, 1000, 1200, 1200, 900] {
        assert_eq!(watch.drained(job.drained(memory * MIB)), HarmVerdict::Fine);
    }
}

#[test]
fn drains_that_take_too_long_or_come_too_late_fall_behind() {
    let mut slow = watch();
    let mut late = watch();
    let mut last = (HarmVerdict::Fine, HarmVerdict::Fine);
    for number in 1..=4 {
        let seen = |every: u32, took| DrainSeen { at: S * every * number, took, memory: None, steps: None };
        last = (slow.drained(seen(5, 6 * S)), late.drained(seen(11, S)));
    }
    assert_eq!(last.1, HarmVerdict::Lower(ContinuousLevel::Host, Harm::FallsBehind));
    // The slow one was lowered one drain before: its first drain counted too.
    assert_eq!((last.0, slow.level), (HarmVerdict::Fine, ContinuousLevel::Host));
}

#[test]
fn steps_that_are_slower_than_in_the_pauses_are_harm() {
    let slower = job(10_700, 10_000).hour(&mut watch());
    assert!(
        matches!(slower, HarmVerdict::Lower(_, Harm::Slower { by, .. }) if (by - 0.07).abs() < 0.005),
        "{slower:?}"
    );
    let mut fine = watch();
    assert_eq!(job(10_200, 10_000).hour(&mut fine), HarmVerdict::Fine);
    assert!(fine.slowdown().is_some_and(|by| (by - 0.02).abs() < 0.005), "{:?}", fine.slowdown());
}

#[test]
fn without_numbers_there_is_no_verdict_about_steps() {
    let (mut watch, mut job) = (watch(), job(20_000, 10_000));
    for _ in 0..2000 {
        let seen = DrainSeen { steps: None, ..job.drained(1000 * MIB) };
        if watch.is_pause_due(seen.at) {
            watch.pause(seen.at);
        }
        assert_eq!(watch.drained(seen), HarmVerdict::Fine);
    }
    assert_eq!(watch.slowdown(), None);
}

#[test]
fn numbers_that_go_back_count_nothing() {
    let mut mean = MeanStep::default();
    let step = |number, begin_ns| StepSeen { number, begin_ns };
    mean.add(step(100, 0), step(5, 1000));
    mean.add(step(5, 1000), step(5, 2000));
    assert_eq!(mean, MeanStep::default());
}

proptest! {
    /// A job that is not slower while it is recorded, does not grow beyond the limit and is drained in time is always fine;
    /// one that is slower by more than the limit is found.
    #[test]
    fn harm_is_found_and_nothing_else(
        alone_us in 2_000..400_000_u64,
        slower_percent in prop_oneof![0..=4_u64, 7..=100_u64],
    ) {
        let mut job = job(alone_us * (100 + slower_percent) / 100, alone_us);
        let verdict = job.hour(&mut watch());
        let harmed = matches!(verdict, HarmVerdict::Lower(_, Harm::Slower { .. }));
        prop_assert_eq!(harmed, slower_percent > 5, "{:?}", verdict);
        prop_assert!(harmed || verdict == HarmVerdict::Fine);
    }

    /// A process is lowered at most once, and then only stopped.
    #[test]
    fn recording_only_becomes_less(memory in prop::collection::vec(900..1300_u64, 0..60)) {
        let (mut watch, mut job) = (watch(), job(10_000, 10_000));
        let mut lowered = 0;
        for memory in memory {
            match watch.drained(job.drained(memory * MIB)) {
                HarmVerdict::Fine => {}
                HarmVerdict::Lower(level, _) => {
                    lowered += 1;
                    prop_assert_eq!((lowered, level), (1, ContinuousLevel::Host));
                }
                HarmVerdict::Stop(_) => {
                    prop_assert_eq!(lowered, 1);
                    return Ok(());
                }
            }
        }
    }
}
