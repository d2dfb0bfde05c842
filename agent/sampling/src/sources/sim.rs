//! A believable host for demonstrations: chips that train in steps, stop for checkpoints, and never exist.
//!
//! Every sample carries the origin `sim`. Must never run beside real chips unless the settings ask for it.

use std::{borrow::Cow, future::Future, pin::Pin};

use model::{
    catalog,
    sample::{Distribution, Labels, Origin, Sample, Value},
};

use super::{Reading, Source, Tick};

const HBM: f64 = 34_359_738_368.0;
/// A step of the imagined job.
const STEP_SECONDS: f64 = 0.8;
/// It writes a checkpoint this often, and the chips wait for it this long.
const CHECKPOINT_EVERY: f64 = 120.0;
const CHECKPOINT_LASTS: f64 = 8.0;

/// The source.
pub struct Sim {
    chips: u32,
}

impl Sim {
    /// A host with so many chips.
    pub fn new(chips: u32) -> Self {
        Self { chips }
    }

    fn samples(&self, tick: &Tick) -> Vec<Sample> {
        let mut samples = Vec::new();
        for chip in 0..self.chips {
            let seconds = tick.at.0 as f64 / 1e9;
            for (metric, value) in values(seconds, chip) {
                let Some(metric) = catalog::find(metric) else { continue };
                let labels = Labels { chip: Some(chip), core: Some(chip), extra: None };
                samples.push(Sample {
                    metric: Cow::Borrowed(metric.name),
                    labels,
                    value,
                    unit: metric.unit,
                    origin: Origin::Sim,
                    at: tick.at,
                    job: None,
                });
            }
        }
        samples
    }
}

/// What one chip shows at a time.
fn values(seconds: f64, chip: u32) -> [(&'static str, Value); 7] {
    let into = seconds.rem_euclid(CHECKPOINT_EVERY);
    let waiting = into < CHECKPOINT_LASTS;
    let ripple = ((seconds / 7.0) + f64::from(chip)).sin();
    let duty = if waiting { 0.0 } else { 0.93 + 0.03 * ripple };
    let bandwidth = if waiting { 0.0 } else { 0.61 + 0.05 * ripple };
    let idle = if waiting { into } else { 0.0 };
    let queue = if waiting { 0.0 } else { 2.0 + ripple.signum() };
    // One step falls into most seconds; during a checkpoint none does.
    let steps =
        if waiting { 0 } else { (seconds / STEP_SECONDS) as u64 - ((seconds - 1.0) / STEP_SECONDS) as u64 };
    let step = STEP_SECONDS * (1.0 + 0.02 * ripple);
    let window = Distribution { bounds: vec![0.5, 1.0, 2.0], counts: vec![0, steps, 0, 0], mean: step };
    [
        ("tpu_hbm_total_bytes", Value::Gauge(HBM)),
        ("tpu_hbm_used_bytes", Value::Gauge((HBM * (0.78 + 0.01 * ripple)).round())),
        ("tpu_tensorcore_duty_cycle_ratio", Value::Gauge(duty)),
        ("tpu_hbm_bandwidth_utilization_ratio", Value::Gauge(bandwidth)),
        ("tpu_tensorcore_idle_seconds", Value::Gauge(idle)),
        ("tpu_hlo_queue_size", Value::Gauge(queue)),
        ("tpu_hlo_execution_seconds", Value::Window(window)),
    ]
}

impl Source for Sim {
    fn origin(&self) -> Origin {
        Origin::Sim
    }

    fn read<'a>(&'a mut self, tick: &'a Tick) -> Pin<Box<dyn Future<Output = Reading> + Send + 'a>> {
        Box::pin(async { Reading { samples: self.samples(tick), absent: Vec::new() } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::time::Timestamp;

    #[test]
    fn values_lie_where_real_ones_do_and_say_that_they_are_made_up() {
        let mut stalls = 0;
        for second in 1_795_000_000..1_795_000_000 + 240_i64 {
            let tick = Tick {
                at: Timestamp(second * 1_000_000_000),
                chips: [].into(),
                workloads: std::sync::Arc::default(),
            };
            let samples = Sim::new(8).samples(&tick);
            assert_eq!(samples.len(), 8 * 7);
            for sample in &samples {
                assert_eq!(sample.origin, Origin::Sim);
                let Value::Gauge(value) = sample.value else { continue };
                let most = if sample.metric.ends_with("_ratio") { 1.0 } else { HBM };
                assert!((0.0..=most).contains(&value), "{sample:?}");
                let stalled = sample.metric == "tpu_tensorcore_duty_cycle_ratio" && value == 0.0;
                stalls += u32::from(stalled);
            }
        }
        assert_eq!(stalls, 8 * 2 * 8);
    }
}
