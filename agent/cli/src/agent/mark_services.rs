//! The marks of programs: their queue, their limits, the ledgers of marked jobs, and the service for both.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use ::marks::{
    inbox::{Writer, inbox},
    ledger_series::LedgerSeries,
    ledgers::MarkLedgers,
    quota::Quotas,
    step_series::StepSeries,
};
use model::{snapshot::HostSnapshot, time::Clock};
use proto::tpuscope::v1::marks_server::MarksServer;
use server::{grpc_marks::GrpcMarks, marks_listener::MarkIntake};
use store::{
    marks::{MarkLimits, Marks},
    state::StateDb,
};
use tokio::{
    sync::{Mutex, watch},
    time::MissedTickBehavior,
};
use tracing::warn;

use crate::{
    lifecycle::task_supervisor::{OnEnd, Stage, TaskResult, TaskSupervisor},
    settings::Config,
};

/// Time between two looks at the limits of the marks.
const LIMITS_EVERY: Duration = Duration::from_secs(60);
/// The largest request: 512 marks of 8 KiB.
const REQUEST_BYTES: usize = 5 << 20;
/// The name of the socket beside `api.socket`.
const SOCKET_NAME: &str = "marks.sock";
/// The name of the API socket of the only agent of a folder.
const API_NAME: &str = "agent.sock";

/// The parts of the agent that are about marks.
#[derive(Clone)]
pub(super) struct MarkServices {
    pub(super) service: MarksServer<GrpcMarks>,
    pub(super) intake: MarkIntake,
    /// The steps that were marked.
    pub(super) steps: Arc<StepSeries>,
    pub(super) marks: Arc<Marks>,
    pub(super) ledgers: Arc<MarkLedgers>,
    /// The same as series.
    pub(super) ledger_series: Arc<LedgerSeries>,
}

/// The path of the marks socket. `None`: no marks are taken.
pub(super) fn socket_path(config: &Config) -> Option<PathBuf> {
    if config.marks.max_size.get() == 0 {
        return None;
    }
    let named = &config.marks.socket;
    Some(if named.as_os_str().is_empty() { beside(&config.api.socket) } else { named.clone() })
}

/// The marks socket of an agent with this API socket. Agents that share a folder have a name each, so they do here.
fn beside(api: &Path) -> PathBuf {
    match api.file_name() {
        Some(name) if name != API_NAME => {
            let mut name = name.to_owned();
            name.push(".");
            name.push(SOCKET_NAME);
            api.with_file_name(name)
        }
        _ => api.with_file_name(SOCKET_NAME),
    }
}

/// The limits of the settings.
fn limits(config: &Config) -> MarkLimits {
    MarkLimits {
        keep: config.marks.keep.get(),
        max_bytes: config.marks.max_size.get(),
        min_free: config.store.min_free,
    }
}

impl MarkServices {
    /// Starts the tasks that store marks in `db` and apply their limits.
    pub(super) fn start(
        supervisor: &mut TaskSupervisor,
        config: &Config,
        db: Arc<StateDb>,
        workloads: watch::Receiver<HostSnapshot>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let marks = Arc::new(Marks::new(&config.agent.state_dir, db, limits(config), Arc::clone(&clock)));
        let ledgers = Arc::new(MarkLedgers::new(Arc::clone(&marks), Arc::clone(&clock)));
        let ledger_series =
            Arc::new(LedgerSeries::new(Arc::clone(&marks), Arc::clone(&ledgers), Arc::clone(&clock)));
        let steps = Arc::new(StepSeries::new(clock));
        let (inbox, writer) = inbox(Arc::clone(&marks), Arc::clone(&steps));
        start_writer(supervisor, writer);
        apply_limits(supervisor, &marks, &ledgers);
        let intake = MarkIntake { inbox, quotas: Arc::new(Quotas::new(config.marks.max_rate)), workloads };
        let takes_marks = socket_path(config).is_some();
        let service = GrpcMarks::new(intake.clone(), takes_marks, Arc::clone(&marks), Arc::clone(&ledgers));
        let service = MarksServer::new(service).max_decoding_message_size(REQUEST_BYTES);
        Self { service, intake, steps, marks, ledgers, ledger_series }
    }

    /// The settings hold for the next marks.
    pub(super) fn set_settings(&self, config: &Config) {
        self.intake.quotas.set_rate(config.marks.max_rate);
        self.marks.set_limits(limits(config));
    }
}

/// Stores what is submitted. It stops after the listeners, so that what was read is stored.
fn start_writer(supervisor: &mut TaskSupervisor, writer: Writer) {
    let writer = Arc::new(Mutex::new(writer));
    supervisor.task(Stage::Sampling, "marks", OnEnd::Restart, move |stop| {
        let writer = Arc::clone(&writer);
        async move {
            writer.lock().await.run(stop.clone()).await;
            // The listeners stop first: then nobody submits, and all is stored.
            stop.cancelled().await;
            TaskResult::Ok(())
        }
    });
}

/// Removes the marks that the limits have no room for, and forgets ledgers that nobody asks for.
fn apply_limits(supervisor: &mut TaskSupervisor, marks: &Arc<Marks>, ledgers: &Arc<MarkLedgers>) {
    let (marks, ledgers) = (Arc::clone(marks), Arc::clone(ledgers));
    supervisor.task(Stage::Sampling, "marks limits", OnEnd::Restart, move |stop| {
        let (marks, ledgers) = (Arc::clone(&marks), Arc::clone(&ledgers));
        async move {
            let mut ticks = tokio::time::interval(LIMITS_EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while stop.run_until_cancelled(ticks.tick()).await.is_some() {
                ledgers.forget_idle();
                let marks = Arc::clone(&marks);
                let pruned = tokio::task::spawn_blocking(move || marks.prune()).await;
                if let Ok(Err(error)) = pruned {
                    warn!(%error, "the limits of marks could not be applied");
                }
            }
            TaskResult::Ok(())
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_that_share_a_folder_have_a_marks_socket_each() {
        let of = |api: &str| beside(Path::new(api)).display().to_string();
        assert_eq!(of("/run/tpuscope/agent.sock"), "/run/tpuscope/marks.sock");
        assert_eq!(of("/run/tpuscope/host-2"), "/run/tpuscope/host-2.marks.sock");
        assert_eq!(of("/run/tpuscope/b.sock"), "/run/tpuscope/b.sock.marks.sock");
    }
}
