//! The current values: a view that readers share without delaying the sampler.
//!
//! Must never show a value longer than it is fresh: some of the intervals at which its source was read with it.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use model::{
    metric::MetricRef,
    sample::{Origin, Sample},
    time::Timestamp,
};

use super::batch::Batch;
use crate::sources::Absence;

/// All current values.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// One for each source, best first.
    pub sources: Vec<Arc<SourceView>>,
}

/// The latest of one source.
#[derive(Debug, Clone)]
pub struct SourceView {
    /// The source.
    pub origin: Origin,
    /// Its last batch; `None` before its first read.
    batch: Option<Arc<Batch>>,
    /// Samples of earlier batches that the last one did not renew.
    carried: Vec<FreshSample>,
    /// For each absence of the batch, when it was first missing without a break since.
    missing_since: Vec<Timestamp>,
    /// Its counters.
    pub counters: SourceCounters,
}

/// A sample and how long it is fresh.
#[derive(Debug, Clone)]
pub struct FreshSample {
    /// The sample.
    pub sample: Sample,
    /// It is shown until then, if it is not renewed.
    pub until: Timestamp,
}

/// The counters of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SourceCounters {
    /// Reads that came to their end.
    pub reads: u64,
    /// Number of times a requested value began to be missing.
    pub errors: u64,
    /// Ticks that passed while the read before was still going on.
    pub missed: u64,
    /// Reads that were cancelled because they overran every deadline.
    pub overruns: u64,
    /// When the last read was due.
    pub read_at: Option<Timestamp>,
    /// How long it took.
    pub duration: Duration,
}

impl View {
    /// The values to show: of each metric from the best source that has a fresh one.
    pub fn samples(&self, now: Timestamp) -> Vec<&Sample> {
        let mut shown = Vec::new();
        let mut answered: HashSet<&MetricRef> = HashSet::new();
        for source in &self.sources {
            let from = shown.len();
            shown.extend(source.samples(now).filter(|sample| !answered.contains(&sample.metric)));
            answered.extend(shown[from..].iter().map(|sample| &sample.metric));
        }
        shown
    }

    /// The view of one source.
    pub fn source(&self, origin: Origin) -> Option<&SourceView> {
        self.sources.iter().find(|source| source.origin == origin).map(AsRef::as_ref)
    }

    /// This view after the wall clock was stepped by so many nanoseconds.
    pub(super) fn stepped(&self, by_ns: i64) -> Self {
        Self { sources: self.sources.iter().map(|source| Arc::new(source.stepped(by_ns))).collect() }
    }

    /// This view with one source's part replaced.
    pub(super) fn with(&self, source: Arc<SourceView>) -> Self {
        let mut sources = self.sources.clone();
        sources.retain(|known| known.origin != source.origin);
        let position = sources.partition_point(|known| rank(known.origin) < rank(source.origin));
        sources.insert(position, source);
        Self { sources }
    }
}

/// The wire wins over the SDK, which is only another client of the same services; measured values over simulated ones.
fn rank(origin: Origin) -> u8 {
    match origin {
        Origin::Runtime => 0,
        Origin::HostService => 1,
        Origin::OrbaxGrain => 2,
        Origin::Host => 3,
        Origin::Libtpu => 4,
        Origin::Trace => 5,
        Origin::Sim => 6,
        Origin::Agent => 7,
    }
}

impl SourceView {
    /// A source that has not been read yet.
    pub(super) fn new(origin: Origin) -> Self {
        Self {
            origin,
            batch: None,
            carried: Vec::new(),
            missing_since: Vec::new(),
            counters: SourceCounters::default(),
        }
    }

    fn stepped(&self, by_ns: i64) -> Self {
        let sample = |sample: &Sample| Sample { at: sample.at.stepped(by_ns), ..sample.clone() };
        let batch = self.batch.as_ref().map(|batch| {
            Arc::new(Batch {
                at: batch.at.stepped(by_ns),
                fresh_until: batch.fresh_until.stepped(by_ns),
                samples: batch.samples.iter().map(sample).collect(),
                ..Batch::clone(batch)
            })
        });
        let carried = self.carried.iter();
        let carried = carried
            .map(|fresh| FreshSample { sample: sample(&fresh.sample), until: fresh.until.stepped(by_ns) });
        Self {
            origin: self.origin,
            batch,
            carried: carried.collect(),
            missing_since: self.missing_since.iter().map(|since| since.stepped(by_ns)).collect(),
            counters: SourceCounters {
                read_at: self.counters.read_at.map(|at| at.stepped(by_ns)),
                ..self.counters
            },
        }
    }

