//! Reading the history: coarse points before the start of the fine ones, reduced to the requested step.

#![expect(clippy::cast_precision_loss, reason = "a group has few points")]

use model::time::Timestamp;

use super::{Arena, History, SeriesEntry, SeriesKey, Tier, time};

/// Which points are wanted.
#[derive(Debug, Clone, Copy)]
pub struct RangeQuery<'a> {
    /// Metric name.
    pub metric: &'a str,
    /// Not before.
    pub from: Timestamp,
    /// Not after.
    pub to: Timestamp,
    /// At most so many points a series; neighbours are combined.
    pub points: usize,
}

/// One point: a measured value, or what is left of several.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HistoryPoint {
    /// When it was measured; of several, the first's time, or the start of their step. Never before the first point of the
    /// series.
    pub at: Timestamp,
    /// Its value, or their mean.
    pub value: f64,
    /// Their minimum.
    pub min: f64,
    /// Their maximum.
    pub max: f64,
}

/// A series and its points, times rising.
#[derive(Debug, Clone, PartialEq)]
pub struct HistorySeries {
    /// The series.
    pub key: SeriesKey,
    /// The points.
    pub points: Vec<HistoryPoint>,
}

impl History {
    /// All series of a metric that have points in the range.
    pub fn query(&self, query: &RangeQuery<'_>) -> Vec<HistorySeries> {
        let wanted = |entry: &&SeriesEntry| entry.key.metric.name == query.metric;
        let mut found: Vec<HistorySeries> = self
            .entries
            .iter()
            .flatten()
            .filter(wanted)
            .map(|entry| HistorySeries {
                key: SeriesKey::clone(&entry.key),
                points: self.points(entry, query),
            })
            .filter(|series| !series.points.is_empty())
            .collect();
        found.sort_by(|a, b| (&a.key.labels, a.key.statistic).cmp(&(&b.key.labels, b.key.statistic)));
        found
    }

    fn points(&self, entry: &SeriesEntry, query: &RangeQuery<'_>) -> Vec<HistoryPoint> {
        let mut fine = Vec::new();
        entry.fine.each(&self.arena, |at, [value]| fine.push(point(at, value, value, value)));
        let begin = fine.first().map_or(Timestamp(i64::MAX), |first| first.at);
        let mut points = Vec::new();
        entry.coarse.each(&self.arena, |at, [mean, min, max]| {
            if time(at) < begin {
                points.push(point(at, mean, min, max));
            }
        });
        points.append(&mut fine);
        points.retain(|point| (query.from..=query.to).contains(&point.at));
        thin(points, query.points.max(1))
    }
}

fn point(at: i64, value: f32, min: f32, max: f32) -> HistoryPoint {
    HistoryPoint { at: time(at), value: value.into(), min: min.into(), max: max.into() }
}

impl<const COLUMNS: usize> Tier<COLUMNS> {
    /// All points in order of time. A block ends where the next one begins, whatever else it holds: the clock was set
    /// back in between.
    fn each(&self, arena: &Arena, mut with: impl FnMut(i64, [f32; COLUMNS])) {
        for (place, block) in self.blocks.iter().enumerate() {
            let end = self.blocks.get(place + 1).map_or(i64::MAX, |next| arena.blocks[*next as usize].first);
            let block = &arena.blocks[*block as usize];
            block.points().take_while(|(at, _)| *at < end).for_each(|(at, values)| with(at, values));
        }
    }
}

/// At most `most` points, each the mean of equally many neighbours.
fn thin(points: Vec<HistoryPoint>, most: usize) -> Vec<HistoryPoint> {
    if points.len() <= most {
        return points;
    }
    let group = points.len().div_ceil(most);
    let combine = |group: &[HistoryPoint]| HistoryPoint {
        at: group[0].at,
        value: group.iter().map(|point| point.value).sum::<f64>() / group.len() as f64,
        min: group.iter().map(|point| point.min).fold(f64::INFINITY, f64::min),
        max: group.iter().map(|point| point.max).fold(f64::NEG_INFINITY, f64::max),
    };
    points.chunks(group).map(combine).collect()
}
