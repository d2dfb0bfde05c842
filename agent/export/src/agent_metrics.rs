//! What the agent says of itself: its cost, and how its sources do, as samples.

use std::{fs, time::Duration};

use model::{
    catalog,
    label::Labels,
    metric::{Descriptor, MetricKind},
    sample::{Origin, Sample, Value},
    time::Timestamp,
};
use nix::{
    sys::{
        resource::{UsageWho, getrusage},
        time::TimeVal,
    },
    unistd::{SysconfVar, sysconf},
};

/// The figures that only the agent knows.
#[derive(Debug)]
pub struct AgentFigures<'a> {
    /// Now.
    pub at: Timestamp,
    /// When it started.
    pub started: Timestamp,
    /// Chips found on this host.
    pub chips: usize,
    /// Processes that hold them.
    pub owners: usize,
    /// The first sample is there and the sampler goes on.
    pub ready: bool,
    /// The sources.
    pub sources: &'a [SourceFigures],
}

/// The figures of one source.
#[derive(Debug, Clone)]
pub struct SourceFigures {
    /// The source.
    pub origin: Origin,
    /// Reads so far.
    pub reads: u64,
    /// Number of times a requested value was missing.
    pub errors: u64,
    /// Duration of the last read.
    pub last_read: Option<Duration>,
    /// Time since it ended.
    pub age: Option<Duration>,
    /// Series that it gives now.
    pub series: usize,
}

/// The agent's own metrics.
pub(super) fn samples(agent: &AgentFigures<'_>) -> Vec<Sample> {
    let sample = |metric: &'static Descriptor, labels: Labels, value: f64| Sample {
        metric: metric.into(),
        labels,
        value: if metric.kind == MetricKind::Counter { Value::Counter(value) } else { Value::Gauge(value) },
        origin: Origin::Agent,
        at: agent.at,
        workload: None,
    };
    let plain: [(&'static Descriptor, Option<f64>); 6] = [
        (&catalog::TPUSCOPE_START_TIME_SECONDS, Some(agent.started.0 as f64 / 1e9)),
        (&catalog::TPUSCOPE_CPU_SECONDS_TOTAL, cpu_seconds()),
        (&catalog::TPUSCOPE_RESIDENT_MEMORY_BYTES, resident_bytes()),
        (&catalog::TPUSCOPE_READY, Some(f64::from(u8::from(agent.ready)))),
        (&catalog::TPUSCOPE_CHIPS, Some(agent.chips as f64)),
        (&catalog::TPUSCOPE_OWNERS, Some(agent.owners as f64)),
    ];
    let version = Labels::one("version", env!("CARGO_PKG_VERSION"));
    let mut samples = vec![sample(&catalog::TPUSCOPE_BUILD_INFO, version, 1.0)];
    samples
        .extend(plain.into_iter().filter_map(|(metric, value)| Some(sample(metric, Labels::none(), value?))));
    for source in agent.sources {
        let values: [(&'static Descriptor, Option<f64>); 5] = [
            (&catalog::TPUSCOPE_SOURCE_READS_TOTAL, Some(source.reads as f64)),
            (&catalog::TPUSCOPE_SOURCE_ERRORS_TOTAL, Some(source.errors as f64)),
            (
                &catalog::TPUSCOPE_SOURCE_READ_DURATION_SECONDS,
                source.last_read.map(|took| took.as_secs_f64()),
            ),
            (&catalog::TPUSCOPE_SOURCE_AGE_SECONDS, source.age.map(|age| age.as_secs_f64())),
            (&catalog::TPUSCOPE_SOURCE_SERIES, Some(source.series as f64)),
        ];
        let labels = || Labels::one("source", source.origin.as_str());
        samples
            .extend(values.into_iter().filter_map(|(metric, value)| Some(sample(metric, labels(), value?))));
    }
    samples
}

fn cpu_seconds() -> Option<f64> {
    let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    Some(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// Of this process: its own /proc, whatever root the host's is mounted at.
fn resident_bytes() -> Option<f64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: f64 = statm.split(' ').nth(1)?.parse().ok()?;
    let page = sysconf(SysconfVar::PAGE_SIZE).ok()??;
    Some(pages * page as f64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_metric_of_the_agent_has_a_sample_with_its_labels() {
        let source = SourceFigures {
            origin: Origin::Sim,
            reads: 1,
            errors: 0,
            last_read: Some(Duration::from_millis(2)),
            age: Some(Duration::ZERO),
            series: 3,
        };
        let (at, started) = (Timestamp(2_000_000_000), Timestamp(1_000_000_000));
        let samples =
            samples(&AgentFigures { at, started, chips: 4, owners: 1, ready: true, sources: &[source] });
        let shown: BTreeSet<_> = samples.iter().map(|sample| sample.metric.name.as_ref()).collect();
        let listed: BTreeSet<_> = catalog::METRICS
            .iter()
            .map(|metric| metric.name.as_ref())
            .filter(|name| name.starts_with("tpuscope_"))
            .collect();
        assert_eq!(shown, listed);
        for sample in &samples {
            let labels: Vec<_> = sample.labels.iter().map(|(name, _)| name).collect();
            assert_eq!(labels, sample.metric.labels, "{}", sample.metric);
        }
    }
}