    /// Time since its last read ended.
    pub fn age(&self, now: Timestamp) -> Option<Duration> {
        self.counters.read_at.map(|at| at.plus(self.counters.duration).age(now))
    }

    /// Its samples that are fresh.
    pub fn samples(&self, now: Timestamp) -> impl Iterator<Item = &Sample> {
        let latest = self.batch.iter().filter(move |batch| now <= batch.fresh_until);
        let carried = self.carried.iter().filter(move |value| now <= value.until).map(|value| &value.sample);
        latest.flat_map(|batch| &batch.samples).chain(carried)
    }

    /// Whether it works: its last read gave a value, or found nothing to read; a read that is overdue is a fault. `None`
    /// before its first read.
    pub fn is_up(&self, now: Timestamp) -> Option<bool> {
        let batch = self.batch.as_ref()?;
        Some(now <= batch.fresh_until && (!batch.samples.is_empty() || batch.absent.is_empty()))
    }

    /// What is missing at the moment.
    pub fn absent(&self) -> &[Absence] {
        self.batch.as_ref().map_or(&[], |batch| &batch.absent)
    }

    /// What is missing at the moment, each with the time since when.
    pub fn missing(&self) -> impl Iterator<Item = (&Absence, Timestamp)> {
        self.absent().iter().zip(self.missing_since.iter().copied())
    }

    /// Why there is nothing to read on this host. `None` if there is something.
    pub fn unused(&self) -> Option<&str> {
        self.batch.as_ref().and_then(|batch| batch.unused.as_deref())
    }

    /// This source after its next batch: what that does not renew stays until it is stale.
    pub(super) fn after(&self, batch: Arc<Batch>, counters: SourceCounters) -> Self {
        let since = |absence: &Absence| {
            let mut known = self.missing().filter(|(known, _)| known.what == absence.what);
            known.next().map(|(_, since)| since)
        };
        let known: Vec<Option<Timestamp>> = batch.absent.iter().map(since).collect();
        let errors = known.iter().filter(|since| since.is_none()).count() as u64;
        Self {
            origin: self.origin,
            carried: self.carried_over(&batch),
            missing_since: known.into_iter().map(|since| since.unwrap_or(batch.at)).collect(),
            counters: SourceCounters { errors: self.counters.errors + errors, ..counters },
            batch: Some(batch),
        }
    }

    /// The known samples that `batch` lacks and that are not stale.
    fn carried_over(&self, batch: &Batch) -> Vec<FreshSample> {
        // Almost always the same series come in the same order.
        let latest = self.batch.as_ref().map_or(&[][..], |batch| &batch.samples);
        let same = |(old, new): (&Sample, &Sample)| old.is_same_series(new);
        if self.carried.is_empty()
            && latest.len() == batch.samples.len()
            && latest.iter().zip(&batch.samples).all(same)
        {
            return Vec::new();
        }
        let mut renewed: HashMap<&MetricRef, Vec<&Sample>> = HashMap::new();
        for sample in &batch.samples {
            renewed.entry(&sample.metric).or_default().push(sample);
        }
        let is_renewed = |old: &Sample| {
            renewed.get(&old.metric).is_some_and(|new| new.iter().any(|new| old.is_same_series(new)))
        };
        let mut kept = Vec::new();
        for last in self.batch.iter().filter(|last| batch.at < last.fresh_until) {
            let gone = last.samples.iter().filter(|sample| !is_renewed(sample));
            kept.extend(gone.map(|sample| FreshSample { sample: sample.clone(), until: last.fresh_until }));
        }
        let still = self.carried.iter().filter(|old| batch.at < old.until && !is_renewed(&old.sample));
        kept.extend(still.cloned());
        kept
    }
}

#[cfg(test)]
mod tests {
    use model::{
        catalog::{TPU_HBM_TOTAL_BYTES, TPU_HBM_USED_BYTES},
        label::{CORE, Labels},
        metric::Descriptor,
        sample::SampleValue,
    };

    use super::*;

    fn sample(metric: &'static Descriptor, core: u32, value: f64, origin: Origin) -> Sample {
        Sample {
            metric: metric.into(),
            labels: Labels::one(CORE, core),
            value: SampleValue::Gauge(value),
            origin,
            at: Timestamp(0),
            workload: None,
        }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp(seconds * 1_000_000_000)
    }

