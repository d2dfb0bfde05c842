//! What is known at the moment: a snapshot that readers share without holding the sampler up.
//!
//! Must never show a value longer than it is fresh: some of the intervals at which its source was read with it.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use model::{
    sample::{Origin, Sample},
    time::Timestamp,
};

use crate::sources::{Absence, Reading};

/// Everything known at the moment.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// One for each source, best first.
    pub sources: Vec<Arc<SourceView>>,
}

/// What one source gave, and how it fares.
#[derive(Debug, Clone)]
pub struct SourceView {
    /// Which.
    pub origin: Origin,
    /// Its latest values.
    pub values: Vec<Fresh>,
    /// What is missing at the moment.
    pub absent: Vec<Absence>,
    /// How it fares.
    pub status: Status,
}

/// A value and how long it is fresh.
#[derive(Debug, Clone)]
pub struct Fresh {
    /// The value.
    pub sample: Sample,
    /// It is shown until then, if it is not renewed.
    pub until: Timestamp,
}

/// How a source fares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Status {
    /// Reads that came to their end.
    pub reads: u64,
    /// How often something that was there before, or was asked for the first time, turned out missing: counted when it
    /// begins, not for as long as it lasts.
    pub errors: u64,
    /// Ticks that passed while the read before was still going on.
    pub missed: u64,
    /// Reads that were given up because they overran every deadline.
    pub overruns: u64,
    /// When the last read was due.
    pub read_at: Option<Timestamp>,
    /// How long it took.
    pub took: Duration,
}

impl View {
    /// The values to show: of each metric from the best source that has a fresh one.
    pub fn samples(&self, now: Timestamp) -> Vec<&Sample> {
        let mut shown = Vec::new();
        let mut answered: HashSet<&str> = HashSet::new();
        for source in &self.sources {
            let from = shown.len();
            shown.extend(source.samples(now).filter(|sample| !answered.contains(sample.metric.as_ref())));
            answered.extend(shown[from..].iter().map(|sample| sample.metric.as_ref()));
        }
        shown
    }

    /// The view of one source.
    pub fn source(&self, origin: Origin) -> Option<&SourceView> {
        self.sources.iter().find(|source| source.origin == origin).map(AsRef::as_ref)
    }

    /// This view with one source's part replaced.
    pub(super) fn with(&self, source: Arc<SourceView>) -> Self {
        let mut sources = self.sources.clone();
        sources.retain(|known| known.origin != source.origin);
        let place = sources.partition_point(|known| rank(known.origin) < rank(source.origin));
        sources.insert(place, source);
        Self { sources }
    }
}

/// The wire wins over the SDK, which is only another client of the same services; what is measured over what is made up.
fn rank(origin: Origin) -> u8 {
    match origin {
        Origin::Runtime => 0,
        Origin::HostService => 1,
        Origin::OrbaxGrain => 2,
        Origin::Host => 3,
        Origin::Libtpu => 4,
        Origin::Sim => 5,
    }
}

impl SourceView {
    /// A source that has not been read yet.
    pub(super) fn new(origin: Origin) -> Self {
        Self { origin, values: Vec::new(), absent: Vec::new(), status: Status::default() }
    }

    /// Time since its last read ended.
    pub fn age(&self, now: Timestamp) -> Option<Duration> {
        self.status.read_at.map(|at| at.plus(self.status.took).age(now))
    }

    /// Its values that are fresh.
    pub fn samples(&self, now: Timestamp) -> impl Iterator<Item = &Sample> {
        let fresh = move |value: &&Fresh| now <= value.until;
        self.values.iter().filter(fresh).map(|value| &value.sample)
    }

    /// This source after a reading that is fresh until then: what it does not renew stays until it is stale.
    pub(super) fn after(&self, reading: Reading, status: Status, until: Timestamp) -> Self {
        let began = |absence: &&Absence| !self.absent.iter().any(|known| known.what == absence.what);
        let errors = reading.absent.iter().filter(began).count() as u64;
        let mut values: Vec<Fresh> =
            reading.samples.into_iter().map(|sample| Fresh { sample, until }).collect();
        if let Some(at) = status.read_at {
            self.carry_over(&mut values, at);
        }
        Self {
            values,
            absent: reading.absent,
            status: Status { errors: self.status.errors + errors, ..status },
            origin: self.origin,
        }
    }

