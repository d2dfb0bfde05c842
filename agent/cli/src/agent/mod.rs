//! `tpuscope agent`: assembles and runs the daemon.

mod exporters;
mod job_services;
mod listeners;
mod mark_services;
mod own_metrics;
mod reload;
mod session_services;
mod sources;

use std::{collections::BTreeMap, fmt, path::PathBuf, sync::Arc, time::Duration};

use export::otlp::ExportingHost;
use exporters::ExportedParts;
use host::discovery::{Discovery, DiscoveryConfig};
use job_services::JobServices;
use jobs::ledger::{LedgerInputs, LiveLedgers};
use mark_services::MarkServices;
use model::{
    pace::Pace,
    step_times::StepTimes,
    time::{Clock, SystemClock},
};
use reload::Reloadable;
use sampling::{sampler::Sampler, settings::sampler::ReadInterval};
use server::{
    ended_jobs::EndedJobs,
    host_api::{AgentIdentity, HostApi, HostApiInputs},
    settings::check_socket_path,
};
use session_services::SessionServices;
use store::lock::Lock;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{CommandResult, exit::Exit, failure::Failure, output::one_line, remedies, settings_args};
use crate::{
    lifecycle::{
        logging::{self, LogLevel},
        notify::{self, Watched},
        signals::{ReloadSignals, StopSignals},
        task_supervisor::{OnEnd, Stage, TaskResult, TaskSupervisor},
    },
    settings::{self, Config, IgnoredVariable, LoadedSettings, SettingSource},
};

/// The largest number of threads for blocking work: scans of /proc, the user database and the session store. Each trace
/// that arrives has its own threads. An idle thread ends.
const MAX_BLOCKING_THREADS: usize = 24;
/// An agent whose sources have no value is ready after this time.
const READY_WITHOUT_SAMPLE: Duration = Duration::from_secs(10);

/// Arguments of `agent`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    settings: settings_args::Args,
    /// Path of the Unix socket [default: TPUSCOPE_SOCKET, else the setting api.socket]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl Args {
    /// The settings, with the path of the socket of the arguments.
    fn load(&self) -> Result<LoadedSettings, Failure> {
        self.with_socket(self.settings.of_agent()?)
    }

    /// The same, however long a file system needs.
    fn load_unbounded(&self) -> Result<LoadedSettings, Failure> {
        self.with_socket(self.settings.of_agent_unbounded()?)
    }

    fn with_socket(&self, mut loaded: LoadedSettings) -> Result<LoadedSettings, Failure> {
        if let Some(socket) = &self.socket {
            let wrong = |error: &dyn fmt::Display| Failure::new(Exit::Config, format!("--socket: {error}"));
            let socket = std::path::absolute(socket).map_err(|error| wrong(&error))?;
            check_socket_path(&socket).map_err(|error| wrong(&error))?;
            loaded.config.api.socket = socket;
        }
        Ok(loaded)
    }

    /// The source of the path of the socket, for errors.
    fn socket_setting(&self, sources: &BTreeMap<String, SettingSource>) -> &'static str {
        match sources.get("api.socket") {
            _ if self.socket.is_some() => "--socket",
            Some(SettingSource::Variable(name)) if name == settings::SOCKET_VARIABLE => {
                settings::SOCKET_VARIABLE
            }
            _ => "api.socket",
        }
    }
}

pub(super) fn run(args: &Args) -> CommandResult {
    let LoadedSettings { config, sources, ignored } = args.load()?;
    let socket_setting = args.socket_setting(&sources);
    let log_level = logging::start(&config.log);
    for IgnoredVariable { name, nearest } in &ignored {
        warn!(variable = one_line(name), meant = nearest, "a variable is no setting and is ignored");
    }
    let state = &config.agent.state_dir;
    let _state = Lock::in_dir(state, "agent.lock").map_err(|error| remedies::state_dir(&error, state))?;
    // One thread for all asynchronous work: passing it between threads costs more than doing it.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        .enable_all()
        .build()
        .map_err(|error| Failure::internal(format_args!("cannot start threads: {error}")))?;
    let ended = runtime.block_on(serve(args, config, socket_setting, log_level));
    // A thread that hangs in the kernel must not keep the process alive.
    runtime.shutdown_timeout(Duration::from_millis(200));
    ended
}

