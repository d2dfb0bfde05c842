//! The session store, the captures into it, and their gRPC services, which only the Unix socket serves.

use std::{sync::Arc, time::Duration};

use ::sessions::{capture_runner::CaptureRunner, profiler::Profilers};
use host::discovery::Discovery;
use model::time::Clock;
use proto::tpuscope::v1::{captures_server::CapturesServer, sessions_server::SessionsServer};
use server::{grpc_captures::GrpcCaptures, grpc_server::REQUEST_BYTES, grpc_sessions::GrpcSessions};
use store::{AsyncStore, SessionStore};
use tokio::time::MissedTickBehavior;
use tracing::warn;
use xprof::session::HostName;

use crate::{
    failure::Failure,
    lifecycle::task_supervisor::{OnEnd, Stage, TaskResult, TaskSupervisor},
    remedies,
    settings::Config,
};

/// Time between two reads of the free disk.
const DISK_EVERY: Duration = Duration::from_secs(60);

/// The gRPC services of captures and sessions.
pub(super) struct SessionServices {
    pub(super) captures: CapturesServer<GrpcCaptures>,
    pub(super) sessions: SessionsServer<GrpcSessions>,
    /// Runs the captures of both services.
    pub(super) runner: Arc<CaptureRunner>,
    /// The store that they write to.
    pub(super) store: AsyncStore,
}

impl SessionServices {
    /// Opens the store in the state directory, whose lock the caller has, and starts the captures' task.
    pub(super) async fn start(
        supervisor: &mut TaskSupervisor,
        config: &Config,
        host: &str,
        discovery: Discovery,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Failure> {
        let store = open_store(config, Arc::clone(&clock)).await?;
        let profilers = Profilers::new(config.paths.procfs.clone());
        let captures = CaptureRunner::new(config.capture.clone(), profilers, store.clone(), clock);
        measure_disk(supervisor, &store);
        let ending = captures.clone();
        supervisor.task(Stage::Captures, "captures", OnEnd::EndProcess, move |stop| {
            let captures = ending.clone();
            async move {
                captures.end_with(stop).await;
                TaskResult::Ok(())
            }
        });
        let runner = captures.clone();
        let sessions = GrpcSessions::new(store.clone());
        let captures = GrpcCaptures::new(captures, discovery, HostName::sanitised(host), &sessions);
        Ok(Self {
            captures: CapturesServer::new(captures).max_decoding_message_size(REQUEST_BYTES),
            sessions: SessionsServer::new(sessions).max_decoding_message_size(REQUEST_BYTES),
            runner,
            store,
        })
    }
}

/// Measures the free disk of the store and applies its limits now and then.
fn measure_disk(supervisor: &mut TaskSupervisor, store: &AsyncStore) {
    let store = store.clone();
    supervisor.task(Stage::Sampling, "store disk", OnEnd::Restart, move |stop| {
        let store = store.clone();
        async move {
            let mut ticks = tokio::time::interval(DISK_EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while stop.run_until_cancelled(ticks.tick()).await.is_some() {
                if let Err(error) = store.call(SessionStore::measure_free).await {
                    warn!(%error, "cannot read the free disk of the store");
                }
                if let Err(error) = store.call(SessionStore::retain).await {
                    warn!(%error, "the limits of the store could not be applied");
                }
            }
            TaskResult::Ok(())
        }
    });
}

/// Opens the store and reads its sessions in the background.
async fn open_store(config: &Config, clock: Arc<dyn Clock>) -> Result<AsyncStore, Failure> {
    let (state_dir, limits) = (config.agent.state_dir.clone(), config.store.clone());
    let opened = tokio::task::spawn_blocking(move || SessionStore::open(&state_dir, limits, clock)).await;
    let opened = opened.map_err(|error| Failure::internal(format_args!("cannot open the store: {error}")))?;
    let store = AsyncStore::new(opened.map_err(remedies::store)?);
    let filled = store.clone();
    tokio::spawn(async move {
        if let Err(error) = filled.call(SessionStore::fill).await {
            warn!(%error, "cannot read the sessions in the store");
        }
    });
    Ok(store)
}
