//! OTLP: all series of the metrics page, sent to a collector of OpenTelemetry at an interval.
//!
//! An export is rendered when it is sent, and dropped when it failed: the next one has newer values of the same series, and
//! sums and histograms count since their start. So nothing waits in a queue, however long the collector is away. Must never
//! delay the sampler, send without TLS to another host, or show a header.

mod collector_files;
mod encoded_codec;
mod fault;
mod fields;
mod message_writer;
mod pacing;
mod rendering;
mod reports;
mod sender;
pub mod settings;
mod start_times;

use std::time::Duration;

use model::{backoff::spread, sample::Sample, time::Timestamp};
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    OwnMetrics,
    own_metrics::{self, ExportCounters},
};
use message_writer::EncodedMessage;
use pacing::{ExportEnd, Pacing};
use rendering::Renderer;
use reports::Reports;
use sender::OtlpSender;
use settings::{CollectorUrl, OtlpSettings};

pub use fault::{ExportFault, OtlpError};
pub use rendering::ExportingHost;
pub use reports::Remedy;

/// Whether the files that the settings name can be used. Blocks.
///
/// # Errors
/// What is wrong with the first one that cannot.
pub fn check_files(settings: &OtlpSettings) -> Result<(), String> {
    collector_files::read(settings).map(drop).map_err(|error| error.to_string())
}

/// The largest message in bytes. Collectors take 4 MiB; smaller ones keep this process small.
const MAX_MESSAGE: usize = 512 << 10;

/// Takes the samples of a moment, the agent's own metrics, and the time.
pub type TakeSamples<'a> = dyn FnMut(&[&Sample], &OwnMetrics, Timestamp) + 'a;

/// Exports to one collector.
pub struct OtlpExporter {
    interval: Duration,
    renderer: Renderer,
    sender: OtlpSender,
    reports: Reports,
    counters: ExportCounters,
}

/// What was rendered for one export.
struct OtlpRendering {
    messages: Vec<EncodedMessage>,
    at: Timestamp,
}

impl OtlpExporter {
    /// An exporter of what `host` says to the collector at `url`. The log tells the `remedy` of a fault.
    pub fn new(settings: OtlpSettings, url: CollectorUrl, host: &ExportingHost, remedy: Remedy) -> Self {
        Self {
            interval: settings.interval.get(),
            renderer: Renderer::new(host),
            sender: OtlpSender::new(settings, url),
            reports: Reports::new(remedy),
            counters: ExportCounters::new("otlp"),
        }
    }

    /// Exports what `gather` gives, for ever. Hosts that start together export at different times.
    pub async fn run(&mut self, gather: impl Fn(&mut TakeSamples<'_>)) {
        sleep(spread(Duration::ZERO, self.interval, fastrand::f64())).await;
        let mut pacing = Pacing::new(Instant::now(), self.interval);
        loop {
            let rendering = self.render(&gather);
            let end = self.export(rendering).await;
            sleep_until(pacing.next(end, Instant::now(), fastrand::f64())).await;
        }
    }

    fn render(&mut self, gather: &impl Fn(&mut TakeSamples<'_>)) -> OtlpRendering {
        let mut rendering = OtlpRendering { messages: Vec::new(), at: Timestamp(0) };
        gather(&mut |samples, own, at| {
            own_metrics::update();
            let own = own.samples(at);
            let all = samples.iter().copied().chain(&own).collect();
            rendering = OtlpRendering { messages: self.renderer.render(all, at, MAX_MESSAGE), at };
        });
        rendering
    }

    /// Sends the messages until one fails.
    async fn export(&mut self, OtlpRendering { messages, at }: OtlpRendering) -> ExportEnd {
        let mut rejected = None;
        let mut messages = messages.into_iter();
        while let Some(EncodedMessage { bytes, points }) = messages.next() {
            match self.sender.send(bytes).await {
                Ok(partial) => {
                    let count = partial.rejected_data_points.max(0);
                    let dropped = count.unsigned_abs().min(points);
                    self.counters.sent(points - dropped);
                    self.counters.dropped(dropped);
                    if count > 0 || !partial.error_message.is_empty() {
                        rejected = Some(OtlpError::rejected(count, points, &partial.error_message));
                    }
                }
                Err(error) => {
                    self.counters.dropped(points + messages.map(|message| message.points).sum::<u64>());
                    self.counters.failed(error.fault.name());
                    self.reports.failed(&error, Instant::now());
                    return error.end();
                }
            }
        }
        if let Some(error) = rejected {
            self.counters.failed(error.fault.name());
            self.reports.rejected(&error, Instant::now());
        } else {
            self.counters.succeeded(at);
            self.reports.sent(Instant::now());
        }
        ExportEnd::Sent
    }
}
