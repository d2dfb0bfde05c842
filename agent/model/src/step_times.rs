//! The steps of the workloads, as far as traces tell: the recorder and captures put in what they read, the sampler and the
//! status take it out.
//!
//! Ages are kept by the clock that never steps. Of each process only its newest trace with steps is kept, and the number of processes is
//! bounded. Must never give figures of a trace that is stale, or of a process that is gone.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    time::{Clock, Timestamp},
    workload::ProcessKey,
};

/// The most processes whose steps are kept.
const MAX_PROCESSES: usize = 256;
/// The wall clock was stepped if the two clocks disagree by more.
const CLOCK_STEP: i64 = 500_000_000;

/// The steps that lie wholly inside one trace of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceSteps {
    /// The number of them.
    pub count: u64,
    /// The median of their lengths, in nanoseconds.
    pub median_ns: u64,
    /// The mean; 0 in segments of builds that did not compute it.
    pub mean_ns: u64,
    /// The longest.
    pub longest_ns: u64,
    /// Which they are, if they are numbered.
    pub numbered: Option<NumberedSteps>,
    /// The part of the steps that waited for input, in millionths; `None` if the trace does not tell.
    pub input_ppm: Option<u32>,
    /// The part of the time in which the TensorCores of the process were busy, in millionths; `None` without one.
    pub busy_ppm: Option<u32>,
}

/// The first and the last of the numbered steps of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberedSteps {
    /// The least number.
    pub first: i64,
    /// The greatest number.
    pub last: i64,
    /// When the step with the least number began, in nanoseconds since the epoch.
    pub first_start_ns: i64,
    /// When the step with the greatest number began.
    pub last_start_ns: i64,
}

/// A trace of a process that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadTrace {
    /// Its steps; `None` if it shows none.
    pub steps: Option<TraceSteps>,
    /// The end of what it covers.
    pub stop: Timestamp,
    /// How long after that its figures hold.
    pub fresh_for: Duration,
}

/// The steps of a workload on this host. Of several processes: the step that began last, the longest times, the largest
/// share of input, and the smallest busy share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorkloadSteps {
    /// The end of the newest trace.
    pub at: Timestamp,
    /// How long ago that was.
    pub age: Duration,
    /// The median step of a trace.
    pub median: Duration,
    /// The mean step of a trace.
    pub mean: Duration,
    /// The mean step between two traces: elapsed time over step numbers. `None` with fewer than two traces, or
    /// without numbers.
    pub pace: Option<Duration>,
    /// The last step that was seen, if steps are numbered.
    pub last: Option<LastStep>,
    /// 0 to 1: the part of the steps that waited for input, if the trace tells.
    pub input_share: Option<f64>,
    /// 0 to 1: the part of the time in which TensorCores were busy, if there are any.
    pub busy_share: Option<f64>,
}

/// A step that was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastStep {
    /// Its number.
    pub number: i64,
    /// How long ago it began.
    pub age: Duration,
}

/// Why a workload has no steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoSteps {
    /// No trace of it was read.
    #[error(
        "no trace of it was read: `tpuscope recorder status` says whether it is recorded and why not, `tpuscope recorder on` asks for it"
    )]
    NoTrace,
    /// The newest trace shows no whole step.
    #[error(
        "its trace of {} s ago shows no whole step: jax.profiler.StepTraceAnnotation marks steps", .0.as_secs()
    )]
    NoStep(Duration),
    /// The newest trace is too old.
    #[error("its last trace is {} s old: `tpuscope recorder status` says why there is no newer one", .0.as_secs())]
    Stale(Duration),
}

/// The steps of the processes of this host.
pub struct StepTimes {
    clock: Arc<dyn Clock>,
    processes: Mutex<BTreeMap<ProcessKey, ProcessSteps>>,
}

impl std::fmt::Debug for StepTimes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StepTimes").field("processes", &*self.processes()).finish_non_exhaustive()
    }
}

/// What is known of one process.
#[derive(Debug, Clone, Copy, Default)]
struct ProcessSteps {
    /// Of the newest trace that shows steps.
    seen: Option<SeenSteps>,
    /// The end of the newest trace, after the boot.
    newest: Duration,
}

/// The steps of one trace. Instants are times after the boot.
#[derive(Debug, Clone, Copy)]
struct SeenSteps {
    steps: TraceSteps,
    stop: Duration,
    stop_wall: Timestamp,
    /// When its last numbered step began.
    last_begin: Option<Duration>,
    fresh_until: Duration,
    pace_ns: Option<u64>,
}

