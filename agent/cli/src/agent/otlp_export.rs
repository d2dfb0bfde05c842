//! The task that exports to a collector of OpenTelemetry. There is none unless the settings name one.

use std::sync::Arc;

use export::otlp::{ExportingHost, OtlpExporter};
use server::host_api::HostApi;

use crate::{
    lifecycle::task_supervisor::{OnEnd, Stage, TaskSupervisor},
    remedies,
    settings::Config,
};

/// Starts the task, if exports are on.
pub(super) fn start(
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
