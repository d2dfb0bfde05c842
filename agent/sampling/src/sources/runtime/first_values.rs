//! The first values of a process: in its first seconds the runtime serves 0 for the HBM in use and for the duty cycle of
//! a chip that already works. Such a pair is unknown, not idleness.
//!
//! Must never take away a value of a device that once had another than 0 from the same processes, or call a process new
//! that ran before the agent did.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use model::{
    catalog::{TPU_HBM_USED_BYTES, TPU_TENSORCORE_DUTY_CYCLE_RATIO},
    label::{CHIP, CORE},
    metric::Descriptor,
    sample::{Sample, SampleValue},
    time::Timestamp,
    workload::ProcessKey,
};

/// How long zeros count as unknown. On real hardware the right values came 3 s after the first zeros.
const ZEROS_UNKNOWN: Duration = Duration::from_secs(30);

/// More processes than a host has at a time. Beyond, those that have ended are forgotten.
const MOST_PROCESSES: usize = 4096;

/// Since when each process is known.
#[derive(Debug, Default)]
pub(super) struct ProcessTimes {
    since: HashMap<ProcessKey, Timestamp>,
    /// Whether processes were observed before.
    observed: bool,
}

impl ProcessTimes {
    /// Takes the processes of a tick. One that was not there at an earlier tick is known since this tick: it has just
    /// opened its chips. One that was there at the first tick is known since it `started`, where a clock tells.
    pub(super) fn observe(
        &mut self,
        processes: impl Iterator<Item = ProcessKey>,
        at: Timestamp,
        started: impl Fn(ProcessKey) -> Option<Timestamp>,
    ) {
        let processes: Vec<_> = processes.collect();
        for process in &processes {
            let since = || if self.observed { at } else { started(*process).unwrap_or(at) };
            self.since.entry(*process).or_insert_with(since);
        }
        self.observed = true;
        if self.since.len() > MOST_PROCESSES {
            self.since.retain(|process, _| processes.contains(process));
        }
    }

    /// Since when the youngest of `processes` is known.
    pub(super) fn youngest(&self, processes: &[ProcessKey]) -> Option<Timestamp> {
        processes.iter().filter_map(|process| self.since.get(process)).max().copied()
    }
}

/// A chip, or a core whose chip is not known.
type Device = (bool, u32);

/// What is known of the values of one endpoint since its processes began.
#[derive(Debug, Default)]
pub(super) struct FirstValues {
    /// The processes behind the endpoint; empty where none is known.
    processes: Vec<ProcessKey>,
    /// Since when the youngest of them is known; without a process, since the first values.
    since: Option<Timestamp>,
    /// Devices that had another value than 0.
    known: HashSet<Device>,
}

impl FirstValues {
    /// Whether a metric may be served as 0 at first.
    pub(super) fn concerns(metric: &Descriptor) -> bool {
        std::ptr::eq(metric, &TPU_HBM_USED_BYTES) || std::ptr::eq(metric, &TPU_TENSORCORE_DUTY_CYCLE_RATIO)
    }

    /// Takes the processes behind the endpoint. A new one makes its values first values again.
    pub(super) fn set_processes(&mut self, processes: &[ProcessKey], since: Option<Timestamp>) {
        if processes.iter().any(|process| !self.processes.contains(process)) {
            *self = Self { processes: processes.to_vec(), since, known: HashSet::new() };
        }
    }

    /// Why values were removed.
    pub(super) fn why(&self) -> &'static str {
        if self.processes.is_empty() {
            "the runtime gives 0 for HBM in use and duty cycle in the first seconds of a process, also of one that works, \
             and it is not known when this process started: unknown until another value comes, or for 30 s"
        } else {
            "the runtime gives 0 for HBM in use and duty cycle in the first seconds of a process, also of one that works: \
             unknown until another value comes, or for 30 s from the start of the process or its first use of a chip"
        }
    }

    /// Removes HBM in use and duty cycle of the devices for which all of both are 0; says whether there were any.
    pub(super) fn remove_zeros(&mut self, samples: &mut Vec<Sample>, at: Timestamp) -> bool {
        let concerned = |sample: &Sample| Self::concerns(&sample.metric);
        if !samples.iter().any(concerned) {
            return false;
        }
        if self.since.get_or_insert(at).age(at) >= ZEROS_UNKNOWN {
            return false;
        }
        for sample in samples.iter().filter(|sample| concerned(sample)) {
            if !matches!(sample.value, SampleValue::Gauge(0.0)) {
                self.known.extend(device(sample));
            }
        }
        let before = samples.len();
        samples.retain(|sample| {
            !concerned(sample) || device(sample).is_none_or(|device| self.known.contains(&device))
        });
        samples.len() < before
    }
}

fn device(sample: &Sample) -> Option<Device> {
    let chip = sample.labels.number(CHIP).map(|chip| (true, chip));
    chip.or_else(|| Some((false, sample.labels.number(CORE)?)))
}