/// Binds the listeners, runs the tasks until a signal or a fatal error, and stops them.
async fn serve(
    args: &Args,
    config: Config,
    socket_setting: &'static str,
    log_level: LogLevel,
) -> CommandResult {
    let no_signals = |error| Failure::internal(format_args!("cannot handle signals: {error}"));
    let mut signals = StopSignals::new().map_err(no_signals)?;
    let reload_signals = ReloadSignals::new().map_err(no_signals)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let listeners = listeners::Listeners::bind(&config, socket_setting, clock.clone()).await?;
    let started = clock.now();
    let own = own_metrics::install(started);
    let sampler = Sampler::new(&config.sampler, clock.clone());
    let discovery_config = DiscoveryConfig {
        paths: config.paths.clone(),
        device: config.device.clone(),
        workload: config.workload.clone(),
        state_dir: config.agent.state_dir.clone(),
    };
    let discovery = Discovery::new(discovery_config, clock.clone());
    let mut supervisor = TaskSupervisor::default();
    let host = host_name(&config);
    let steps = StepTimes::new(clock.clone());
    let session_services = SessionServices::start(
        &mut supervisor,
        &config,
        &host,
        discovery.clone(),
        Arc::clone(&steps),
        clock.clone(),
    )
    .await?;
    let db = Arc::clone(&session_services.state);
    let ended = EndedJobs::new(
        session_services.store.clone(),
        session_services.queue.clone(),
        Arc::clone(&session_services.ledgers),
    );
    let job_services =
        JobServices::start(&mut supervisor, &config, db, discovery.clone(), ended, clock.clone()).await?;
    let db = Arc::clone(&session_services.state);
    let mark_services =
        MarkServices::start(&mut supervisor, &config, db, discovery.snapshot(), clock.clone());
    let exported = ExportedParts {
        host: &host,
        marks: &mark_services,
        sampler: &sampler,
        discovery: &discovery,
        ledgers: &session_services.ledgers,
        clock: &clock,
    };
    exporters::start(&mut supervisor, &config, &exported);
    let remote = listeners.remote().map(|(listener, address)| (listener.clone(), address));
    let (remote, remote_address) = remote.unzip();
    let exporting = ExportingHost { host: host.clone(), started };
    let identity = AgentIdentity {
        host,
        http: listeners.http_address(),
        grpc: listeners.grpc_address(),
        remote: remote_address,
    };
    let inputs = HostApiInputs {
        sampler: sampler.clone(),
        snapshot: discovery.snapshot(),
        notes: discovery.notes(),
        own,
        uploads: session_services.queue.clone(),
        ledgers: Arc::clone(&session_services.ledgers),
        steps: Arc::clone(&steps),
        marked_steps: Arc::clone(&mark_services.steps),
        marked_ledgers: Arc::clone(&mark_services.ledger_series),
        certificates: remote.as_ref().map(|listener| listener.notes()),
    };
    let host_api = Arc::new(HostApi::new(identity, clock, inputs));

    // Processes are scanned at the interval of the settings, even if the sampler is slower or the host idle.
    let scan = config.workload.scan_interval.get().max(ReadInterval::MIN.get());
    let scan_pace = sampler.pace(config.sampler.interval.get().min(scan)).no_idler_than(scan);
    start_discovery(&mut supervisor, &discovery, sampler.epoch(), scan_pace);
    sources::start(&mut supervisor, &config, &sampler, &discovery, &steps);
    start_ledgers(&mut supervisor, &session_services.ledgers, &sampler, &discovery);
    exporters::start_otlp(&mut supervisor, &config, &host_api, exporting);
    start_watchdog(&mut supervisor, sampler.clone(), discovery);
    let (set_hosts, hosts) = watch::channel(config.api.allowed_hosts.clone());
    let reloadable = Reloadable {
        log_level,
        allowed_hosts: set_hosts,
        captures: session_services.runner.clone(),
        store: session_services.store.clone(),
        uploads: session_services.queue.clone(),
        past: session_services.past.clone(),
        jobs: job_services.jobs.clone(),
        marks: mark_services.clone(),
        remote,
    };
    reload::start(&mut supervisor, args, &config, reloadable, reload_signals);
    let services = (session_services, job_services, mark_services);
    let health = listeners.serve(&mut supervisor, &host_api, services, &config.api, hosts)?;
    let ready = tokio::spawn(report_ready(sampler, host_api, health));
    info!(version = env!("CARGO_PKG_VERSION"), socket = %config.api.socket.display(), "started");

    let ended = tokio::select! {
        signal = signals.next() => {
            info!(signal, "stopping");
            Ok(Exit::Ok)
        }
        why = supervisor.fatal() => {
            error!(why, "stopping");
            Err(remedies::task_ended(why))
        }
    };
    ready.abort();
    notify::stopping();
    let hurry = async {
        signals.next().await;
    };
    supervisor.stop(config.agent.stop_timeout.get(), hurry).await;
    ended
}