    /// A source after a tick at such a second.
    fn after(
        source: &SourceView,
        second: i64,
        until: i64,
        samples: Vec<Sample>,
        absent: Vec<Absence>,
    ) -> SourceView {
        let (at, fresh_until) = (at(second), at(until));
        source.after(
            Batch { origin: source.origin, at, fresh_until, samples, absent, unused: None }.into(),
            source.counters,
        )
    }

    fn names(view: &View, now: Timestamp) -> Vec<(&str, Origin)> {
        view.samples(now).into_iter().map(|sample| (sample.metric.name.as_ref(), sample.origin)).collect()
    }

    #[test]
    fn the_wire_wins_and_the_sdk_fills_what_is_missing() {
        let wire = SourceView::new(Origin::Runtime);
        let wire =
            after(&wire, 10, 13, vec![sample(&TPU_HBM_USED_BYTES, 0, 1.0, Origin::Runtime)], Vec::new());
        let both = vec![
            sample(&TPU_HBM_USED_BYTES, 0, 2.0, Origin::Libtpu),
            sample(&TPU_HBM_TOTAL_BYTES, 0, 3.0, Origin::Libtpu),
        ];
        let sdk = after(&SourceView::new(Origin::Libtpu), 10, 40, both, Vec::new());
        let (used, total) = ("tpu_hbm_used_bytes", "tpu_hbm_total_bytes");
        let view = View::default().with(sdk.into()).with(wire.into());
        assert_eq!(names(&view, at(11)), [(used, Origin::Runtime), (total, Origin::Libtpu)]);
        // The metric service does not answer: its value becomes stale, and the value of the SDK replaces it.
        assert_eq!(names(&view, at(14)), [(used, Origin::Libtpu), (total, Origin::Libtpu)]);
        assert_eq!(names(&view, at(41)), []);
    }

    #[test]
    fn one_missed_read_makes_no_gap_and_three_end_the_series() {
        let used = |core, value| sample(&TPU_HBM_USED_BYTES, core, value, Origin::Runtime);
        let source = SourceView::new(Origin::Runtime);
        let mut source = after(&source, 0, 3, vec![used(0, 1.0), used(1, 1.0)], Vec::new());
        for now in 1..=4 {
            // The interval gets longer: what was read at the old one is not shown for longer.
            source = after(&source, now, now + 10, vec![used(1, 2.0)], Vec::new());
            let left = source.samples(at(now)).count();
            assert_eq!(left, if now < 3 { 2 } else { 1 }, "{now}");
        }
    }

    #[test]
    fn a_source_is_up_while_it_gives_values_or_has_nothing_to_read() {
        let missing = || vec![Absence::new("a", "gone")];
        let used = || vec![sample(&TPU_HBM_USED_BYTES, 0, 1.0, Origin::Runtime)];
        let source = SourceView::new(Origin::Runtime);
        assert_eq!(source.is_up(at(0)), None);
        for (samples, absent, up) in [
            (used(), Vec::new(), true),
            (used(), missing(), true),
            (Vec::new(), Vec::new(), true),
            (Vec::new(), missing(), false),
        ] {
            let source = after(&source, 0, 3, samples, absent);
            assert_eq!((source.is_up(at(3)), source.is_up(at(4))), (Some(up), Some(false)));
        }
    }

    #[test]
    fn an_absence_has_the_time_when_it_began() {
        let missing = |what: &str| Absence::new(what, "gone");
        let mut source = SourceView::new(Origin::Runtime);
        for (now, absent, since) in [
            (0, vec![missing("a")], vec![0]),
            (1, vec![missing("b"), missing("a")], vec![1, 0]),
            (2, vec![missing("b")], vec![1]),
            (3, vec![missing("a")], vec![3]),
        ] {
            source = after(&source, now, now + 3, Vec::new(), absent);
            let shown: Vec<_> = source.missing().map(|(_, since)| since).collect();
            assert_eq!(shown, since.into_iter().map(at).collect::<Vec<_>>(), "{now}");
        }
    }

    #[test]
    fn an_error_is_counted_when_it_begins() {
        let missing = |what: &str| Absence::new(what, "gone");
        let mut source = SourceView::new(Origin::Runtime);
        for (now, absent, errors) in [
            (0, vec![missing("a")], 1),
            (1, vec![missing("a"), missing("b")], 2),
            (2, vec![], 2),
            (3, vec![missing("a")], 3),
        ] {
            source = after(&source, now, now + 3, Vec::new(), absent);
            assert_eq!(source.counters.errors, errors, "{now}");
        }
    }
}
