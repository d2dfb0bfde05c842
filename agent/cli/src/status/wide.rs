//! The further columns of `tpuscope status -o wide`, from the latest samples.

use std::fmt::Write;

use model::{
    catalog::{
        TPU_CHIP_HBM_BANDWIDTH_UTILIZATION_RATIO, TPU_CHIP_ICI_UTILIZATION_RATIO,
        TPU_CHIP_TENSORCORE_UTILIZATION_RATIO, TPU_CHIP_THROTTLE_SCORE, TPU_HBM_BANDWIDTH_UTILIZATION_RATIO,
        TPU_HLO_QUEUE_SIZE, TPU_ICI_LINK_HEALTH_SCORE,
    },
    metric::Descriptor,
};
use proto::tpuscope::v1::{ChipStatus, SeriesValue, series_value::Value};

use crate::output::{TextTable, one_line};

/// A table with the further values of `chips`, and the scores that the tray counts in its own way.
pub(super) fn text(chips: &[ChipStatus], samples: &[SeriesValue]) -> String {
    let mut table = TextTable::new(["CHIP", "TENSORCORE", "HBM BANDWIDTH", "ICI", "QUEUE"]);
    for chip in chips {
        let values = |metric| of_chip(metric, chip.index, samples);
        let bandwidth = mean(&values(&TPU_CHIP_HBM_BANDWIDTH_UTILIZATION_RATIO))
            .or_else(|| mean(&values(&TPU_HBM_BANDWIDTH_UTILIZATION_RATIO)));
        let queue = values(&TPU_HLO_QUEUE_SIZE);
        table.row([
            chip.index.to_string(),
            percent(mean(&values(&TPU_CHIP_TENSORCORE_UTILIZATION_RATIO))),
            percent(bandwidth),
            percent(mean(&values(&TPU_CHIP_ICI_UTILIZATION_RATIO))),
            if queue.is_empty() { "-".into() } else { format!("{:.0}", queue.iter().sum::<f64>()) },
        ]);
    }
    let mut text = table.text();
    for (what, metric, label) in [
        ("throttle score of each chip of the tray", &TPU_CHIP_THROTTLE_SCORE, "tray_chip"),
        ("health score of each ICI link", &TPU_ICI_LINK_HEALTH_SCORE, "link"),
    ] {
        let scores = gauges(metric, samples)
            .filter_map(|(series, value)| Some(format!("{} {value}", series.labels.get(label)?)));
        let scores: Vec<_> = scores.collect();
        if !scores.is_empty() {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{what}: {}", one_line(&scores.join(", ")));
        }
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
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
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
        let chips = [0, 1].map(|index| ChipStatus { index, ..Default::default() });
        let samples = [
            gauge(&TPU_CHIP_TENSORCORE_UTILIZATION_RATIO, &[("chip", "1")], 0.25),
            gauge(&TPU_HBM_BANDWIDTH_UTILIZATION_RATIO, &[("chip", "0"), ("core", "0")], 0.5),
            gauge(&TPU_HBM_BANDWIDTH_UTILIZATION_RATIO, &[("chip", "0"), ("core", "1")], 0.7),
            gauge(&TPU_HLO_QUEUE_SIZE, &[("chip", "0"), ("core", "0")], 2.0),
            gauge(&TPU_HLO_QUEUE_SIZE, &[("chip", "0"), ("core", "1")], 3.0),
            gauge(&TPU_CHIP_THROTTLE_SCORE, &[("tray_chip", "2")], 4.0),
        ];
        assert_eq!(
            text(&chips, &samples),
            "CHIP  TENSORCORE  HBM BANDWIDTH  ICI  QUEUE\n\
             0     -           60.0%          -    5\n\
             1     25.0%       -              -    -\n\
             throttle score of each chip of the tray: 2 4\n"
        );
    }
}
