//! `tpuscope agent`: the composition root, where every room of the daemon is put together.

pub(crate) mod failure;
mod listeners;
mod own_metrics;
mod sources;
mod traces;

use std::{path::PathBuf, sync::Arc, time::Duration};

use host::discovery::{Discovery, DiscoveryConfig};
use model::{
    pace::Pace,
    time::{Clock, SystemClock},
};
use sampling::{sampler::Sampler, settings::sampler::ReadInterval};
use server::{
    host_api::{AgentIdentity, HostApi, HostApiInputs},
    settings::check_socket_path,
};
use store::lock::Lock;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{
    Outcome, client,
    exit::{Exit, Failure},
    settings_args,
};
use crate::{
    lifecycle::{
        logging,
        notify::{self, Watched},
        signals::StopSignals,
        supervise::{Ended, OnEnd, Stage, Supervisor},
    },
    settings::Config,
};

/// Threads for what blocks: looking at /proc, asking the user database, and writing traces, each of which takes one
/// for as long as it arrives. An idle thread ends by itself.
const BLOCKING: usize = 24;
/// An agent whose sources have nothing to say is ready after this long all the same.
const QUIET: Duration = Duration::from_secs(10);

/// Arguments of `agent`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    settings: settings_args::Args,
    /// The Unix socket to serve on; wins over `api.socket`
    #[arg(long, value_name = "PATH", env = "TPUSCOPE_SOCKET")]
    socket: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Outcome {
    let mut config = args.settings.load()?;
    let mut socket_setting = "api.socket";
    if let Some(socket) = &args.socket {
        socket_setting = if client::is_from_variable(socket) { client::VARIABLE } else { "--socket" };
        check_socket_path(socket)
            .map_err(|error| Failure::new(Exit::Config, format!("{socket_setting}: {error}")))?;
        config.api.socket.clone_from(socket);
    }
    logging::start(&config.log);
    let state = &config.agent.state_dir;
    let _state = Lock::in_dir(state, "agent.lock").map_err(|error| failure::state(&error, state))?;
    // One thread for all that waits: handing work between threads costs more than the work.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(BLOCKING)
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Internal, format!("cannot start threads: {error}")))?;
    let ended = runtime.block_on(live(config, socket_setting));
    // A thread that hangs in the kernel must not keep the process.
    runtime.shutdown_timeout(Duration::from_millis(200));
    ended
}

/// From the listeners to the last task.
async fn live(config: Config, socket_setting: &str) -> Outcome {
    let mut signals = StopSignals::new()
        .map_err(|error| Failure::new(Exit::Internal, format!("cannot watch for signals: {error}")))?;
    let listeners = listeners::Listeners::open(&config.api, socket_setting)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let own = own_metrics::install(clock.now());
    let sampler = Sampler::new(&config.sampler, clock.clone());
    let territory = DiscoveryConfig {
        paths: config.paths.clone(),
        device: config.device.clone(),
        workload: config.workload.clone(),
    };
    let discovery = Discovery::new(territory, clock.clone());
    let place = AgentIdentity {
        host: host_name(&config),
        http: listeners.http_address(),
        grpc: listeners.grpc_address(),
    };
    let sight = HostApiInputs {
        sampler: sampler.clone(),
        snapshot: discovery.snapshot(),
        notes: discovery.notes(),
        own,
    };
    let host_api = Arc::new(HostApi::new(place, clock, sight));

    let mut supervisor = Supervisor::default();
    let traces = traces::Traces::open(&mut supervisor, &config, &host_name(&config), discovery.clone())?;
    // Neither a slow sampler nor an idle host keeps anybody from being seen when the settings say.
    let scan = config.workload.scan_interval.get().max(ReadInterval::MIN.get());
    let scouting = sampler.pace(config.sampler.interval.get().min(scan)).no_idler_than(scan);
    look(&mut supervisor, &discovery, sampler.epoch(), scouting);
    sources::drive(&mut supervisor, &config, &sampler, &discovery);
    watch(&mut supervisor, sampler.clone(), discovery);
    let health = listeners.serve(&mut supervisor, &host_api, traces, &config.api)?;
    let ready = tokio::spawn(announce(sampler, host_api, health));
    info!(version = env!("CARGO_PKG_VERSION"), socket = %config.api.socket.display(), "started");

    let ended = tokio::select! {
        signal = signals.next() => {
            info!(signal, "stopping");
            Ok(Exit::Ok)
        }
        why = supervisor.fatal() => {
            error!(why, "stopping");
            Err(Failure::new(Exit::Internal, why).remedy("the log says more"))
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

fn look(supervisor: &mut Supervisor, discovery: &Discovery, epoch: Instant, pace: Pace) {
    let discovery = discovery.clone();
    supervisor.task(Stage::Sampling, "discovery", OnEnd::Restart, move |stop| {
        let discovery = discovery.clone();
        async move { discovery.run(epoch, pace, stop).await }
    });
}

fn watch(supervisor: &mut Supervisor, sampler: Sampler, discovery: Discovery) {
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
            Ended::Ok(())
        }
    });
}

/// Tells everybody when there are samples.
async fn announce(sampler: Sampler, host_api: Arc<HostApi>, health: tonic_health::server::HealthReporter) {
    if tokio::time::timeout(QUIET, sampler.first_sample()).await.is_err() {
        warn!(after = ?QUIET, "no source has a value yet; `tpuscope status` says why");
        notify::ready();
        sampler.first_sample().await;
    }
    host_api.first_sample();
    health.set_service_status("", tonic_health::ServingStatus::Serving).await;
    notify::ready();
    info!("first sample");
}
