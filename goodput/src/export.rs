//! The data that the library's uploaders would send: Cloud Monitoring series and TensorBoard scalars.

use serde::{Serialize, ser::SerializeMap};

use crate::{
    badput::{Amount, BadputType, Buckets},
    exact::SliceEfficiency,
};

/// The labels that the log does not contain.
#[derive(Debug, Clone)]
pub struct SeriesLabels {
    /// Zone or region.
    pub location: String,
    /// Job name.
    pub workload_id: String,
    /// Replica.
    pub replica_id: String,
    /// Such as `TPU-v6e`; see [`accelerator_type`].
    pub accelerator_type: String,
    /// Cluster, if there is one.
    pub cluster_name: Option<String>,
}

/// The accelerator type of a machine type, by first substring match.
pub fn accelerator_type(machine_type: &str) -> &'static str {
    const TABLE: [(&str, &str); 16] = [
        ("tpu7x", "TPU-7x"),
        ("ct6e", "TPU-v6e"),
        ("ct5p", "TPU-v5p"),
        ("ct5lp", "TPU-v5e"),
        ("ct5l", "TPU-v5e"),
        ("ct4p", "TPU-v4p"),
        ("ct3p", "TPU-v3"),
        ("ct3", "TPU-v3"),
        ("tpu-v2", "TPU-v2"),
        ("tpu", "TPU"),
        ("a3-edgegpu", "NVIDIA-H100"),
        ("a3-highgpu", "NVIDIA-H100"),
        ("a3-megagpu", "NVIDIA-H100"),
        ("a3-ultragpu", "NVIDIA-H200"),
        ("a2", "NVIDIA-A100"),
        ("gpu", "GPU"),
    ];
    let machine_type = machine_type.to_lowercase();
    TABLE.iter().find(|(part, _)| machine_type.contains(part)).map_or("UNKNOWN", |(_, name)| name)
}

/// The accelerator type of a text that is a machine type or already the name of an accelerator: a machine type is lower
/// case, a name such as `TPU-v6e` stands for itself.
pub fn given_accelerator_type(text: &str) -> String {
    let derived = accelerator_type(text);
    let is_name = text.chars().any(char::is_uppercase) || derived == "UNKNOWN";
    if is_name { text.to_owned() } else { derived.to_owned() }
}

/// A series' value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PointValue {
    /// `double_value`.
    Double(f64),
    /// `int64_value`.
    Int(i64),
}

/// One time series with its one point.
#[derive(Debug, Clone, PartialEq)]
pub struct TimeSeries {
    /// Metric name below `compute.googleapis.com/workload/`.
    pub metric: &'static str,
    /// Its value.
    pub value: PointValue,
    /// Metric labels.
    pub labels: Vec<(&'static str, String)>,
    /// Resource labels.
    pub resource: Vec<(&'static str, String)>,
}

impl Serialize for TimeSeries {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(6))?;
        map.serialize_entry("type", &format!("compute.googleapis.com/workload/{}", self.metric))?;
        match self.value {
            PointValue::Double(value) => {
                map.serialize_entry("value_field", "double_value")?;
                map.serialize_entry("value", &value)?;
            }
            PointValue::Int(value) => {
                map.serialize_entry("value_field", "int64_value")?;
                map.serialize_entry("value", &value)?;
            }
        }
        map.serialize_entry("labels", &Labelled(&self.labels))?;
        map.serialize_entry("resource_type", "compute.googleapis.com/Workload")?;
        map.serialize_entry("resource_labels", &Labelled(&self.resource))?;
        map.end()
    }
}

struct Labelled<'a>(&'a [(&'static str, String)]);

impl Serialize for Labelled<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

/// The values of a cumulative upload.
#[derive(Debug)]
pub struct CumulativeUpload<'a> {
    /// Productive seconds; `None` before the first result.
    pub productive: Option<f64>,
    /// Seconds by type.
    pub unproductive: &'a Buckets,
    /// Disruptions.
    pub disruptions: u64,
    /// Largest productive step.
    pub max_step: i64,
    /// The exported deviation, if there are deviations.
    pub deviation: Option<f64>,
    /// Total seconds.
    pub elapsed: f64,
    /// Ideal step time, 0 if none.
    pub ideal: f64,
    /// Slice efficiency, where known.
    pub efficiency: Option<SliceEfficiency>,
}

struct Builder<'a> {
    labels: &'a SeriesLabels,
    series: Vec<TimeSeries>,
}

