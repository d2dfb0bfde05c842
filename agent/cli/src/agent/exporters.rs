//! What sends or writes time series elsewhere, as the settings want it. An exporter that is off has no task, and costs nothing.

use std::sync::Arc;

use export::tensorboard::live::{self, ExportInputs};
use jobs::ledger::LiveLedgers;
use model::time::Clock;

use super::mark_services::MarkServices;
use crate::{
    lifecycle::task_supervisor::{OnEnd, Stage, TaskSupervisor},
    settings::Config,
};

/// What exporters ask.
pub(super) struct ExportSources<'a> {
    pub(super) host: &'a str,
    pub(super) marks: &'a MarkServices,
    pub(super) ledgers: &'a Arc<LiveLedgers>,
    pub(super) clock: &'a Arc<dyn Clock>,
}

/// Starts the exporters that are on.
pub(super) fn start(supervisor: &mut TaskSupervisor, config: &Config, sources: &ExportSources<'_>) {
    if !config.export_tensorboard.directory.as_os_str().is_empty() {
        start_tensorboard(supervisor, config, sources);
    }
}

fn start_tensorboard(supervisor: &mut TaskSupervisor, config: &Config, sources: &ExportSources<'_>) {
    let (settings, host) = (config.export_tensorboard.clone(), sources.host.to_owned());
    let inputs = ExportInputs {
        marks: Arc::clone(&sources.marks.marks),
        mark_ledgers: Arc::clone(&sources.marks.ledgers),
        ledgers: Arc::clone(sources.ledgers),
        clock: Arc::clone(sources.clock),
    };
    supervisor.task(Stage::Sampling, "tensorboard", OnEnd::Restart, move |stop| {
        let (settings, host, inputs) = (settings.clone(), host.clone(), inputs.clone());
        async move { live::run(settings, &host, inputs, stop).await }
    });
}