#[cfg(test)]
mod tests {
    use model::{label::Labels, sample::Origin};

    use super::*;

    fn read(
        first: &mut FirstValues,
        second: i64,
        values: &[(&'static Descriptor, u32, f64)],
    ) -> Vec<(u32, f64)> {
        let at = Timestamp(second * 1_000_000_000);
        let sample = |&(metric, chip, value): &(&'static Descriptor, u32, f64)| Sample {
            metric: metric.into(),
            labels: Labels::one(CHIP, chip),
            value: SampleValue::Gauge(value),
            origin: Origin::Runtime,
            at,
            workload: None,
        };
        let mut samples: Vec<_> = values.iter().map(sample).collect();
        first.remove_zeros(&mut samples, at);
        let left = samples.iter().map(|sample| match sample.value {
            SampleValue::Gauge(value) => (sample.labels.number(CHIP).unwrap(), value),
            _ => panic!("{sample:?}"),
        });
        left.collect()
    }

    fn process(pid: u32) -> ProcessKey {
        ProcessKey { pid, start_ticks: 1 }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp(second * 1_000_000_000)
    }

    #[test]
    fn a_process_that_ran_before_the_agent_is_known_since_its_start() {
        let mut times = ProcessTimes::default();
        let starts = |process: ProcessKey| (process.pid == 1).then(|| at(10));
        times.observe([process(1), process(2)].into_iter(), at(100), starts);
        assert_eq!(times.youngest(&[process(1)]), Some(at(10)));
        assert_eq!(times.youngest(&[process(1), process(2)]), Some(at(100)), "no clock tells");
        // One that comes later has just opened its chips, whenever it started.
        times.observe([process(1), process(3)].into_iter(), at(200), |_| Some(at(10)));
        assert_eq!(times.youngest(&[process(3)]), Some(at(200)));
        // One that could not be seen for a while is not new.
        times.observe([process(2)].into_iter(), at(300), |_| None);
        assert_eq!(times.youngest(&[process(2)]), Some(at(100)));
        assert_eq!(times.youngest(&[]), None);
    }

    #[test]
    fn zeros_count_for_an_old_process_and_not_of_the_one_that_follows_it() {
        let zeros = [(&TPU_HBM_USED_BYTES, 0, 0.0), (&TPU_TENSORCORE_DUTY_CYCLE_RATIO, 0, 0.0)];
        let mut first = FirstValues::default();
        first.set_processes(&[process(1)], Some(at(10)));
        assert_eq!(read(&mut first, 100, &zeros).len(), 2, "it is idle");
        first.set_processes(&[process(2)], Some(at(101)));
        assert_eq!(read(&mut first, 101, &zeros), []);
        assert_eq!(read(&mut first, 102, &[(&TPU_HBM_USED_BYTES, 0, 7.0)]), [(0, 7.0)]);
        // The same pid with another start is another process.
        first.set_processes(&[ProcessKey { pid: 2, start_ticks: 9 }], Some(at(103)));
        assert_eq!(read(&mut first, 103, &zeros), []);
        assert_eq!(read(&mut first, 133, &zeros).len(), 2);
    }

    #[test]
    fn a_process_that_leaves_a_shared_endpoint_changes_nothing() {
        let zeros = [(&TPU_HBM_USED_BYTES, 0, 0.0)];
        let mut first = FirstValues::default();
        first.set_processes(&[process(1), process(2)], Some(at(10)));
        assert_eq!(read(&mut first, 11, &[(&TPU_HBM_USED_BYTES, 0, 7.0)]), [(0, 7.0)]);
        first.set_processes(&[process(2)], Some(at(10)));
        assert_eq!(read(&mut first, 12, &zeros).len(), 1);
    }

    #[test]
    fn zeros_are_unknown_at_first_and_values_later() {
        let (used, duty) = (&TPU_HBM_USED_BYTES, &TPU_TENSORCORE_DUTY_CYCLE_RATIO);
        let idle = [(used, 0, 0.0), (duty, 0, 0.0), (used, 1, 5.0), (duty, 1, 0.0)];
        let mut first = FirstValues::default();
        // A device with HBM in use is known to be idle; the other one is not known to be.
        assert_eq!(read(&mut first, 100, &idle), [(1, 5.0), (1, 0.0)]);
        assert_eq!(read(&mut first, 103, &[(used, 0, 7.0), (duty, 0, 0.0)]), [(0, 7.0), (0, 0.0)]);
        // Once it had a value, 0 is a value.
        assert_eq!(read(&mut first, 104, &[(used, 0, 0.0), (duty, 0, 0.0)]).len(), 2);
        let mut first = FirstValues::default();
        assert_eq!(read(&mut first, 0, &idle[..2]), []);
        assert_eq!(read(&mut first, 29, &idle[..2]), []);
        assert_eq!(read(&mut first, 30, &idle[..2]).len(), 2, "a process may be idle for ever");
    }
}
