//! The agent's own metrics of this crate: how each source is read.

#![expect(clippy::cast_precision_loss, reason = "the values of Prometheus are f64")]

use metrics::{Counter, Gauge, Unit, counter, describe_counter, describe_gauge, gauge};
use model::{sample::Origin, time::Timestamp};

use crate::sampler::{SourceCounters, View};

const READS: &str = "tpuscope_source_reads_total";
const ERRORS: &str = "tpuscope_source_errors_total";
const MISSED: &str = "tpuscope_source_missed_ticks_total";
const OVERRUNS: &str = "tpuscope_source_overruns_total";
const DURATION: &str = "tpuscope_source_read_duration_seconds";
const AGE: &str = "tpuscope_source_age_seconds";
const UP: &str = "tpuscope_source_up";
const SERIES: &str = "tpuscope_source_series";
const CHILD_FAILURES: &str = "tpuscope_libtpu_child_failures_total";

/// Describes the metrics of this crate.
pub fn describe() {
    describe_counter!(READS, "Reads of the source.");
    describe_counter!(ERRORS, "Number of times a requested value began to be missing.");
    describe_counter!(MISSED, "Ticks that passed while the read before was still going on.");
    describe_counter!(OVERRUNS, "Reads that were cancelled because they exceeded every deadline.");
    describe_gauge!(DURATION, Unit::Seconds, "Duration of the last read of the source.");
    describe_gauge!(AGE, Unit::Seconds, "Time since the last read of the source ended.");
    describe_gauge!(
        UP,
        "1 when the last read of the source gave a value or found nothing to read, 0 when it gave only faults or is overdue."
    );
    describe_gauge!(SERIES, "Series that the source gives now.");
    describe_counter!(CHILD_FAILURES, "Number of times the libtpu child ended or could not be started.");
}

/// The metrics of one source, looked up once: a look-up at each read would cost more than the rest.
pub(crate) struct SourceMetrics {
    reads: Counter,
    errors: Counter,
    missed: Counter,
    overruns: Counter,
    duration: Gauge,
}

impl SourceMetrics {
    /// Those of the source of this origin.
    pub(crate) fn new(origin: Origin) -> Self {
        let name = origin.as_str();
        Self {
            reads: counter!(READS, "source" => name),
            errors: counter!(ERRORS, "source" => name),
            missed: counter!(MISSED, "source" => name),
            overruns: counter!(OVERRUNS, "source" => name),
            duration: gauge!(DURATION, "source" => name),
        }
    }

    /// Sets them after a read.
    pub(crate) fn read(&self, counters: &SourceCounters) {
        self.reads.absolute(counters.reads);
        self.errors.absolute(counters.errors);
        self.missed.absolute(counters.missed);
        self.overruns.absolute(counters.overruns);
        self.duration.set(counters.duration.as_secs_f64());
    }
}

/// Sets the metrics that change between two reads.
pub fn update(view: &View, now: Timestamp) {
    for source in &view.sources {
        let name = source.origin.as_str();
        if let Some(age) = source.age(now) {
            gauge!(AGE, "source" => name).set(age.as_secs_f64());
        }
        if let Some(up) = source.is_up(now) {
            gauge!(UP, "source" => name).set(f64::from(u8::from(up)));
        }
        gauge!(SERIES, "source" => name).set(source.samples(now).count() as f64);
    }
}

/// Counts an unexpected end of the libtpu child.
pub(crate) fn child_failed() {
    counter!(CHILD_FAILURES).increment(1);
}
