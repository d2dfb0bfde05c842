//! Samples as families of series.

use std::cmp::Ordering;

use model::{
    catalog::{self, Kind, Metric},
    sample::{Distribution, Sample, Value},
};

use super::page::{Label, Page, Type, is_name};

/// Help of a series that the catalog does not list: Orbax and Grain name theirs themselves.
const UNLISTED: &str = "A series of the workload, under its own name.";

/// Labels that samples of every metric may carry: a further one cannot take their name.
const RESERVED: [&str; 6] = ["chip", "core", "source", "job", "job_kind", "quantile"];

/// What is shown of a window.
const QUANTILES: [(&str, f64); 5] =
    [("0.5", 0.5), ("0.9", 0.9), ("0.95", 0.95), ("0.99", 0.99), ("0.999", 0.999)];

pub(super) fn write(samples: &[&Sample], page: &mut Page) {
    let mut sorted: Vec<&Sample> = samples.iter().copied().filter(|sample| is_name(&sample.metric)).collect();
    sorted.sort_by(|a, b| a.metric.cmp(&b.metric).then_with(|| same_series(a, b)));
    // One sample a series: a page with two is refused as a whole.
    sorted.dedup_by(|a, b| a.metric == b.metric && same_series(a, b) == Ordering::Equal);
    for family in sorted.chunk_by(|a, b| a.metric == b.metric) {
        write_family(family, page);
    }
}

/// Orders by all that stands in the labels.
fn same_series(a: &Sample, b: &Sample) -> Ordering {
    let job = |sample: &Sample| sample.job.as_ref().map(|job| (job.kind, job.id.clone()));
    a.labels.cmp(&b.labels).then_with(|| a.origin.cmp(&b.origin)).then_with(|| {
        // Most series of one family are of one job, and most often the very same object.
        match (&a.job, &b.job) {
            (Some(a), Some(b)) if std::sync::Arc::ptr_eq(a, b) => Ordering::Equal,
            _ => job(a).cmp(&job(b)),
        }
    })
}

fn write_family(family: &[&Sample], page: &mut Page) {
    let Some(first) = family.first() else { return };
    let name: &str = &first.metric;
    let listed = catalog::find(name);
    let help = listed.map_or(UNLISTED, |metric| metric.help);
    let counter = match listed {
        Some(metric) => metric.kind == Kind::Counter,
        None => matches!(first.value, Value::Counter(_)) && name.ends_with("_total"),
    };
    if family.iter().any(|sample| matches!(sample.value, Value::Window(_))) {
        return write_windows(name, help, listed, family, page);
    }
    page.family(name, if counter { Type::Counter } else { Type::Gauge }, help);
    for sample in family {
        if let Value::Gauge(value) | Value::Counter(value) = sample.value {
            write_sample(name, sample, None, value, page);
        }
    }
}

/// Quantiles, mean and number of a window; no histogram, because that would have to count since the start.
fn write_windows(name: &str, help: &str, listed: Option<&Metric>, family: &[&Sample], page: &mut Page) {
    let windows: Vec<(&Sample, &Distribution)> = family
        .iter()
        .filter_map(|sample| match &sample.value {
            Value::Window(window) => Some((*sample, window)),
            _ => None,
        })
        .collect();
    let (mean, samples) = listed.map_or_else(
        || (format!("{name}_mean"), format!("{name}_samples")),
        |metric| (metric.mean_name(), metric.samples_name()),
    );
    if windows.iter().any(|(_, window)| window.quantile(0.5).is_some()) {
        page.family(name, Type::Summary, help);
        for (sample, window) in &windows {
            for (label, share) in QUANTILES {
                if let Some(value) = window.quantile(share) {
                    write_sample(name, sample, Some(label), value, page);
                }
            }
        }
    }
    if windows.iter().any(|(_, window)| window.samples() > 0) {
        page.family(&mean, Type::Gauge, &format!("{help} Mean of the window."));
        for (sample, window) in windows.iter().filter(|(_, window)| window.samples() > 0) {
            write_sample(&mean, sample, None, window.mean, page);
        }
    }
    page.family(&samples, Type::Gauge, &format!("{help} Values in the window."));
    for (sample, window) in &windows {
        write_sample(&samples, sample, None, window.samples() as f64, page);
    }
}

fn write_sample(name: &str, sample: &Sample, quantile: Option<&str>, value: f64, page: &mut Page) {
    let mut labels: Vec<(&str, Label<'_>)> = Vec::with_capacity(6);
    labels.extend(sample.labels.chip.map(|chip| ("chip", Label::Number(chip))));
    labels.extend(sample.labels.core.map(|core| ("core", Label::Number(core))));
    if let Some((name, value)) = &sample.labels.extra
        && is_name(name)
        && !RESERVED.contains(&name.as_ref())
    {
        labels.push((name, Label::Text(value)));
    }
    labels.push(("source", Label::Text(sample.origin.as_str())));
    if let Some(job) = &sample.job {
        labels.push(("job", Label::Text(&job.id)));
        labels.push(("job_kind", Label::Text(job.kind.as_str())));
    }
    labels.extend(quantile.map(|quantile| ("quantile", Label::Text(quantile))));
    page.sample(name, &labels, value);
}
