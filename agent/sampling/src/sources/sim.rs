//! A simulated host for demonstrations: chips that train in steps and stop for checkpoints.
//!
//! Every sample carries the origin `sim`. Must never run beside real chips unless the settings ask for it.

#![expect(clippy::cast_precision_loss, reason = "values of a simulation")]

use std::{future::Future, pin::Pin, sync::Arc};

use model::{
    catalog::{
        TPU_HBM_BANDWIDTH_UTILIZATION_RATIO, TPU_HBM_TOTAL_BYTES, TPU_HBM_USED_BYTES,
        TPU_HLO_EXECUTION_SECONDS, TPU_HLO_QUEUE_SIZE, TPU_TENSORCORE_DUTY_CYCLE_RATIO,
        TPU_TENSORCORE_IDLE_SECONDS,
    },
    distribution::{Distribution, Histogram},
    label::{CHIP, CORE, Labels},
    metric::Descriptor,
    sample::{Origin, Sample, SampleValue},
    time::Timestamp,
};

use super::{Reading, Source, Tick};

const HBM: f64 = 34_359_738_368.0;
/// A step of the simulated job.
const STEP_SECONDS: f64 = 0.8;
/// It writes a checkpoint this often, and the chips wait for it this long.
const CHECKPOINT_EVERY: f64 = 120.0;
const CHECKPOINT_LASTS: f64 = 8.0;
/// Steps are counted for no more seconds than this at a time: the clock may have been set.
const LONGEST_GAP: i64 = 3600;

/// The bounds of a step's buckets, in seconds.
const STEP_BOUNDS: [f64; 3] = [0.5, 1.0, 2.0];

/// The source.
pub struct SimSource {
    chips: Vec<SimulatedChip>,
}

/// What is remembered of one chip.
#[derive(Default)]
struct SimulatedChip {
    /// The steps up to this second are counted.
    counted: Option<i64>,
    steps: Option<Arc<Distribution>>,
}

impl SimSource {
    /// A host with so many chips.
    pub fn new(chips: u32) -> Self {
        Self { chips: (0..chips).map(|_| SimulatedChip::default()).collect() }
    }

    fn samples(&mut self, tick: &Tick) -> Vec<Sample> {
        let mut samples = Vec::new();
        // A simulated value must not look like one of a real chip.
        let first = tick.host.chips.iter().map(|chip| chip.index.0.saturating_add(1)).max().unwrap_or(0);
        for (chip, simulated) in (first..).zip(&mut self.chips) {
            let steps = simulated.count_steps(chip, tick.at);
            let levels = values(tick.at.0 as f64 / 1e9, chip)
                .map(|(metric, value)| (metric, SampleValue::Gauge(value)));
            let steps = [(&TPU_HLO_EXECUTION_SECONDS, SampleValue::Distribution(steps))];
            for (metric, value) in levels.into_iter().chain(steps) {
                samples.push(Sample {
                    metric: metric.into(),
                    labels: Labels::one(CHIP, chip).with(CORE, chip),
                    value,
                    origin: Origin::Sim,
                    at: tick.at,
                    workload: None,
                });
            }
        }
        samples
    }
}

impl SimulatedChip {
    /// Counts the steps that ended since the last tick; the first one counts none.
    fn count_steps(&mut self, chip: u32, at: Timestamp) -> Arc<Distribution> {
        let second = at.0.div_euclid(1_000_000_000);
        let since = self.counted.replace(second).unwrap_or(second).max(second - LONGEST_GAP);
        let mut histogram = self.steps.as_ref().map_or_else(
            || Histogram { since: at, bounds: STEP_BOUNDS.into(), counts: vec![0; 4], sum: 0.0 },
            |steps| steps.histogram.clone(),
        );
        for second in since..second {
            let seconds = second as f64;
            if seconds.rem_euclid(CHECKPOINT_EVERY) >= CHECKPOINT_LASTS {
                let ended =
                    (((seconds + 1.0) / STEP_SECONDS).floor() - (seconds / STEP_SECONDS).floor()).max(0.0);
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a whole number of steps of one second, not negative"
                )]
                let steps = ended as u64;
                histogram.counts[1] += steps;
                histogram.sum += ended * STEP_SECONDS * (1.0 + 0.02 * ripple(seconds, chip));
            }
        }
        let next = Arc::new(match &self.steps {
            Some(before) => Distribution::following(histogram, &before.histogram),
            None => Distribution::first(histogram),
        });
        self.steps = Some(next.clone());
        next
    }
}

