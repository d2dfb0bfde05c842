//! The watch against jobs that grow, slow down, or do nothing of the kind.

use proptest::prelude::*;

use super::*;

const S: Duration = Duration::from_secs(1);
const MIB: u64 = 1 << 20;
const LIMITS: HarmLimits = HarmLimits { every: Duration::from_secs(5), max_slowdown: 0.05 };
const LIMIT: MemoryLimit = MemoryLimit { before: Some(1000 * MIB), max_growth: 100 * MIB };

fn watch() -> HarmWatch {
    HarmWatch::new(LIMITS, ContinuousLevel::HostAndDevices, Duration::ZERO)
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

    fn drained(&mut self) -> DrainSeen {
        let steps = self.run(LIMITS.every, self.recorded);
        DrainSeen { at: self.now, took: S / 10, steps: Some(steps) }
    }

    /// Drains for an hour and a quarter, with the pauses that are due. The first verdict that is not fine.
    fn hour(&mut self, watch: &mut HarmWatch) -> HarmVerdict {
        while self.now < 4500 * S {
            if watch.is_pause_due(self.now) {
                watch.pause(self.now);
                self.run(PAUSE, self.alone);
            }
            let verdict = watch.drained(self.drained());
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

/// What is done about a memory of so many MiB.
fn verdict(watch: &mut HarmWatch, limit: &mut MemoryLimit, mib: u64) -> HarmVerdict {
    limit.seen(mib * MIB).map_or(HarmVerdict::Fine, |harm| watch.harmed(harm, S))
}

#[test]
fn memory_that_grows_lowers_the_level_at_once_and_then_ends() {
    let (mut watch, mut limit) = (watch(), LIMIT);
    let harm = Harm::Memory { grown: 101 * MIB, limit: 100 * MIB };
    let verdicts = [900, 1100, 1101, 1100, 1101].map(|mib| verdict(&mut watch, &mut limit, mib));
    let fine = HarmVerdict::Fine;
    let lower = HarmVerdict::Lower(ContinuousLevel::Host, harm);
    assert_eq!(verdicts, [fine, fine, lower, fine, HarmVerdict::Stop(harm)]);
    assert!(harm.to_string().contains("101") && harm.to_string().contains("max_growth"), "{harm}");
}

#[test]
fn memory_that_grows_by_twice_the_limit_ends_at_once() {
    let harm = Harm::Memory { grown: 201 * MIB, limit: 100 * MIB };
    assert_eq!(verdict(&mut watch(), &mut { LIMIT }, 1201), HarmVerdict::Stop(harm));
    let most = verdict(&mut watch(), &mut { LIMIT }, 1200);
    assert!(matches!(most, HarmVerdict::Lower(ContinuousLevel::Host, _)), "{most:?}");
}

#[test]
fn without_the_memory_before_the_first_value_counts() {
    let mut limit = MemoryLimit::new(None, 100 * MIB);
    assert_eq!((limit.seen(500 * MIB), limit.seen(600 * MIB)), (None, None));
    assert_eq!(limit.seen(601 * MIB), Some(Harm::Memory { grown: 101 * MIB, limit: 100 * MIB }));
}

#[test]
fn drains_that_take_too_long_or_come_too_late_fall_behind() {
    let mut slow = watch();
    let mut late = watch();
    let mut last = (HarmVerdict::Fine, HarmVerdict::Fine);
    for number in 1..=4 {
        let seen = |every: u32, took| DrainSeen { at: S * every * number, took, steps: None };
        last = (slow.drained(seen(5, 6 * S)), late.drained(seen(11, S)));
    }
    assert_eq!(last.1, HarmVerdict::Lower(ContinuousLevel::Host, Harm::FallsBehind));
    // The slow one was lowered one drain before: its first drain counted too.
    assert_eq!((last.0, slow.level), (HarmVerdict::Fine, ContinuousLevel::Host));
}

#[test]
fn what_is_written_faster_than_allowed_lowers_the_level_and_then_ends() {
    let mut watch = watch();
    let mut wrote = |unpaid| watch.wrote(S * unpaid, S);
    // A large drain now and then is paid for later; many are not. The interval is 5 s.
    let verdicts = [14, 9, 15, 16, 11, 12, 20].map(&mut wrote);
    let (fine, lower) = (HarmVerdict::Fine, HarmVerdict::Lower(ContinuousLevel::Host, Harm::Writes));
    assert_eq!(verdicts, [fine, fine, fine, lower, fine, fine, HarmVerdict::Stop(Harm::Writes)]);
    // With less it is paid for in time.
    assert_eq!([19, 18].map(wrote), [fine, fine]);
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
        let seen = DrainSeen { steps: None, ..job.drained() };
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

    /// A process is lowered at most once, and then only stopped; above the limit it never goes on as it is.
    #[test]
    fn recording_only_becomes_less(memory in prop::collection::vec(900..1300_u64, 0..60)) {
        let (mut watch, mut limit) = (watch(), LIMIT);
        let mut lowered = 0;
        for mib in memory {
            match verdict(&mut watch, &mut limit, mib) {
                HarmVerdict::Fine => prop_assert!(mib <= 1100),
                HarmVerdict::Lower(level, _) => {
                    lowered += 1;
                    prop_assert_eq!((lowered, level), (1, ContinuousLevel::Host));
                    prop_assert!((1101..=1200).contains(&mib));
                }
                HarmVerdict::Stop(_) => {
                    prop_assert!(mib > 1100 && (lowered == 1 || mib > 1200));
                    return Ok(());
                }
            }
        }
    }
}
