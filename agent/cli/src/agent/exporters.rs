//! The exporters that the settings switch on. One that is off has no task, no connection and no memory.

use std::sync::Arc;

use export::{
    cloud_monitoring::{self, CloudMonitoringInputs},
    otlp::{ExportingHost, OtlpExporter},
    tensorboard::live::{self, EventFileInputs},
};
use host::discovery::Discovery;
use jobs::ledger::LiveLedgers;
use model::time::Clock;
use sampling::sampler::Sampler;
use server::host_api::HostApi;

use super::mark_services::MarkServices;
use crate::{
    lifecycle::task_supervisor::{OnEnd, Stage, TaskSupervisor},
    remedies,
    settings::Config,
};

/// What exporters read.
pub(super) struct ExportedParts<'a> {
    pub(super) host: &'a str,
    pub(super) marks: &'a MarkServices,
    pub(super) sampler: &'a Sampler,
    pub(super) discovery: &'a Discovery,
    pub(super) ledgers: &'a Arc<LiveLedgers>,
    pub(super) clock: &'a Arc<dyn Clock>,
}

/// Starts them.
pub(super) fn start(supervisor: &mut TaskSupervisor, config: &Config, parts: &ExportedParts<'_>) {
    if config.export_cloud_monitoring.enabled {
        start_cloud_monitoring(supervisor, config, parts);
    }
    if !config.export_tensorboard.directory.as_os_str().is_empty() {
        start_tensorboard(supervisor, config, parts);
    }
}

fn start_cloud_monitoring(supervisor: &mut TaskSupervisor, config: &Config, parts: &ExportedParts<'_>) {
    let inputs = CloudMonitoringInputs {
        settings: config.export_cloud_monitoring.clone(),
        host: parts.host.to_owned(),
        marks: Arc::clone(&parts.marks.marks),
        ledgers: Arc::clone(&parts.marks.ledgers),
        workloads: parts.discovery.snapshot(),
        sampler: parts.sampler.clone(),
        clock: Arc::clone(parts.clock),
        remedy: remedies::cloud_monitoring,
    };
    supervisor.task(Stage::Sampling, "cloud monitoring", OnEnd::Restart, move |stop| {
        cloud_monitoring::run(inputs.clone(), stop)
    });
}

fn start_tensorboard(supervisor: &mut TaskSupervisor, config: &Config, parts: &ExportedParts<'_>) {
    let inputs = EventFileInputs {
        settings: config.export_tensorboard.clone(),
        host: parts.host.to_owned(),
        marks: Arc::clone(&parts.marks.marks),
        mark_ledgers: Arc::clone(&parts.marks.ledgers),
        ledgers: Arc::clone(parts.ledgers),
        clock: Arc::clone(parts.clock),
        remedy: remedies::event_files,
    };
    supervisor
        .task(Stage::Sampling, "tensorboard", OnEnd::Restart, move |stop| live::run(inputs.clone(), stop));
}

/// Starts the exporter to a collector of OpenTelemetry, if the settings name one. It sends what the metrics page shows.
pub(super) fn start_otlp(
    supervisor: &mut TaskSupervisor,
    config: &Config,
    host_api: &Arc<HostApi>,
    host: ExportingHost,
) {
    let settings = config.export_otlp.clone();
    let Some(url) = settings.endpoint.url().cloned() else { return };
    let api = Arc::clone(host_api);
    supervisor.task(Stage::Sampling, "otlp", OnEnd::Restart, move |stop| {
        let mut exporter = OtlpExporter::new(settings.clone(), url.clone(), &host, remedies::otlp);
        let api = Arc::clone(&api);
        async move {
            stop.run_until_cancelled(exporter.run(|take| api.gather(take))).await;
            Ok(())
        }
    });
}
