//! What leaves the agent as time series: the Prometheus page, rendered at scrape time from the latest samples,
//! so that a series that went stale is gone, and from the agent's own metrics.
//!
//! Must never keep measured values between scrapes, nor let text from outside break the page.

#![forbid(unsafe_code)]

pub mod own_metrics;
mod page;
mod recorder;
mod series;

use model::sample::Sample;

pub use page::Format;
pub use recorder::OwnMetrics;

/// The whole page: the measured samples, and the agent's own metrics.
pub fn render(samples: &[&Sample], own: &OwnMetrics, format: Format) -> String {
    own_metrics::update();
    let mut page = page::Page::new(format, samples.len() * 96 + 4096);
    series::write(samples, &mut page);
    own.write(&mut page);
    page.finish()
}
