//! The history: its bound in bytes, and that no point comes back at a wrong time.

use std::{collections::BTreeMap, time::Duration};

use model::{
    catalog::TPU_HBM_USED_BYTES,
    distribution::{Distribution, Histogram},
    label::{CORE, Labels},
    sample::Origin,
};
use proptest::prelude::*;

use super::*;

const STEP: Duration = Duration::from_secs(60);

fn sample(series: u32, at_ms: i64, value: SampleValue) -> Sample {
    Sample {
        metric: (&TPU_HBM_USED_BYTES).into(),
        labels: Labels::one(CORE, series),
        value,
        origin: Origin::Runtime,
        at: time(at_ms),
        workload: None,
    }
}

fn all(history: &History) -> Vec<HistorySeries> {
    let query = RangeQuery {
        metric: "tpu_hbm_used_bytes",
        from: Timestamp(i64::MIN),
        to: Timestamp(i64::MAX),
        points: usize::MAX,
    };
    history.query(&query)
}

/// The bytes that are really there, as far as they can be counted from inside.
fn counted(history: &History) -> usize {
    let tiers = |entry: &SeriesEntry| entry.fine.blocks.len() + entry.coarse.blocks.len();
    history.entries.iter().flatten().map(tiers).sum::<usize>() * (BLOCK + SLOT) + history.ids.len() * SERIES
}

/// A series is charged for all that it holds: key, entry, its part of the table at half load, the longest label.
#[test]
fn a_series_costs_no_more_than_it_is_charged_for() {
    let key = size_of::<SeriesKey>() + 2 * size_of::<usize>();
    let table = 2 * (size_of::<(Arc<SeriesKey>, u32)>() + 1);
    let label = 4 * model::untrusted::LABEL + 3 + model::untrusted::LABEL;
    let all = key + size_of::<Option<SeriesEntry>>() + table + label;
    assert!(all <= SERIES, "{all}");
}

#[test]
fn an_hour_of_eight_chips_fits_and_older_hours_stay_as_steps() {
    // A host with 8 chips has about 270 series; a twenty-seventh of them in as small a part of the bytes,
    // half pure noise, half steady as link health and HBM totals are.
    let mut history = History::new((8 << 20) / 27, STEP);
    let mut noise = fastrand::Rng::with_seed(7);
    for second in 0..26 * 3600 {
        for series in 0..10 {
            let value = if series % 2 == 0 { 0.0 } else { noise.f64() };
            history.push(&sample(series, second * 1000, SampleValue::Gauge(value)));
        }
    }
    assert!(history.bytes() <= (8 << 20) / 27);
    for series in all(&history) {
        let end = series.points.last().unwrap().at;
        let fine =
            series.points.windows(2).filter(|pair| pair[1].at.0 - pair[0].at.0 == 1_000_000_000).count();
        assert!(fine >= 3300, "{fine} s of fine points");
        let reach = Duration::from_nanos(u64::try_from(end.0 - series.points[0].at.0).unwrap());
        assert!(reach >= Duration::from_secs(23 * 3600), "{reach:?}");
    }
}

#[test]
fn counters_are_kept_as_rates_and_windows_as_mean_and_quantiles() {
    let mut history = History::new(1 << 16, STEP);
    for (at, total) in [(0, 100.0), (1000, 150.0), (3000, 170.0), (4000, 5.0), (5000, 6.0)] {
        history.push(&sample(0, at, SampleValue::Counter(total)));
    }
    let points: Vec<_> =
        all(&history)[0].points.iter().map(|point| (point.at.0 / 1_000_000, point.value)).collect();
    assert_eq!(points, [(1000, 50.0), (3000, 10.0), (5000, 1.0)]);

    let histogram = |counts: [u64; 4], sum| Histogram {
        since: time(0),
        bounds: [1.0, 2.0, 4.0].into(),
        counts: counts.into(),
        sum,
    };
    let before = histogram([0, 7, 0, 0], 10.0);
    let distribution = Distribution::following(histogram([0, 9, 2, 0], 19.0), &before);
    history.push(&sample(1, 0, SampleValue::Distribution(Distribution::first(before).into())));
    history.push(&sample(1, 1000, SampleValue::Distribution(distribution.into())));
    let parts: BTreeMap<_, _> = all(&history)
        .into_iter()
        .filter(|series| series.key.labels.number(CORE) == Some(1))
        .map(|series| (series.key.statistic, series.points[0].value))
        .collect();
    assert_eq!(parts.len(), 3, "the first read has no window");
    assert_eq!((parts[&Statistic::Mean], parts[&Statistic::Median]), (2.25, 2.0));
    assert!((parts[&Statistic::P99] - 3.96).abs() < 1e-6);
}

