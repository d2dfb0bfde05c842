//! What leaves the agent as time series: the Prometheus page, rendered at scrape time from the latest samples,
//! so that a series that went stale is gone; and exporters, which send series and points to services elsewhere or write them to
//! a folder. Those are off by default and cost nothing then.
//!
//! The agent's own metrics become samples as the measured ones are, and there is one rule for all. Must never keep
//! measured values between two renderings, know a metric by name, or let text from outside break the page.

#![forbid(unsafe_code)]

pub mod cloud_monitoring;
mod families;
pub mod otlp;
pub mod own_metrics;
mod page;
mod page_writer;
mod recorder;
pub mod tensorboard;

use model::{sample::Sample, time::Timestamp};

pub use page_writer::TextFormat;
pub use recorder::OwnMetrics;

/// The whole page at `at`: the measured samples, and the agent's own metrics.
pub fn render(samples: &[&Sample], own: &OwnMetrics, at: Timestamp, format: TextFormat) -> String {
    own_metrics::update();
    let own = own.samples(at);
    let all: Vec<&Sample> = samples.iter().copied().chain(&own).collect();
    let mut writer = page_writer::PageWriter::new(format, all.len() * 128);
    page::write(all, &mut writer);
    writer.finish()
}
