//! The session store, the captures into it, the uploads from it, and their gRPC services, which only the Unix socket
//! serves.

use std::{sync::Arc, time::Duration};

use ::sessions::{
    capture_runner::{CaptureRunner, CaptureRunnerInputs},
    continuous::{Continuous, ContinuousPaths},
    profiler::Profilers,
    recorder::{Recorder, RecorderInputs},
    trace_reading::TraceReader,
};
use host::discovery::Discovery;
use jobs::ledger::LiveLedgers;
use model::{step_times::StepTimes, time::Clock};
use proto::tpuscope::v1::{
    captures_server::CapturesServer, goodput_server::GoodputServer, recorder_server::RecorderServer,
    sessions_server::SessionsServer, uploads_server::UploadsServer,
};
use server::{
    grpc_captures::GrpcCaptures, grpc_goodput::GrpcGoodput, grpc_recorder::GrpcRecorder,
    grpc_server::REQUEST_BYTES, grpc_sessions::GrpcSessions, grpc_uploads::GrpcUploads,
};
use store::{
    AsyncStore, SessionStore,
    ledgers::Ledgers,
    segments::{SegmentLimits, Segments},
    state::StateDb,
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

/// The gRPC services of captures, goodput, the recorder, sessions and uploads.
pub(super) struct SessionServices {
    pub(super) captures: CapturesServer<GrpcCaptures>,
    /// The service behind it, for another protocol.
    pub(super) captures_service: GrpcCaptures,
    pub(super) goodput: GoodputServer<GrpcGoodput>,
    pub(super) recorder: RecorderServer<GrpcRecorder>,
    pub(super) sessions: SessionsServer<GrpcSessions>,
    pub(super) uploads: UploadsServer<GrpcUploads>,
    /// Runs the captures of both services.
    pub(super) runner: Arc<CaptureRunner>,
    /// The store that they write to.
    pub(super) store: AsyncStore,
    /// Where its sessions go.
    pub(super) queue: Uploads,
    /// Keeps the past of the workloads.
    pub(super) past: Past,
    /// The database in which the agent keeps what lasts.
    pub(super) state: Arc<StateDb>,
    /// Where the time of the jobs goes.
    pub(super) ledgers: Arc<LiveLedgers>,
}

/// The recorder, and what it keeps.
#[derive(Clone)]
pub(super) struct Past {
    pub(super) recorder: Arc<Recorder>,
    pub(super) segments: Arc<Segments>,
}

impl Past {
    /// The settings hold for the next windows.
    pub(super) fn set_settings(&self, config: &Config) {
        self.recorder.set_settings(config.recorder.clone(), config.capture.clone());
        self.segments.set_limits(segment_limits(config));
    }
}

/// The limits of the past.
fn segment_limits(config: &Config) -> SegmentLimits {
    SegmentLimits {
        keep: config.recorder.keep.get(),
        keep_continuous: config.recorder.keep_continuous.get(),
        max_bytes: config.recorder.max_size.get(),
        min_free: config.store.min_free,
    }
}

/// The settings of uploads.
pub(super) fn upload_settings(config: &Config) -> UploadSettings {
    UploadSettings { destinations: config.destination.clone(), upload: config.upload.clone() }
}

impl SessionServices {
    /// Opens the store in the state directory, whose lock the caller has, and starts the captures' task. What traces tell of
    /// steps goes to `steps`.
    pub(super) async fn start(
        supervisor: &mut TaskSupervisor,
        config: &Config,
        host: &str,
        discovery: Discovery,
        steps: Arc<StepTimes>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Failure> {
        let name = host.to_owned();
        let host = HostName::sanitised(host);
        let OpenedStore { store, queue, segments, state } =
            open_store(config, &host, Arc::clone(&clock)).await?;
        let ledgers = LiveLedgers::new(Ledgers::new(Arc::clone(&state)), Arc::clone(&clock));
        let profilers = Profilers::new(config.paths.procfs.clone());
        let continuous = continuous(config, &profilers).await;
        let reader = TraceReader::new(Arc::clone(&clock));
        let inputs = RecorderInputs {
            settings: config.recorder.clone(),
            limits: config.capture.clone(),
            host: host.clone(),
            profilers: Arc::clone(&profilers),
            continuous,
            segments: Arc::clone(&segments),
            reader: Arc::clone(&reader),
            steps: Arc::clone(&steps),
            store: store.clone(),
            uploads: queue.clone(),
            workloads: discovery.snapshot(),
            clock: Arc::clone(&clock),
        };
        let past = Past { recorder: open_recorder(inputs).await?, segments };
        start_recorder(supervisor, &past);
        let captures = CaptureRunner::new(CaptureRunnerInputs {
            settings: config.capture.clone(),
            profilers,
            store: store.clone(),
            uploads: queue.clone(),
            reader,
            steps,
            clock: Arc::clone(&clock),
        });
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
        let goodput = GrpcGoodput::new(Arc::clone(&ledgers), name, Arc::clone(&clock));
        let runner = captures.clone();
        let sessions = GrpcSessions::new(store.clone(), queue.clone(), clock, config.capture.max_size.get());
        let uploads = GrpcUploads::new(&sessions);
        let recorder =
            GrpcRecorder::new(Arc::clone(&past.recorder), discovery.clone(), host.clone(), &sessions);
        let captures = GrpcCaptures::new(captures, discovery, host, &sessions);
        Ok(Self {
            uploads: UploadsServer::new(uploads).max_decoding_message_size(MANIFEST_BYTES),
            captures_service: captures.clone(),
            captures: CapturesServer::new(captures).max_decoding_message_size(REQUEST_BYTES),
            goodput: GoodputServer::new(goodput).max_decoding_message_size(REQUEST_BYTES),
            recorder: RecorderServer::new(recorder).max_decoding_message_size(REQUEST_BYTES),
            sessions: SessionsServer::new(sessions).max_decoding_message_size(REQUEST_BYTES),
            runner,
            store,
            queue,
            past,
            state,
            ledgers,
        })
    }
}

/// The store, the uploads from it, the segments beside it, and the database of all three.
struct OpenedStore {
    store: AsyncStore,
    queue: Uploads,
    segments: Arc<Segments>,
    state: Arc<StateDb>,
}

/// The continuous profiling of this agent. What an agent before it has left in workloads is stopped in the background.
async fn continuous(config: &Config, profilers: &Arc<Profilers>) -> Arc<Continuous> {
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
    continuous
}

/// The recorder, with what earlier agents were told.
async fn open_recorder(inputs: RecorderInputs) -> Result<Arc<Recorder>, Failure> {
    let opened = tokio::task::spawn_blocking(|| Recorder::open(inputs)).await;
    let opened =
        opened.map_err(|error| Failure::internal(format_args!("cannot open the recorder: {error}")))?;
    opened.map_err(|error| remedies::store(error.into()))
}

/// Starts the task of the recorder, and another one that removes what has become too old.
fn start_recorder(supervisor: &mut TaskSupervisor, past: &Past) {
    let recorder = Arc::clone(&past.recorder);
    supervisor.task(Stage::Captures, "recorder", OnEnd::Restart, move |stop| {
        let recorder = Arc::clone(&recorder);
        async move {
            recorder.run(stop).await;
            TaskResult::Ok(())
        }
    });
    let segments = Arc::clone(&past.segments);
    supervisor.task(Stage::Sampling, "recorder disk", OnEnd::Restart, move |stop| {
        let segments = Arc::clone(&segments);
        async move {
            let mut ticks = tokio::time::interval(DISK_EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while stop.run_until_cancelled(ticks.tick()).await.is_some() {
                let segments = Arc::clone(&segments);
                let pruned = tokio::task::spawn_blocking(move || segments.prune()).await;
                if let Ok(Err(error)) = pruned {
                    warn!(%error, "the limits of the recorder could not be applied");
                }
            }
            TaskResult::Ok(())
        }
    });
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

/// Opens the store, the uploads from it and the segments beside it, and reads its sessions in the background.
async fn open_store(config: &Config, host: &HostName, clock: Arc<dyn Clock>) -> Result<OpenedStore, Failure> {
    let (state_dir, limits) = (config.agent.state_dir.clone(), config.store.clone());
    let segment_limits = segment_limits(config);
    let (host, settings) = (host.clone(), upload_settings(config));
    let open = move || {
        let store = SessionStore::open(&state_dir, limits, clock.clone())?;
        let db = store.state().clone();
        let uploads =
            Uploads::new(db.clone(), &state_dir.join("sessions"), host, settings, Arc::clone(&clock));
        uploads.load()?;
        let state = Arc::clone(&db);
        let segments = Arc::new(Segments::open(&state_dir, db, segment_limits, clock));
        Ok(OpenedStore { store: AsyncStore::new(store), queue: uploads, segments, state })
    };
    let opened = tokio::task::spawn_blocking(open).await;
    let opened = opened.map_err(|error| Failure::internal(format_args!("cannot open the store: {error}")))?;
    let opened = opened.map_err(remedies::store)?;
    let (filled, derived) = (opened.store.clone(), opened.queue.clone());
    tokio::spawn(async move {
        let filled = filled.call(move |store| {
            store.fill()?;
            Ok(derived.derive()?)
        });
        if let Err(error) = filled.await {
            warn!(%error, "cannot read the sessions in the store");
        }
    });
    Ok(opened)
}
