//! What leaves the agent as time series: the Prometheus page, rendered at scrape time from the latest samples,
//! so that a series that went stale is gone.
//!
//! Must never keep values of its own between scrapes, nor let text from outside break the page.

#![forbid(unsafe_code)]

mod own;
mod page;
mod series;

use model::sample::Sample;

pub use own::{Own, SourceFigures};
pub use page::Format;

/// The whole page: what was measured, and what the agent says of itself.
pub fn render(samples: &[&Sample], own: &Own<'_>, format: Format) -> String {
    let mut page = page::Page::new(format, samples.len() * 96 + 4096);
    series::write(samples, &mut page);
    own::write(own, &mut page);
    page.finish()
}
