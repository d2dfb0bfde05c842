//! The first values of a workload: in its first seconds the runtime serves 0 for the HBM in use and for the duty cycle of
//! a chip that already works. Such a pair is unknown, not idleness.
//!
//! Must never take away a value of a device that once had another than 0.

use std::{collections::HashSet, time::Duration};

use model::{
    catalog::{TPU_HBM_USED_BYTES, TPU_TENSORCORE_DUTY_CYCLE_RATIO},
    label::{CHIP, CORE},
    metric::Descriptor,
    sample::{Sample, SampleValue},
    time::Timestamp,
};

/// How long zeros count as unknown. On real hardware the right values came 3 s after the first zeros.
const ZEROS_UNKNOWN: Duration = Duration::from_secs(30);

/// Why the values are missing.
pub(super) const WHY: &str = "the runtime gives 0 for HBM in use and duty cycle in the first seconds of a process, also of \
                              one that works: unknown until another value comes, or for 30 s";

/// A chip, or a core whose chip is not known.
type Device = (bool, u32);

/// What is known of the values of one endpoint since its workload began.
#[derive(Debug, Default)]
pub(super) struct FirstValues {
    since: Option<Timestamp>,
    /// Devices that had another value than 0.
    known: HashSet<Device>,
}

impl FirstValues {
    /// Whether a metric may be served as 0 at first.
    pub(super) fn concerns(metric: &Descriptor) -> bool {
        std::ptr::eq(metric, &TPU_HBM_USED_BYTES) || std::ptr::eq(metric, &TPU_TENSORCORE_DUTY_CYCLE_RATIO)
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
