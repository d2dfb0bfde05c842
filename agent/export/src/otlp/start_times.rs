//! Since when each counter counts: OTLP wants that of every sum, and a sample does not say it.
//!
//! A counter starts when it is first seen, and again when it fell; the agent's own start with the agent. Bounded: what is not
//! rendered any more is forgotten. Must never give a start that is after the point itself.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use model::{
    sample::{Origin, Sample},
    time::Timestamp,
};

/// The starts of the counters of the last rendering.
#[derive(Debug)]
pub(super) struct StartTimes {
    /// When the agent started.
    agent: Timestamp,
    /// By a hash of the series: two that share one would only share a start.
    counters: HashMap<u64, CountedSeries>,
    rendering: u64,
}

#[derive(Debug)]
struct CountedSeries {
    since: Timestamp,
    value: f64,
    at: Timestamp,
    rendering: u64,
}

impl StartTimes {
    /// Those of an agent that started at `agent`.
    pub(super) fn new(agent: Timestamp) -> Self {
        Self { agent, counters: HashMap::new(), rendering: 0 }
    }

    /// The start of a counter that has `value` at `at`.
    pub(super) fn of(&mut self, sample: &Sample, value: f64, at: Timestamp) -> Timestamp {
        if sample.origin == Origin::Agent && sample.workload.is_none() {
            return self.agent.min(at);
        }
        let now = CountedSeries { since: at, value, at, rendering: self.rendering };
        let known = self.counters.entry(key(sample)).or_insert(now);
        // It began anew after the point before; a clock that was set back must not put the start after the point.
        let since = if value < known.value { known.at } else { known.since };
        *known = CountedSeries { since: since.min(at), value, at, rendering: self.rendering };
        known.since
    }

    /// Ends a rendering: counters that it did not have are forgotten.
    pub(super) fn rendered(&mut self) {
        self.counters.retain(|_, counted| counted.rendering == self.rendering);
        self.rendering += 1;
    }
}

fn key(sample: &Sample) -> u64 {
    let mut hasher = DefaultHasher::new();
    sample.metric.hash(&mut hasher);
    sample.labels.hash(&mut hasher);
    sample.origin.hash(&mut hasher);
    sample.workload_label().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use model::{catalog::HOST_CPU_SECONDS_TOTAL, label::Labels, sample::SampleValue};

    use super::*;

    fn counter(mode: &'static str, origin: Origin) -> Sample {
        Sample {
            metric: (&HOST_CPU_SECONDS_TOTAL).into(),
            labels: Labels::one("mode", mode),
            value: SampleValue::Counter(0.0),
            origin,
            at: Timestamp(0),
            workload: None,
        }
    }

    #[test]
    fn a_counter_starts_when_it_is_first_seen_and_again_when_it_fell() {
        let mut starts = StartTimes::new(Timestamp(1));
        let (user, idle) = (counter("user", Origin::Host), counter("idle", Origin::Host));
        let mut render = |user_value: f64, at: i64| {
            let since = starts.of(&user, user_value, Timestamp(at)).0;
            starts.rendered();
            since
        };
        assert_eq!(
            [render(5.0, 10), render(6.0, 20), render(6.0, 30), render(1.0, 40), render(2.0, 50)],
            [10, 10, 10, 30, 30]
        );
        // The clock was set back: the start is never after the point.
        assert_eq!([render(3.0, 25), render(4.0, 60)], [25, 25]);
        assert_eq!(starts.of(&idle, 1.0, Timestamp(70)), Timestamp(70));
        starts.rendered();
        // It was gone for a rendering.
        assert_eq!(starts.of(&user, 9.0, Timestamp(80)), Timestamp(80));
        assert_eq!(starts.counters.len(), 2);
        starts.rendered();
        assert_eq!(starts.counters.len(), 1);
    }

    #[test]
    fn what_the_agent_counts_itself_starts_with_it() {
        let mut starts = StartTimes::new(Timestamp(100));
        let own = counter("user", Origin::Agent);
        assert_eq!(starts.of(&own, 5.0, Timestamp(200)), Timestamp(100));
        assert_eq!(starts.of(&own, 5.0, Timestamp(50)), Timestamp(50));
        assert!(starts.counters.is_empty());
    }
}
