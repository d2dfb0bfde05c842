//! What `tpuscope status -o wide` shows beside the usual columns, from the latest samples.

use std::fmt::Write;

use model::{
    catalog::{
        TPU_CHIP_HBM_BANDWIDTH_UTILIZATION_RATIO, TPU_CHIP_ICI_UTILIZATION_RATIO,
        TPU_CHIP_TENSORCORE_UTILIZATION_RATIO, TPU_CHIP_THROTTLE_SCORE, TPU_HBM_BANDWIDTH_UTILIZATION_RATIO,
        TPU_HLO_QUEUE_SIZE, TPU_ICI_LINK_HEALTH_SCORE,
    },
    metric::Descriptor,
};
use proto::tpuscope::v1::{SeriesValue, series_value::Value};

use crate::output::one_line;

/// The headings of the columns.
pub(super) const HEADINGS: [&str; 4] = ["TENSORCORE", "HBM BW", "ICI", "QUEUE"];

/// The names of all metrics that are shown.
pub(super) fn metrics() -> Vec<String> {
    let all = [
        &TPU_CHIP_TENSORCORE_UTILIZATION_RATIO,
        &TPU_CHIP_HBM_BANDWIDTH_UTILIZATION_RATIO,
        &TPU_HBM_BANDWIDTH_UTILIZATION_RATIO,
        &TPU_CHIP_ICI_UTILIZATION_RATIO,
        &TPU_HLO_QUEUE_SIZE,
        &TPU_CHIP_THROTTLE_SCORE,
        &TPU_ICI_LINK_HEALTH_SCORE,
    ];
    all.map(|metric| metric.name.to_string()).to_vec()
}

/// The cells of one chip.
pub(super) fn cells(chip: u32, samples: &[SeriesValue]) -> [String; 4] {
    let values = |metric| of_chip(metric, chip, samples);
    let bandwidth = mean(&values(&TPU_CHIP_HBM_BANDWIDTH_UTILIZATION_RATIO))
        .or_else(|| mean(&values(&TPU_HBM_BANDWIDTH_UTILIZATION_RATIO)));
    let queue = values(&TPU_HLO_QUEUE_SIZE);
    [
        percent(mean(&values(&TPU_CHIP_TENSORCORE_UTILIZATION_RATIO))),
        percent(bandwidth),
        percent(mean(&values(&TPU_CHIP_ICI_UTILIZATION_RATIO))),
        if queue.is_empty() { "-".into() } else { format!("{:.0}", queue.iter().sum::<f64>()) },
    ]
}

/// The scores that the host's service gives by its own names, which say nothing of the chip's index: a line each.
pub(super) fn scores(samples: &[SeriesValue]) -> String {
    let mut text = String::new();
    for (what, metric, label) in [
        ("throttle score by tray_chip", &TPU_CHIP_THROTTLE_SCORE, "tray_chip"),
        ("ICI health score by link", &TPU_ICI_LINK_HEALTH_SCORE, "link"),
    ] {
        let all: Vec<(&str, f64)> = gauges(metric, samples)
            .filter_map(|(series, value)| Some((series.labels.get(label)?.as_str(), value)))
            .collect();
        let raised: Vec<String> = all
            .iter()
            .filter(|(_, score)| *score != 0.0)
            .map(|(name, score)| format!("{name} {score}"))
            .collect();
        let score = match (all.len(), raised.len()) {
            (0, _) => continue,
            (all, 0) => format!("all {all} are 0"),
            (all, some) if all == some => raised.join(", "),
            (all, some) => format!("{}; the other {} are 0", raised.join(", "), all - some),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{what}: {}", one_line(&score));
    }
    text
}

fn gauges<'a>(
    metric: &'static Descriptor,
    samples: &'a [SeriesValue],
) -> impl Iterator<Item = (&'a SeriesValue, f64)> {
    let of_metric = samples.iter().filter(|series| series.metric == metric.name);
    of_metric.filter_map(|series| match series.value {
        Some(Value::Gauge(value)) => Some((series, value)),
        _ => None,
    })
}

/// The values of a metric on one chip, one for each core or queue.
fn of_chip(metric: &'static Descriptor, chip: u32, samples: &[SeriesValue]) -> Vec<f64> {
    let chip = chip.to_string();
    let of_chip = gauges(metric, samples).filter(|(series, _)| series.labels.get("chip") == Some(&chip));
    of_chip.map(|(_, value)| value).collect()
}

fn mean(values: &[f64]) -> Option<f64> {
    let count = u32::try_from(values.len()).ok().filter(|count| *count > 0)?;
    Some(values.iter().sum::<f64>() / f64::from(count))
}

fn percent(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".into(), |ratio| format!("{:.1}%", ratio * 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gauge(metric: &Descriptor, labels: &[(&str, &str)], value: f64) -> SeriesValue {
        SeriesValue {
            metric: metric.name.to_string(),
            labels: labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            value: Some(Value::Gauge(value)),
            ..Default::default()
        }
    }

    #[test]
    fn values_go_to_their_chip_and_absent_ones_are_dashes() {
        let samples = [
            gauge(&TPU_CHIP_TENSORCORE_UTILIZATION_RATIO, &[("chip", "1")], 0.25),
            gauge(&TPU_CHIP_ICI_UTILIZATION_RATIO, &[("chip", "1")], 0.125),
            gauge(&TPU_HBM_BANDWIDTH_UTILIZATION_RATIO, &[("chip", "0"), ("core", "0")], 0.5),
            gauge(&TPU_HBM_BANDWIDTH_UTILIZATION_RATIO, &[("chip", "0"), ("core", "1")], 0.7),
            gauge(&TPU_HLO_QUEUE_SIZE, &[("chip", "0"), ("core", "0")], 2.0),
            gauge(&TPU_HLO_QUEUE_SIZE, &[("chip", "0"), ("core", "1")], 3.0),
        ];
        assert_eq!(cells(0, &samples), ["-", "60.0%", "-", "5"]);
        assert_eq!(cells(1, &samples), ["25.0%", "-", "12.5%", "-"]);
        assert_eq!(cells(2, &samples), ["-"; 4]);
    }

    #[test]
    fn raised_scores_are_named_and_the_others_counted() {
        let throttle = |chip, score| gauge(&TPU_CHIP_THROTTLE_SCORE, &[("tray_chip", chip)], score);
        let link = |name, score| gauge(&TPU_ICI_LINK_HEALTH_SCORE, &[("link", name)], score);
        assert_eq!(scores(&[]), "");
        assert_eq!(
            scores(&[throttle("0-0", 0.0), throttle("0-1", 4.0), link("a", 0.0), link("b", 0.0)]),
            "throttle score by tray_chip: 0-1 4; the other 1 are 0\nICI health score by link: all 2 are 0\n"
        );
        assert_eq!(scores(&[link("a\u{1b}", 10.0)]), "ICI health score by link: a\\u{1b} 10\n");
    }

    #[test]
    fn every_metric_that_is_shown_is_asked_for() {
        let metrics = metrics();
        let source = include_str!("wide.rs").split("mod tests").next().unwrap();
        let (_, imported) = source.split_once("catalog::{").unwrap();
        let (imported, _) = imported.split_once('}').unwrap();
        let imported: Vec<_> = imported.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        assert!(imported.iter().all(|name| metrics.contains(&name.to_lowercase())), "{metrics:?}");
        assert_eq!(metrics.len(), imported.len());
    }
}
