//! What leaves the agent as time series: the Prometheus page, rendered at scrape time from the latest samples,
//! so that a series that went stale is gone.
//!
//! The agent's own metrics are samples as the measured ones are, and there is one rule for all. Must never keep values
//! of its own between scrapes, know a metric by name, or let text from outside break the page.

#![forbid(unsafe_code)]

mod agent_metrics;
mod families;
mod page_writer;

use model::sample::Sample;

pub use agent_metrics::{AgentFigures, SourceFigures};
pub use page_writer::TextFormat;

/// The whole page: what was measured, and what the agent says of itself.
pub fn render(samples: &[&Sample], agent: &AgentFigures<'_>, format: TextFormat) -> String {
    let own = agent_metrics::samples(agent);
    let all: Vec<&Sample> = samples.iter().copied().chain(&own).collect();
    let mut page = page_writer::PageWriter::new(format, all.len() * 128);
    families::write(all, &mut page);
    page.finish()
}
