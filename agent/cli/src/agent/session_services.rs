//! The session store, the captures into it, the uploads from it, and their gRPC services, which only the Unix socket
//! serves.

use std::{sync::Arc, time::Duration};

use ::sessions::{
    capture_runner::CaptureRunner,
    continuous::{Continuous, ContinuousPaths},
    profiler::Profilers,
};
use host::discovery::Discovery;
use model::time::Clock;
use proto::tpuscope::v1::{
    captures_server::CapturesServer, sessions_server::SessionsServer, uploads_server::UploadsServer,
};
use server::{
    grpc_captures::GrpcCaptures, grpc_server::REQUEST_BYTES, grpc_sessions::GrpcSessions,
    grpc_uploads::GrpcUploads,
};
use store::{
    AsyncStore, SessionStore,
    uploads::{UploadSettings, Uploads},
};
use tokio::time::MissedTickBehavior;
use tracing::warn;
use xprof::session::HostName;

use crate::{
    failure::Failure,
    lifecycle::task_supervisor::{OnEnd, Stage, TaskResult, TaskSupervisor},
    profilers::guard_command,
    remedies,
    settings::Config,
};

/// The largest request to the uploads, which is the manifest of many hosts: about 700 bytes for each process.
const MANIFEST_BYTES: usize = 8 << 20;
/// Time between two reads of the free disk.
const DISK_EVERY: Duration = Duration::from_secs(60);

/// The gRPC services of captures, sessions and uploads.
pub(super) struct SessionServices {
    pub(super) captures: CapturesServer<GrpcCaptures>,
    pub(super) sessions: SessionsServer<GrpcSessions>,
    pub(super) uploads: UploadsServer<GrpcUploads>,
    /// Runs the captures of both services.
    pub(super) runner: Arc<CaptureRunner>,
    /// The store that they write to.
    pub(super) store: AsyncStore,
    /// Where its sessions go.
    pub(super) queue: Uploads,
}

/// The settings of uploads.
pub(super) fn upload_settings(config: &Config) -> UploadSettings {
    UploadSettings { destinations: config.destination.clone(), upload: config.upload.clone() }
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
        let host = HostName::sanitised(host);
        let (store, queue) = open_store(config, &host, Arc::clone(&clock)).await?;
        let profilers = Profilers::new(config.paths.procfs.clone());
        stop_what_is_left(config, &profilers).await;
        let captures = CaptureRunner::new(
            config.capture.clone(),
            profilers,
            store.clone(),
            queue.clone(),
            Arc::clone(&clock),
        );
        measure_disk(supervisor, &store);
        start_uploads(supervisor, &queue);
        let ending = captures.clone();
        supervisor.task(Stage::Captures, "captures", OnEnd::EndProcess, move |stop| {
            let captures = ending.clone();
            async move {
                captures.end_with(stop).await;
                TaskResult::Ok(())
            }
        });
        let runner = captures.clone();
        let sessions = GrpcSessions::new(store.clone(), queue.clone(), clock, config.capture.max_size.get());
        let uploads = GrpcUploads::new(&sessions);
        let captures = GrpcCaptures::new(captures, discovery, host, &sessions);
        Ok(Self {
            uploads: UploadsServer::new(uploads).max_decoding_message_size(MANIFEST_BYTES),
            captures: CapturesServer::new(captures).max_decoding_message_size(REQUEST_BYTES),
            sessions: SessionsServer::new(sessions).max_decoding_message_size(REQUEST_BYTES),
            runner,
            store,
            queue,
        })
    }
}

/// Continuous profiling that an agent before this one has left in workloads is stopped in the background.
async fn stop_what_is_left(config: &Config, profilers: &Arc<Profilers>) {
    let state_dir = config.agent.state_dir.clone();
    let guard = guard_command(&state_dir);
    let paths = ContinuousPaths {
        state_dir,
        procfs: config.paths.procfs.clone(),
        cgroups: config.paths.sysfs.join("fs/cgroup"),
    };
    let continuous = Continuous::new(Arc::clone(profilers), paths, guard);
    if let Err(error) = continuous.recover().await {
        warn!(%error, "the records of continuous profiling cannot be read");
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

/// Starts the task of the uploads. On a stop it has its share of `agent.stop_timeout`.
fn start_uploads(supervisor: &mut TaskSupervisor, uploads: &Uploads) {
    let uploads = uploads.clone();
    supervisor.task(Stage::Uploads, "uploads", OnEnd::Restart, move |stop| {
        let uploads = uploads.clone();
        async move { uploads.run(stop).await }
    });
}

/// Opens the store and the uploads from it, and reads its sessions in the background.
async fn open_store(
    config: &Config,
    host: &HostName,
    clock: Arc<dyn Clock>,
) -> Result<(AsyncStore, Uploads), Failure> {
    let (state_dir, limits) = (config.agent.state_dir.clone(), config.store.clone());
    let (host, settings) = (host.clone(), upload_settings(config));
    let open = move || {
        let store = SessionStore::open(&state_dir, limits, clock.clone())?;
        let uploads = Uploads::new(store.state().clone(), &state_dir.join("sessions"), host, settings, clock);
        uploads.load()?;
        Ok((AsyncStore::new(store), uploads))
    };
    let opened = tokio::task::spawn_blocking(open).await;
    let opened = opened.map_err(|error| Failure::internal(format_args!("cannot open the store: {error}")))?;
    let (store, uploads) = opened.map_err(remedies::store)?;
    let (filled, derived) = (store.clone(), uploads.clone());
    tokio::spawn(async move {
        let filled = filled.call(move |store| {
            store.fill()?;
            Ok(derived.derive()?)
        });
        if let Err(error) = filled.await {
            warn!(%error, "cannot read the sessions in the store");
        }
    });
    Ok((store, uploads))
}