impl StepTimes {
    /// Without any steps yet.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { clock, processes: Mutex::default() })
    }

    /// Puts in what a trace tells. One that is older than what is known tells nothing new.
    pub fn put(&self, process: ProcessKey, trace: ReadTrace) {
        let (now, uptime) = (self.clock.now(), self.clock.uptime());
        let after_boot = |at: Timestamp| uptime.saturating_sub(at.age(now));
        let stop = after_boot(trace.stop);
        let mut processes = self.processes();
        if !processes.contains_key(&process) && processes.len() >= MAX_PROCESSES {
            return;
        }
        let known = processes.entry(process).or_default();
        if stop < known.newest {
            return;
        }
        known.newest = stop;
        let Some(steps) = trace.steps.filter(|steps| steps.count > 0 && steps.mean_ns > 0) else { return };
        let before = known.seen.and_then(|seen| seen.steps.numbered);
        // A capture between two traces of the recorder takes nothing from how long theirs hold.
        let fresh_until = stop.saturating_add(trace.fresh_for);
        let fresh_until = known.seen.map_or(fresh_until, |seen| seen.fresh_until.max(fresh_until));
        known.seen = Some(SeenSteps {
            pace_ns: before.zip(steps.numbered).and_then(|(before, after)| pace(before, after)),
            last_begin: steps.numbered.map(|numbered| after_boot(Timestamp(numbered.last_start_ns))),
            steps,
            stop,
            stop_wall: trace.stop,
            fresh_until,
        });
    }

    /// The steps of a workload with these processes.
    ///
    /// # Errors
    /// Why there are none.
    pub fn of(&self, owners: &[ProcessKey]) -> Result<WorkloadSteps, NoSteps> {
        let (now, uptime) = (self.clock.now(), self.clock.uptime());
        let processes = self.processes();
        let known: Vec<&ProcessSteps> = owners.iter().filter_map(|owner| processes.get(owner)).collect();
        let newest = known.iter().map(|process| process.newest).max().ok_or(NoSteps::NoTrace)?;
        let seen: Vec<&SeenSteps> = known.iter().filter_map(|process| process.seen.as_ref()).collect();
        let fresh: Vec<&SeenSteps> = seen.iter().copied().filter(|seen| uptime <= seen.fresh_until).collect();
        let Some(latest) = fresh.iter().max_by_key(|seen| (seen.last_begin, seen.stop)) else {
            // A trace without steps may be newer than the one that is too old.
            let age = uptime.saturating_sub(newest);
            let is_last = seen.iter().any(|seen| seen.stop == newest);
            return Err(if is_last { NoSteps::Stale(age) } else { NoSteps::NoStep(age) });
        };
        let figures = || fresh.iter().map(|seen| &seen.steps);
        let longest = |ns: fn(&TraceSteps) -> u64| Duration::from_nanos(figures().map(ns).max().unwrap_or(0));
        let stop = fresh.iter().max_by_key(|seen| seen.stop).unwrap_or(latest);
        Ok(WorkloadSteps {
            at: wall(stop, now, uptime),
            age: uptime.saturating_sub(stop.stop),
            median: longest(|steps| steps.median_ns),
            mean: longest(|steps| steps.mean_ns),
            pace: latest.pace_ns.map(Duration::from_nanos),
            last: latest.steps.numbered.zip(latest.last_begin).map(|(numbered, begin)| LastStep {
                number: numbered.last,
                age: uptime.saturating_sub(begin),
            }),
            input_share: figures().filter_map(|steps| steps.input_ppm).max().map(share),
            busy_share: figures().filter_map(|steps| steps.busy_ppm).min().map(share),
        })
    }

    /// Forgets all processes but these.
    pub fn retain(&self, living: &BTreeSet<ProcessKey>) {
        self.processes().retain(|process, _| living.contains(process));
    }

    fn processes(&self) -> MutexGuard<'_, BTreeMap<ProcessKey, ProcessSteps>> {
        // Every change is complete when it can panic.
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end of a trace by the wall clock: as it said, unless that was stepped since.
fn wall(seen: &SeenSteps, now: Timestamp, uptime: Duration) -> Timestamp {
    let age = i64::try_from(uptime.saturating_sub(seen.stop).as_nanos()).unwrap_or(i64::MAX);
    let at = now.stepped(age.saturating_neg());
    if at.0.abs_diff(seen.stop_wall.0) < CLOCK_STEP.unsigned_abs() { seen.stop_wall } else { at }
}

fn share(ppm: u32) -> f64 {
    f64::from(ppm) / 1e6
}

