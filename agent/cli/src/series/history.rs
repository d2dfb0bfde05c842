//! `tpuscope history`.

use std::{collections::BTreeSet, fmt::Write};

use model::unit::Duration;
use proto::tpuscope::v1::{HistoryReply, HistoryRequest, Point, host_client::HostClient};
use server::protocol;

use super::{labels, names, number, samples};
use crate::{
    CommandResult, client,
    exit::Exit,
    output::{self, TextTable, one_line},
    remedies,
};

/// Points of one series in the text: they fit into a terminal beside the numbers.
const TEXT_POINTS: u32 = 40;
/// How rows of several sources are to be read.
const SEVERAL_SOURCES: &str = "several sources measured it (label source), each row is one of them; the metrics page and \
     `tpuscope metrics` show libtpu's values only while no other source has any, and `status` does not show them: they do not \
     say which chip they are of\n\n";
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Arguments of `history`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the metric; `tpuscope metrics` lists them
    metric: String,
    /// Only series of this chip
    #[arg(long, value_name = "N")]
    chip: Option<u32>,
    /// Only values of this last part of the time, such as 10m [default: everything that the agent keeps]
    #[arg(long, value_name = "DURATION", value_parser = more_than_zero)]
    last: Option<Duration>,
    #[command(flatten)]
    agent: client::SocketArgs,
    /// Print JSON with all points (docs/schemas/history.schema.json)
    #[arg(long)]
    json: bool,
}

/// A duration of more than 0.
fn more_than_zero(text: &str) -> Result<Duration, String> {
    match text.parse::<Duration>() {
        Ok(duration) if duration.get().is_zero() => Err("expected more than 0s, such as `10m`".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(error.to_string()),
    }
}

pub(crate) fn run(args: &Args) -> CommandResult {
    let last = args.last.map_or(0, |last| u64::try_from(last.get().as_nanos()).unwrap_or(u64::MAX));
    let history = client::block_on(async {
        let mut host = HostClient::new(args.agent.connect().await?);
        let request = HistoryRequest {
            peer: Some(protocol::own()),
            metric: args.metric.clone(),
            chip: args.chip,
            last_ns: last,
            limit: if args.json { 0 } else { TEXT_POINTS },
        };
        let reply = client::within(client::CALL_TIMEOUT, host.history(request)).await?.into_inner();
        if reply.series.is_empty() {
            let samples = samples(&mut host).await?;
            return Err(remedies::no_history(&args.metric, args.chip, &names(&samples)));
        }
        Ok(reply)
    })?;
    if args.json {
        output::json(&history)?;
    } else {
        output::print(&page(&args.metric, &history))?;
    }
    Ok(Exit::Ok)
}

/// A line for each series: its extremes, its last value and its course.
fn page(metric: &str, history: &HistoryReply) -> String {
    let times = || history.series.iter().flat_map(|series| &series.points).map(|point| point.at_unix_ns);
    let first = times().min().unwrap_or_default();
    let last = times().max().unwrap_or_default();
    let columns = history.series.iter().map(|series| series.points.len()).max().unwrap_or_default();
    let columns = columns.clamp(1, TEXT_POINTS as usize);
    let mut text = String::new();
    // Writing to a String cannot fail.
    let per_second = history.series.iter().any(|series| series.per_second);
    let rise = if per_second { ", rise per second" } else { "" };
    let _ = writeln!(text, "{}{rise}, {} to {}\n", one_line(metric), utc(first), utc(last));
    let sources: BTreeSet<_> =
        history.series.iter().filter_map(|series| series.labels.get("source")).collect();
    if sources.len() > 1 {
        text.push_str(SEVERAL_SOURCES);
    }
    let mut table = TextTable::new(["MIN", "MAX", "LAST", "COURSE", "LABELS"]);
    for series in &history.series {
        let (min, max) = extremes(&series.points);
        table.row([
            number(min),
            number(max),
            series.points.last().map_or_else(|| "-".into(), |point| number(point.value)),
            sparkline(&series.points, first, last, columns),
            labels(&series.labels),
        ]);
    }
    text + &table.text()
}

/// Date and time with whole seconds.
fn utc(unix_ns: i64) -> String {
    match jiff::Timestamp::from_second(unix_ns.div_euclid(1_000_000_000)) {
        Ok(at) => at.to_string(),
        Err(_) => "?".into(),
    }
}

/// The smallest and the largest value.
fn extremes(points: &[Point]) -> (f64, f64) {
    points.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(min, max), point| {
        (min.min(point.min), max.max(point.max))
    })
}

