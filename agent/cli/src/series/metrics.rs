//! `tpuscope metrics`.

use proto::tpuscope::v1::{SeriesValue, host_client::HostClient, series_value::Value};
use xprof::wording::counted;

use super::{labels, names, number, samples};
use crate::{
    CommandResult, client,
    exit::Exit,
    output::{self, TextTable},
    remedies,
};

/// Arguments of `metrics`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only metrics whose name contains this text, such as hbm
    pattern: Option<String>,
    #[command(flatten)]
    agent: client::SocketArgs,
    /// Print JSON (docs/schemas/metrics.schema.json)
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> CommandResult {
    let mut reply = client::block_on(async {
        let mut host = HostClient::new(args.agent.connect().await?);
        samples(&mut host).await
    })?;
    if let Some(pattern) = &args.pattern
        && !names(&reply).iter().any(|name| name.contains(pattern.as_str()))
    {
        return Err(remedies::no_metric_contains(pattern, &names(&reply)));
    }
    let pattern = args.pattern.as_deref().unwrap_or_default();
    reply.samples.retain(|series| series.metric.contains(pattern));
    reply.samples.sort_by(|a, b| (&a.metric, &a.labels).cmp(&(&b.metric, &b.labels)));
    if args.json {
        output::json(&reply)?;
    } else {
        output::print(&table(&reply.samples, reply.at_unix_ns))?;
    }
    Ok(Exit::Ok)
}

#[expect(clippy::cast_precision_loss, reason = "an age in seconds, which is only shown")]
fn table(series: &[SeriesValue], now_unix_ns: i64) -> String {
    let mut table = TextTable::new(["METRIC", "VALUE", "UNIT", "AGE", "LABELS"]);
    for series in series {
        let age = now_unix_ns.saturating_sub(series.at_unix_ns).max(0) as f64 / 1e9;
        table.row([
            series.metric.clone(),
            value(series),
            series.unit.clone(),
            format!("{age:.1} s"),
            labels(&series.labels),
        ]);
    }
    table.text()
}

/// A number, or for a distribution the number of its events and their mean.
#[expect(clippy::cast_precision_loss, reason = "a mean, which is only shown")]
fn value(series: &SeriesValue) -> String {
    if let Some(histogram) = &series.histogram {
        let count: u64 = histogram.counts.iter().sum();
        let mean = if count > 0 { histogram.sum / count as f64 } else { 0.0 };
        return format!("{}, mean {}", counted(count, "event"), number(mean));
    }
    match &series.value {
        Some(Value::Gauge(value) | Value::Counter(value)) => number(*value),
        Some(Value::Window(window)) => {
            format!("{}, mean {}", counted(window.counts.iter().sum::<u64>(), "event"), number(window.mean))
        }
        None => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use proto::tpuscope::v1::CumulativeHistogram;

    use super::*;

    #[test]
    fn each_kind_of_value_is_shown_with_its_age() {
        let labels = [("chip".to_owned(), "0".to_owned())].into();
        let gauge = SeriesValue {
            metric: "a_bytes".into(),
            labels,
            unit: "bytes".into(),
            value: Some(Value::Gauge(1024.0)),
            ..Default::default()
        };
        let histogram =
            CumulativeHistogram { bounds: vec![1.0], counts: vec![1, 3], sum: 6.0, ..Default::default() };
        let distribution =
            SeriesValue { metric: "b".into(), histogram: Some(histogram), ..Default::default() };
        let page = table(&[gauge, distribution], 1_500_000_000);
        assert_eq!(
            page,
            "METRIC   VALUE               UNIT   AGE    LABELS\n\
             a_bytes  1024                bytes  1.5 s  chip=\"0\"\n\
             b        4 events, mean 1.5  -      1.5 s  -\n"
        );
    }
}