fn host_name(config: &Config) -> String {
    if !config.agent.host.is_empty() {
        return config.agent.host.clone();
    }
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    name.unwrap_or_else(|| "localhost".into())
}

fn start_discovery(supervisor: &mut TaskSupervisor, discovery: &Discovery, epoch: Instant, pace: Pace) {
    let discovery = discovery.clone();
    supervisor.task(Stage::Sampling, "discovery", OnEnd::Restart, move |stop| {
        let discovery = discovery.clone();
        async move { discovery.run(epoch, pace, stop).await }
    });
}

/// Starts the task of the ledgers, which listens to the samples from the first scan on.
fn start_ledgers(
    supervisor: &mut TaskSupervisor,
    ledgers: &Arc<LiveLedgers>,
    sampler: &Sampler,
    discovery: &Discovery,
) {
    let (ledgers, sampler, discovery) = (Arc::clone(ledgers), sampler.clone(), discovery.clone());
    supervisor.task(Stage::Sampling, "ledgers", OnEnd::Restart, move |stop| {
        let (ledgers, sampler, discovery) = (Arc::clone(&ledgers), sampler.clone(), discovery.clone());
        async move {
            // Before the first scan, no job seems to have a chip.
            if stop.run_until_cancelled(discovery.first_scan()).await.is_some() {
                let inputs = LedgerInputs {
                    batches: sampler.batches(),
                    host: discovery.snapshot(),
                    epoch: sampler.epoch(),
                };
                ledgers.run(inputs, stop).await;
            }
            TaskResult::Ok(())
        }
    });
}

fn start_watchdog(supervisor: &mut TaskSupervisor, sampler: Sampler, discovery: Discovery) {
    let watched = move || {
        let (sampler, discovery) = (sampler.clone(), discovery.clone());
        vec![
            Watched { name: "sampler", is_late: Box::new(move || sampler.is_late()) },
            Watched { name: "discovery", is_late: Box::new(move || discovery.is_late()) },
        ]
    };
    supervisor.task(Stage::Sampling, "watchdog", OnEnd::EndProcess, move |stop: CancellationToken| {
        let watched = watched();
        async move {
            notify::watchdog(watched, stop).await;
            TaskResult::Ok(())
        }
    });
}

/// Reports the agent as ready once it has samples.
async fn report_ready(
    sampler: Sampler,
    host_api: Arc<HostApi>,
    health: tonic_health::server::HealthReporter,
) {
    if tokio::time::timeout(READY_WITHOUT_SAMPLE, sampler.first_sample()).await.is_err() {
        warn!(after = ?READY_WITHOUT_SAMPLE, "no source has a value yet; `tpuscope status` shows the reasons");
        notify::ready();
        sampler.first_sample().await;
    }
    host_api.first_sample();
    health.set_service_status("", tonic_health::ServingStatus::Serving).await;
    notify::ready();
    info!("first sample received");
}