#[test]
fn a_clock_set_back_hides_what_lies_after_it() {
    let mut history = History::new(1 << 16, STEP);
    for at in (0..200_000).step_by(1000) {
        history.push(&sample(0, at, SampleValue::Gauge(1.0)));
    }
    for at in (100_500..110_500).step_by(1000) {
        history.push(&sample(0, at, SampleValue::Gauge(2.0)));
    }
    let points = &all(&history)[0].points;
    assert!(points.windows(2).all(|pair| pair[0].at < pair[1].at));
    assert_eq!(points.last().unwrap().at, time(109_500));
    assert_eq!(points.iter().filter(|point| point.value == 2.0).count(), 10);
    assert!(points.iter().all(|point| (point.value == 2.0) == (point.at >= time(100_500))));
}

#[test]
fn a_query_is_bounded_in_time_and_number() {
    let mut history = History::new(1 << 16, STEP);
    for at in (0..100_000).step_by(1000) {
        history.push(&sample(0, at, SampleValue::Gauge((at / 1000) as f64)));
    }
    let query = RangeQuery { metric: "tpu_hbm_used_bytes", from: time(10_000), to: time(29_000), points: 4 };
    let points = history.query(&query).remove(0).points;
    let shown: Vec<_> = points.iter().map(|p| (p.at.0 / 1_000_000_000, p.value, p.min, p.max)).collect();
    assert_eq!(
        shown,
        [(10, 12.0, 10.0, 14.0), (15, 17.0, 15.0, 19.0), (20, 22.0, 20.0, 24.0), (25, 27.0, 25.0, 29.0)]
    );
    assert!(history.query(&RangeQuery { metric: "other", ..query }).is_empty());
}

#[test]
fn a_series_does_not_begin_before_its_first_point() {
    let mut history = History::new(1 << 16, STEP);
    // Two whole steps and the parts of two.
    for at in (90_500..270_000).step_by(1000) {
        history.push(&sample(0, at, SampleValue::Gauge(1.0)));
    }
    let points = all(&history).remove(0).points;
    assert_eq!((points[0].at, points.len()), (time(90_500), 180));
}

#[test]
fn newer_series_push_out_the_quietest() {
    let mut history = History::new(20 * (SERIES + 2 * (BLOCK + SLOT)), STEP);
    for series in 0..1000 {
        history.push(&sample(series, i64::from(series) * 1000, SampleValue::Gauge(1.0)));
        assert!(history.bytes() <= history.budget);
    }
    let left: Vec<_> = all(&history).iter().map(|series| series.key.labels.number(CORE).unwrap()).collect();
    assert_eq!(left.len(), 20);
    assert!(left.contains(&999) && !left.contains(&0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn bytes_stay_bounded_and_times_are_those_that_were_measured(
        budget in 0_usize..40_000,
        pushes in prop::collection::vec((0_u32..12, 1_i64..200_000, 0_f32..10.0), 1..600),
    ) {
        let mut history = History::new(budget, STEP);
        let mut put: BTreeMap<u32, BTreeMap<i64, f32>> = BTreeMap::new();
        let mut at = 0;
        for (series, wait, value) in pushes {
            at += wait;
            history.push(&sample(series, at, SampleValue::Gauge(value.into())));
            put.entry(series).or_default().insert(at, value);
            prop_assert!(history.bytes() <= budget, "{} of {budget}", history.bytes());
            prop_assert_eq!(history.bytes(), counted(&history));
        }
        for series in all(&history) {
            let mine = &put[&series.key.labels.number(CORE).unwrap()];
            prop_assert!(series.points.windows(2).all(|pair| pair[0].at < pair[1].at));
            prop_assert!(series.points[0].at >= time(*mine.keys().next().unwrap()));
            for point in &series.points {
                let ms = point.at.0 / 1_000_000;
                let exact = mine.get(&ms).is_some_and(|value| f64::from(*value) == point.value);
                let end = (ms / 60_000 + 1) * 60_000;
                let step: Vec<f64> = mine.range(ms..end).map(|(_, value)| (*value).into()).collect();
                let spans = (ms % 60_000 == 0 || mine.keys().next() == Some(&ms))
                    && step.iter().copied().fold(f64::INFINITY, f64::min) == point.min
                    && step.iter().copied().fold(f64::NEG_INFINITY, f64::max) == point.max;
                prop_assert!(exact || spans, "{point:?}");
            }
        }
    }
}
