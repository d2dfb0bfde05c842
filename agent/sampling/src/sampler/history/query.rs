//! Reading the history: coarse points up to where the fine ones begin, thinned to what was asked for.

use model::time::Timestamp;

use super::{Arena, Entry, History, Key, Tier, time};

/// What is wanted.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
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
pub struct Point {
    /// When it was measured; of several, the first's time, or the begin of their step.
    pub at: Timestamp,
    /// Its value, or their mean.
    pub value: f64,
    /// The least of them.
    pub least: f64,
    /// The most of them.
    pub most: f64,
}

/// A series and its points, times rising.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// What it is.
    pub key: Key,
    /// The points.
    pub points: Vec<Point>,
}

impl History {
    /// All series of a metric that have points in the range.
    pub fn query(&self, query: &Query<'_>) -> Vec<Series> {
        let wanted = |entry: &&Entry| entry.key.metric == query.metric;
        let mut found: Vec<Series> = self
            .entries
            .iter()
            .flatten()
            .filter(wanted)
            .map(|entry| Series { key: entry.key.clone(), points: self.points(entry, query) })
            .filter(|series| !series.points.is_empty())
            .collect();
        found.sort_by(|a, b| (&a.key.labels, a.key.part).cmp(&(&b.key.labels, b.key.part)));
        found
    }

    fn points(&self, entry: &Entry, query: &Query<'_>) -> Vec<Point> {
        let mut fine = Vec::new();
        entry.fine.each(&self.arena, |at, [value]| fine.push(point(at, value, value, value)));
        let begin = fine.first().map_or(Timestamp(i64::MAX), |first| first.at);
        let mut points = Vec::new();
        entry.coarse.each(&self.arena, |at, [mean, least, most]| {
            if time(at) < begin {
                points.push(point(at, mean, least, most));
            }
        });
        points.append(&mut fine);
        points.retain(|point| (query.from..=query.to).contains(&point.at));
        thin(points, query.points.max(1))
    }
}

fn point(at: i64, value: f32, least: f32, most: f32) -> Point {
    Point { at: time(at), value: value.into(), least: least.into(), most: most.into() }
}

impl<const COLUMNS: usize> Tier<COLUMNS> {
    /// All points in order of time. A page ends where the next one begins, whatever else it holds: the clock was set
    /// back in between.
    fn each(&self, arena: &Arena, mut with: impl FnMut(i64, [f32; COLUMNS])) {
        for (place, page) in self.pages.iter().enumerate() {
            let end = self.pages.get(place + 1).map_or(i64::MAX, |next| arena.pages[*next as usize].first);
            let page = &arena.pages[*page as usize];
            page.points().take_while(|(at, _)| *at < end).for_each(|(at, values)| with(at, values));
        }
    }
}

/// At most `most` points, each the mean of equally many neighbours.
fn thin(points: Vec<Point>, most: usize) -> Vec<Point> {
    if points.len() <= most {
        return points;
    }
    let group = points.len().div_ceil(most);
    let combine = |group: &[Point]| Point {
        at: group[0].at,
        value: group.iter().map(|point| point.value).sum::<f64>() / group.len() as f64,
        least: group.iter().map(|point| point.least).fold(f64::INFINITY, f64::min),
        most: group.iter().map(|point| point.most).fold(f64::NEG_INFINITY, f64::max),
    };
    points.chunks(group).map(combine).collect()
}