impl Builder<'_> {
    fn push(&mut self, metric: &'static str, value: PointValue, labels: Vec<(&'static str, String)>) {
        let job = self.labels;
        let resource = vec![
            ("location", job.location.clone()),
            ("workload_id", job.workload_id.clone()),
            ("replica_id", job.replica_id.clone()),
        ];
        self.series.push(TimeSeries { metric, value, labels, resource });
    }

    /// A series with the accelerator type, `extra`, and the cluster where there is one.
    fn labelled<const N: usize>(
        &mut self,
        metric: &'static str,
        value: PointValue,
        extra: [(&'static str, &str); N],
    ) {
        let mut labels: Vec<_> = extra.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
        labels.push(("accelerator_type", self.labels.accelerator_type.clone()));
        labels.extend(self.labels.cluster_name.iter().map(|name| ("cluster_name", name.clone())));
        self.push(metric, value, labels);
    }

    fn slices(&mut self, efficiency: Option<SliceEfficiency>, window: &str, size: &str) {
        let Some(SliceEfficiency { stepping, available }) = efficiency else { return };
        for (metric, value) in
            [("stepping_slice_efficiency", stepping), ("available_slice_efficiency", available)]
        {
            let labels = [("window_type", window), ("rolling_window_size", size)];
            self.labelled(metric, PointValue::Double(value), labels);
        }
    }
}

fn exported(buckets: &Buckets) -> impl Iterator<Item = (String, f64)> {
    let hidden = BadputType::DataLoadingAsync.name();
    buckets.flat().into_iter().filter(move |(label, _)| label != hidden)
}

/// The series of one cumulative upload.
pub fn cumulative_series(upload: &CumulativeUpload<'_>, labels: &SeriesLabels) -> Vec<TimeSeries> {
    let mut out = Builder { labels, series: Vec::new() };
    if let Some(productive) = upload.productive {
        out.labelled("goodput_time", PointValue::Double(productive), [("goodput_source", "TOTAL")]);
    }
    for (label, seconds) in exported(upload.unproductive) {
        out.labelled("badput_time", PointValue::Double(seconds), [("badput_source", &label)]);
    }
    let cumulative = [("window_type", "cumulative")];
    let disruptions = i64::try_from(upload.disruptions).unwrap_or(i64::MAX);
    out.labelled("disruptions", PointValue::Int(disruptions), cumulative);
    out.labelled("max_productive_steps", PointValue::Int(upload.max_step), []);
    if let Some(deviation) = upload.deviation {
        out.labelled("step_time_deviation", PointValue::Double(deviation), []);
    }
    out.labelled("total_elapsed_time", PointValue::Double(upload.elapsed), cumulative);
    out.push("performance", PointValue::Double(upload.ideal), Vec::new());
    out.slices(upload.efficiency, "CUMULATIVE", "0");
    out.series
}

/// The series of one window's upload: `size` is the requested size in whole seconds, and a window below one
/// second is not exported. `percent` is missing where the query failed.
pub fn interval_series(
    percent: Option<(f64, &Buckets)>,
    efficiency: Option<SliceEfficiency>,
    size: i64,
    labels: &SeriesLabels,
) -> Vec<TimeSeries> {
    let mut out = Builder { labels, series: Vec::new() };
    if size == 0 {
        return out.series;
    }
    let text = size.to_string();
    let size = ("rolling_window_size", text.as_str());
    if let Some((goodput, badput)) = percent {
        out.labelled("interval_goodput", PointValue::Double(goodput), [("goodput_source", "TOTAL"), size]);
        for (label, value) in exported(badput) {
            out.labelled("interval_badput", PointValue::Double(value), [("badput_source", &label), size]);
        }
    }
    out.slices(efficiency, "INTERVAL", &text);
    out.series
}

/// One TensorBoard scalar: tag, value, global step.
pub type TensorBoardScalar = (String, f64, i64);

/// The scalars of one cumulative upload.
pub fn tensorboard(goodput: f64, badput: &Buckets, step: i64) -> Vec<TensorBoardScalar> {
    let mut scalars = vec![("goodput/goodput".to_owned(), goodput, step)];
    for (kind, amount) in badput.iter() {
        let tag = format!("badput/{}", kind.name().to_lowercase());
        match amount {
            Amount::Flat(value) => scalars.push((tag, *value, step)),
            Amount::Custom(kinds) => scalars.extend(
                kinds.iter().map(|(name, value)| (format!("{tag}/{}", name.to_lowercase()), *value, step)),
            ),
        }
    }
    scalars
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_types() {
        for (machine, accelerator) in [
            ("ct5lp-hightpu-4t", "TPU-v5e"),
            ("ct5p-hightpu-4t", "TPU-v5p"),
            ("tpu7x-standard-4t", "TPU-7x"),
            ("CT6E-standard-8t", "TPU-v6e"),
            ("a3-ultragpu-8g", "NVIDIA-H200"),
            ("n2-standard-4", "UNKNOWN"),
        ] {
            assert_eq!(accelerator_type(machine), accelerator, "{machine}");
        }
        for (text, accelerator) in
            [("ct6e-standard-8t", "TPU-v6e"), ("TPU-v6e", "TPU-v6e"), ("other", "other")]
        {
            assert_eq!(given_accelerator_type(text), accelerator);
        }
    }
}