/// The course of the values between two times: a column without a point is blank, so that a gap can be seen.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "columns and bars of a line of text: within its width, and only shown"
)]
fn sparkline(points: &[Point], first: i64, last: i64, columns: usize) -> String {
    let (min, max) = extremes(points);
    let span = last.saturating_sub(first).max(1) as f64;
    let mut line = vec![' '; columns];
    for point in points {
        let column = (point.at_unix_ns.saturating_sub(first) as f64 / span * (columns - 1) as f64).round();
        let height = if max > min { (point.value - min) / (max - min) } else { 0.0 };
        let bar = BARS[((height * 7.0).round() as usize).min(BARS.len() - 1)];
        line[(column as usize).min(columns - 1)] = bar;
    }
    line.into_iter().collect()
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "small whole numbers")]
mod tests {
    use proto::tpuscope::v1::History;

    use super::*;

    fn point(second: i64, value: f64) -> Point {
        Point { at_unix_ns: second * 1_000_000_000, value, min: value, max: value }
    }

    #[test]
    fn the_course_rises_and_has_its_gaps() {
        let line = |points: &[Point]| sparkline(points, 0, 39_000_000_000, 40);
        let rising: Vec<_> = (0..40).map(|second| point(second, second as f64)).collect();
        let line_of_all = line(&rising);
        assert!(line_of_all.starts_with('▁') && line_of_all.ends_with('█'), "{line_of_all}");
        let chars: Vec<_> = line_of_all.chars().collect();
        assert!(chars.is_sorted(), "{line_of_all}");
        let gap: Vec<_> =
            rising.iter().filter(|it| !(10..20).contains(&(it.value as i64))).copied().collect();
        let expected: String =
            chars.iter().enumerate().map(|(n, c)| if (10..20).contains(&n) { ' ' } else { *c }).collect();
        assert_eq!(line(&gap), expected);
        assert_eq!(line(&[point(39, 5.0)]).trim_start(), "▁");
    }

    #[test]
    fn no_time_at_all_is_refused() {
        assert_eq!(more_than_zero("10m"), Ok(Duration::from_secs(600)));
        for zero in ["0s", "0ms", "0"] {
            assert!(more_than_zero(zero).is_err(), "{zero}");
        }
        assert!(more_than_zero("0s").unwrap_err().contains("more than 0s"));
    }

    #[test]
    fn a_page_has_a_line_for_each_series() {
        let series = |chip: &str, points: Vec<Point>| History {
            metric: "m".into(),
            labels: [("chip".to_owned(), chip.to_owned())].into(),
            points,
            per_second: false,
        };
        let mut reply = HistoryReply {
            series: vec![series("0", vec![point(0, 1.0), point(39, 3.0)]), series("1", vec![point(39, 2.0)])],
            ..Default::default()
        };
        let page = page("m", &reply);
        let lines: Vec<_> = page.lines().collect();
        assert_eq!(lines[0], "m, 1970-01-01T00:00:00Z to 1970-01-01T00:00:39Z");
        assert_eq!(lines[3], "1    3    3     ▁█      chip=\"0\"", "{page}");
        assert_eq!(lines[4], "2    2    2      ▁      chip=\"1\"", "{page}");
        reply.series.iter_mut().for_each(|series| series.per_second = true);
        assert!(super::page("m", &reply).starts_with("m, rise per second, 1970"));
        for (series, source) in reply.series.iter_mut().zip(["runtime", "libtpu"]) {
            assert!(!page.contains("several sources"), "{page}");
            series.labels.insert("source".to_owned(), source.to_owned());
        }
        assert!(super::page("m", &reply).contains("several sources measured it (label source)"));
    }
}