/// How far a chip is from the middle of its range, -1 to 1.
fn ripple(seconds: f64, chip: u32) -> f64 {
    ((seconds / 7.0) + f64::from(chip)).sin()
}

/// What one chip shows at a time.
fn values(seconds: f64, chip: u32) -> [(&'static Descriptor, f64); 6] {
    let into = seconds.rem_euclid(CHECKPOINT_EVERY);
    let waiting = into < CHECKPOINT_LASTS;
    let ripple = ripple(seconds, chip);
    let while_training = |value: f64| if waiting { 0.0 } else { value };
    [
        (&TPU_HBM_TOTAL_BYTES, HBM),
        (&TPU_HBM_USED_BYTES, (HBM * (0.78 + 0.01 * ripple)).round()),
        (&TPU_TENSORCORE_DUTY_CYCLE_RATIO, while_training(0.93 + 0.03 * ripple)),
        (&TPU_HBM_BANDWIDTH_UTILIZATION_RATIO, while_training(0.61 + 0.05 * ripple)),
        (&TPU_TENSORCORE_IDLE_SECONDS, if waiting { into } else { 0.0 }),
        (&TPU_HLO_QUEUE_SIZE, while_training(2.0 + ripple.signum())),
    ]
}

impl Source for SimSource {
    fn origin(&self) -> Origin {
        Origin::Sim
    }

    fn read<'a>(&'a mut self, tick: &'a Tick) -> Pin<Box<dyn Future<Output = Reading> + Send + 'a>> {
        Box::pin(async { Reading { samples: self.samples(tick), ..Reading::default() } })
    }
}

#[cfg(test)]
mod tests {
    use model::{metric::MetricRef, snapshot::HostSnapshot};

    use super::*;

    fn tick(second: i64) -> Tick {
        Tick { at: Timestamp(second * 1_000_000_000), host: HostSnapshot::default() }
    }

    #[test]
    fn values_lie_where_real_ones_do_and_say_that_they_are_simulated() {
        let (mut stalls, mut sim) = (0, SimSource::new(8));
        for second in 1_795_000_000..1_795_000_000 + 240_i64 {
            let samples = sim.samples(&tick(second));
            assert_eq!(samples.len(), 8 * 7);
            for sample in &samples {
                assert_eq!(sample.origin, Origin::Sim);
                let SampleValue::Gauge(value) = sample.value else { continue };
                let most = if sample.metric.name.ends_with("_ratio") { 1.0 } else { HBM };
                assert!((0.0..=most).contains(&value), "{sample:?}");
                let duty = sample.metric == MetricRef::from(&TPU_TENSORCORE_DUTY_CYCLE_RATIO);
                stalls += u32::from(duty && value == 0.0);
            }
        }
        assert_eq!(stalls, 8 * 2 * 8);
    }

    #[test]
    fn simulated_chips_have_indices_of_their_own() {
        let chip =
            |index| model::device::Chip { index: model::device::ChipIndex(index), ..Default::default() };
        let host = HostSnapshot { chips: vec![chip(0), chip(4)].into(), ..HostSnapshot::default() };
        let samples = SimSource::new(2).samples(&Tick { host, ..tick(960) });
        let indices: std::collections::BTreeSet<_> =
            samples.iter().filter_map(|sample| sample.labels.number(CHIP)).collect();
        assert_eq!(indices.into_iter().collect::<Vec<_>>(), [5, 6]);
    }

    #[test]
    fn steps_are_counted_since_the_start_and_in_windows() {
        let mut sim = SimSource::new(1);
        // 120 s without a checkpoint's 8 s have 140 steps of 0.8 s; the windows have them all.
        let mut in_windows = 0;
        let mut last = None;
        for second in (960..=1080).step_by(5) {
            let samples = sim.samples(&tick(second));
            let SampleValue::Distribution(steps) = &samples[6].value else { panic!("{samples:?}") };
            in_windows += steps.window.as_ref().map_or(0, |window| window.count());
            last = Some(steps.clone());
        }
        let last = last.unwrap();
        assert_eq!((last.histogram.count(), in_windows, last.histogram.since), (140, 140, tick(960).at));
        let mean = last.histogram.sum / 140.0;
        assert!((0.78..0.82).contains(&mean), "{mean}");
    }
}