/// The mean time of a step from the last one of a trace to the last one of the next. A program that counts from the beginning
/// again, and a clock that was stepped, tell nothing.
fn pace(before: NumberedSteps, after: NumberedSteps) -> Option<u64> {
    let steps = u64::try_from(after.last.checked_sub(before.last)?).ok().filter(|steps| *steps > 0)?;
    let elapsed = u64::try_from(after.last_start_ns.checked_sub(before.last_start_ns)?).ok()?;
    Some(elapsed / steps).filter(|pace| *pace > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::ManualClock;

    const SECOND: i64 = 1_000_000_000;

    fn process(pid: u32) -> ProcessKey {
        ProcessKey { pid, start_ticks: 1 }
    }

    /// A trace from second `from` to `stop` with steps of 100 ms from number `first` on.
    fn trace(from: i64, stop: i64, first: i64) -> ReadTrace {
        let count = (stop - from) * 10;
        let numbered = NumberedSteps {
            first,
            last: first + count - 1,
            first_start_ns: from * SECOND,
            last_start_ns: stop * SECOND - SECOND / 10,
        };
        let steps = TraceSteps {
            count: count.unsigned_abs(),
            median_ns: 100_000_000,
            mean_ns: 110_000_000,
            longest_ns: 200_000_000,
            numbered: Some(numbered),
            ..TraceSteps::default()
        };
        ReadTrace { steps: Some(steps), stop: Timestamp(stop * SECOND), fresh_for: Duration::from_secs(180) }
    }

    fn table(seconds: u64) -> (Arc<ManualClock>, Arc<StepTimes>) {
        let clock = Arc::new(ManualClock::at(Timestamp(0)));
        clock.advance(Duration::from_secs(seconds));
        (clock.clone(), StepTimes::new(clock))
    }

    #[test]
    fn figures_have_an_age_and_end() {
        let (clock, table) = table(100);
        assert_eq!(table.of(&[process(1)]), Err(NoSteps::NoTrace));
        table.put(process(1), trace(98, 100, 0));
        clock.advance(Duration::from_secs(60));
        table.put(process(1), trace(158, 160, 300));
        clock.advance(Duration::from_secs(5));
        let steps = table.of(&[process(1)]).unwrap();
        let last = LastStep { number: 319, age: Duration::from_millis(5100) };
        assert_eq!((steps.last, steps.age.as_secs()), (Some(last), 5));
        assert_eq!(steps.pace, Some(Duration::from_millis(200)), "300 steps in 60 s");
        assert_eq!((steps.median.as_millis(), steps.mean.as_millis()), (100, 110));
        assert_eq!((steps.input_share, steps.busy_share), (None, None));
        clock.advance(Duration::from_secs(176));
        assert_eq!(table.of(&[process(1)]), Err(NoSteps::Stale(Duration::from_secs(181))));
        table.put(process(1), ReadTrace { steps: None, ..trace(339, 340, 0) });
        assert_eq!(table.of(&[process(1)]), Err(NoSteps::NoStep(Duration::from_secs(1))));
        table.retain(&BTreeSet::from([process(2)]));
        assert_eq!(table.of(&[process(1)]), Err(NoSteps::NoTrace));
    }

    #[test]
    fn a_step_of_the_clock_changes_no_age() {
        let (clock, table) = table(100);
        table.put(process(1), trace(98, 100, 0));
        let before = table.of(&[process(1)]).unwrap();
        assert_eq!(before.at, Timestamp(100 * SECOND));
        clock.step(-50 * SECOND);
        let after = table.of(&[process(1)]).unwrap();
        assert_eq!((after.age, after.last), (before.age, before.last));
        assert_eq!(after.at, Timestamp(50 * SECOND));
        // The next trace has times of the new clock: nothing is said of the time between.
        clock.advance(Duration::from_secs(10));
        table.put(process(1), trace(58, 60, 100));
        assert_eq!(table.of(&[process(1)]).unwrap().pace, None);
    }

    #[test]
    fn of_several_processes_the_slowest_counts_and_the_furthest() {
        let (_, table) = table(100);
        let mut slow = trace(98, 100, 0);
        if let Some(steps) = &mut slow.steps {
            (steps.median_ns, steps.input_ppm, steps.busy_ppm) = (150_000_000, Some(250_000), Some(900_000));
        }
        let mut quick = trace(98, 100, 7);
        if let Some(steps) = &mut quick.steps {
            (steps.input_ppm, steps.busy_ppm) = (Some(100_000), Some(800_000));
        }
        table.put(process(1), slow);
        table.put(process(2), quick);
        let steps = table.of(&[process(1), process(2), process(3)]).unwrap();
        assert_eq!(steps.median.as_millis(), 150);
        assert_eq!((steps.input_share, steps.busy_share), (Some(0.25), Some(0.8)));
        assert!(steps.last.is_some_and(|last| [19, 26].contains(&last.number)));
    }

    #[test]
    fn an_older_trace_or_a_restart_of_the_numbers_tells_no_pace() {
        let (clock, table) = table(100);
        table.put(process(1), trace(98, 100, 50));
        table.put(process(1), trace(90, 92, 0));
        assert_eq!(table.of(&[process(1)]).unwrap().last.unwrap().number, 69, "the older one came late");
        clock.advance(Duration::from_secs(10));
        table.put(process(1), trace(108, 110, 0));
        let steps = table.of(&[process(1)]).unwrap();
        assert_eq!((steps.pace, steps.last.unwrap().number), (None, 19));
    }

    #[test]
    fn the_number_of_processes_is_bounded() {
        let (_, table) = table(100);
        let many = u32::try_from(MAX_PROCESSES).unwrap() + 5;
        (0..many).for_each(|pid| table.put(process(pid), trace(98, 100, 0)));
        assert_eq!(table.processes().len(), MAX_PROCESSES);
    }
}