    /// Adds the known values that `values` lacks and that are not stale.
    fn carry_over(&self, values: &mut Vec<Fresh>, at: Timestamp) {
        // Almost always the same series come in the same order.
        let same = |(old, new): (&Fresh, &Fresh)| same_series(&old.sample, &new.sample);
        if self.values.len() == values.len() && self.values.iter().zip(values.iter()).all(same) {
            return;
        }
        let mut renewed: HashMap<_, Vec<&Fresh>> = HashMap::new();
        for value in values.iter() {
            renewed.entry(value.sample.metric.as_ref()).or_default().push(value);
        }
        let kept: Vec<Fresh> = self
            .values
            .iter()
            .filter(|old| at < old.until)
            .filter(|old| {
                let metric = renewed.get(old.sample.metric.as_ref());
                !metric.is_some_and(|new| new.iter().any(|new| same_series(&old.sample, &new.sample)))
            })
            .cloned()
            .collect();
        values.extend(kept);
    }
}

fn same_series(a: &Sample, b: &Sample) -> bool {
    a.metric == b.metric && a.labels == b.labels && a.job == b.job
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use model::sample::{Labels, Unit, Value};

    fn sample(metric: &'static str, core: u32, value: f64, origin: Origin) -> Sample {
        Sample {
            metric: Cow::Borrowed(metric),
            labels: Labels { core: Some(core), ..Labels::default() },
            value: Value::Gauge(value),
            unit: Unit::Bytes,
            origin,
            at: Timestamp(0),
            job: None,
        }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp(seconds * 1_000_000_000)
    }

    /// Of a read at such a second.
    fn read(seconds: i64) -> Status {
        Status { read_at: Some(at(seconds)), ..Status::default() }
    }

    fn reading(samples: Vec<Sample>) -> Reading {
        Reading { samples, absent: Vec::new() }
    }

    fn names(view: &View, now: Timestamp) -> Vec<(&str, Origin)> {
        view.samples(now).into_iter().map(|sample| (sample.metric.as_ref(), sample.origin)).collect()
    }

    #[test]
    fn the_wire_wins_and_the_sdk_fills_what_is_missing() {
        let wire = SourceView::new(Origin::Runtime).after(
            reading(vec![sample("used", 0, 1.0, Origin::Runtime)]),
            read(10),
            at(13),
        );
        let sdk = SourceView::new(Origin::Libtpu).after(
            reading(vec![sample("used", 0, 2.0, Origin::Libtpu), sample("total", 0, 3.0, Origin::Libtpu)]),
            read(10),
            at(40),
        );
        let view = View::default().with(sdk.into()).with(wire.into());
        assert_eq!(names(&view, at(11)), [("used", Origin::Runtime), ("total", Origin::Libtpu)]);
        // The wire falls silent: its value gets stale, and the SDK's takes its place.
        assert_eq!(names(&view, at(14)), [("used", Origin::Libtpu), ("total", Origin::Libtpu)]);
        assert_eq!(names(&view, at(41)), []);
    }

    #[test]
    fn one_missed_read_makes_no_gap_and_three_end_the_series() {
        let both = || vec![sample("used", 0, 1.0, Origin::Runtime), sample("used", 1, 1.0, Origin::Runtime)];
        let mut source = SourceView::new(Origin::Runtime).after(reading(both()), read(0), at(3));
        for now in 1..=4 {
            source = source.after(
                reading(vec![sample("used", 1, 2.0, Origin::Runtime)]),
                read(now),
                // The pace gets slower: what was read at the old one is not shown for longer.
                at(now + 10),
            );
            let left = source.samples(at(now)).count();
            assert_eq!(left, if now < 3 { 2 } else { 1 }, "{now}");
        }
    }

    #[test]
    fn an_error_is_counted_when_it_begins() {
        let missing = |what: &str| Absence { what: what.into(), why: "gone".into() };
        let mut source = SourceView::new(Origin::Runtime);
        for (now, absent, errors) in [
            (0, vec![missing("a")], 1),
            (1, vec![missing("a"), missing("b")], 2),
            (2, vec![], 2),
            (3, vec![missing("a")], 3),
        ] {
            source = source.after(Reading { samples: Vec::new(), absent }, source.status, at(now + 3));
            assert_eq!(source.status.errors, errors, "{now}");
        }
    }
}
