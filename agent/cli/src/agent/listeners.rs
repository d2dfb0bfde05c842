//! The listeners of the agent. They are bound before any task starts, so that a conflict ends the start.

use std::{net::SocketAddr, os::unix::net, path::PathBuf, sync::Arc};

use model::time::Clock;
use proto::tpuscope::v1::host_server::HostServer;
use server::{
    agent_socket::AgentSocket,
    auth_layer::AuthLayer,
    connections::ServerListener,
    grpc_host::GrpcHost,
    grpc_server::{self, REQUEST_BYTES},
    host_api::HostApi,
    http_server,
    marks_listener::{MarkIntake, MarksListener},
    peer,
    remote::{OpenedFiles, RemoteListener, settings::RemoteSettings},
    scrape::ScrapeListener,
    settings::{LoopbackListen, Settings},
    xprof::{XprofInputs, XprofService, listener as xprof_listener},
};
use tokio::{
    net::{TcpListener, UnixListener},
    sync::watch,
    time::timeout,
};
use tonic::service::Routes;
use tonic_health::server::HealthReporter;
use tracing::info;

use super::{
    job_services::JobServices,
    mark_services::{self, MarkServices},
    session_services::SessionServices,
};
use crate::{
    failure::Failure,
    lifecycle::task_supervisor::{OnEnd, Stage, TaskSupervisor},
    remedies,
    settings::Config,
    settings_args::READ_LIMIT,
};

/// The bound listeners, which do not accept connections yet.
pub(super) struct Listeners {
    socket: AgentSocket,
    unix: Arc<ServerListener>,
    marks: Option<(AgentSocket, net::UnixListener)>,
    http: Option<(Arc<ServerListener>, SocketAddr)>,
    grpc: Option<(Arc<ServerListener>, SocketAddr)>,
    metrics: Option<(Arc<ScrapeListener>, SocketAddr)>,
    remote: Option<(Arc<RemoteListener>, SocketAddr)>,
    xprof: Option<(Arc<ServerListener>, SocketAddr)>,
    overflow_uid: Option<u32>,
    /// The user whose hooks are believed.
    slurm_uid: Option<u32>,
}

impl Listeners {
    /// Binds the listeners of the settings. `socket_setting` names the source of the socket's path for errors.
    pub(super) async fn bind(
        config: &Config,
        socket_setting: &'static str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Failure> {
        let settings = &config.api;
        let Settings { socket, socket_mode, socket_group, .. } = settings.clone();
        let (slurm, marks_path) = (config.slurm.clone(), mark_services::socket_path(config));
        // The user database may be a directory server, and the socket's folder a slow disk.
        let claim = tokio::task::spawn_blocking(move || {
            let slurm_uid = slurm.uid().map_err(|error| remedies::slurm_user(&error))?;
            let claimed = AgentSocket::claim(&socket, socket_mode, &socket_group)
                .map_err(|error| remedies::agent_socket(&error, socket_setting))?;
            let marks = marks_path.map(|path| AgentSocket::claim_packets(&path, socket_mode, &socket_group));
            let marks = marks.transpose().map_err(|error| remedies::agent_socket(&error, "marks.socket"))?;
            Ok::<_, Failure>((claimed, marks, peer::overflow_uid(), slurm_uid))
        });
        let ((socket, unix), marks, overflow_uid, slurm_uid) = claim
            .await
            .map_err(|error| Failure::internal(format_args!("cannot create the sockets: {error}")))??;
        let unix = UnixListener::from_std(unix)
            .map_err(|error| Failure::internal(format_args!("cannot watch the socket: {error}")))?;
        Ok(Self {
            socket,
            unix: Arc::new(ServerListener::Unix(unix)),
            marks,
            http: bind_tcp("api.http", settings.http)?,
            grpc: bind_tcp("api.grpc", settings.grpc)?,
            metrics: bind_metrics(settings, Arc::clone(&clock)).await?,
            remote: bind_remote(&config.api_remote, settings.max_connections, clock).await?,
            xprof: bind_tcp("api.xprof", settings.xprof)?,
            overflow_uid,
            slurm_uid,
        })
    }

    pub(super) fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(|(_, address)| *address)
    }

    pub(super) fn grpc_address(&self) -> Option<SocketAddr> {
        self.grpc.as_ref().map(|(_, address)| *address)
    }

    /// The listener for other hosts, if it is on, and its address.
    pub(super) fn remote(&self) -> Option<(&Arc<RemoteListener>, SocketAddr)> {
        self.remote.as_ref().map(|(listener, address)| (listener, *address))
    }

    /// Starts a task for each listener. HTTP accepts the present `allowed_hosts`. Returns the reporter of the health service.
    pub(super) fn serve(
        self,
        supervisor: &mut TaskSupervisor,
        host_api: &Arc<HostApi>,
        (session_services, job_services, mark_services): (SessionServices, JobServices, MarkServices),
        settings: &Settings,
        allowed_hosts: watch::Receiver<Vec<String>>,
    ) -> Result<HealthReporter, Failure> {
        let health = HealthReporter::new();
        let read_only = read_only_routes(host_api, &health);
        let max = settings.max_connections;
        if let Some((listener, address)) = self.http {
            info!(%address, "serving HTTP (read-only)");
            let host_api = host_api.clone();
            supervisor.task(Stage::Listeners, "http", OnEnd::Restart, move |stop| {
                http_server::serve(listener.clone(), host_api.clone(), allowed_hosts.clone(), max, stop)
            });
        }
        let auth_layer = AuthLayer::new(&settings.admin_group, self.slurm_uid, self.overflow_uid);
        if let Some((listener, address)) = self.grpc {
            info!(%address, "serving gRPC (read-only)");
            let (auth_layer, routes) = (auth_layer.clone(), read_only.clone());
            supervisor.task(Stage::Listeners, "grpc", OnEnd::Restart, move |stop| {
                grpc_server::serve(listener.clone(), auth_layer.clone(), routes.clone(), max, stop)
            });
        }
        if let Some((listener, address)) = self.metrics {
            info!(%address, "serving metrics to other hosts (read-only)");
            let host_api = host_api.clone();
            supervisor.task(Stage::Listeners, "metrics", OnEnd::Restart, move |stop| {
                listener.clone().serve(host_api.clone(), stop)
            });
        }
        if let Some((listener, address)) = self.xprof {
            info!(%address, "serving clients of XProf");
            let auth_layer = auth_layer.clone().with_anyone_profiling(settings.xprof_anyone);
            let service = XprofService::new(xprof_inputs(&session_services, host_api));
            supervisor.task(Stage::Listeners, "xprof", OnEnd::Restart, move |stop| {
                xprof_listener::serve(listener.clone(), auth_layer.clone(), service.clone(), max, stop)
            });
        }
        let SessionServices { captures, goodput, recorder, sessions, uploads, .. } = session_services;
        let traces = read_only.add_service(captures).add_service(recorder);
        let all = traces.add_service(sessions).add_service(uploads).add_service(job_services.service);
        let all = all.add_service(mark_services.service).add_service(goodput);
        if let Some(socket) = self.marks {
            serve_marks(supervisor, socket, mark_services.intake, max, self.overflow_uid)?;
        }
        if let Some((listener, address)) = self.remote {
            info!(%address, "serving gRPC to other hosts (mutual TLS)");
            let (auth_layer, all) = (auth_layer.clone(), all.clone());
            supervisor.task(Stage::Listeners, "remote", OnEnd::Restart, move |stop| {
                listener.clone().serve(auth_layer.clone(), all.clone(), stop)
            });
        }
        let (unix, socket) = (self.unix, Arc::new(self.socket));
        supervisor.task(Stage::Listeners, "socket", OnEnd::Restart, move |stop| {
            let served = grpc_server::serve(unix.clone(), auth_layer.clone(), all.clone(), max, stop);
            let socket = socket.clone();
            async move {
                // Dropping it removes the file.
                let _socket = socket;
                served.await
            }
        });
        Ok(health)
    }
}

/// Starts the task of the marks socket.
fn serve_marks(
    supervisor: &mut TaskSupervisor,
    (socket, listener): (AgentSocket, net::UnixListener),
    intake: MarkIntake,
    max_connections: u16,
    overflow_uid: Option<u32>,
) -> Result<(), Failure> {
    let listener = MarksListener::new(listener, intake, max_connections, overflow_uid)
        .map_err(|error| Failure::internal(format_args!("cannot watch the socket of marks: {error}")))?;
    let serving = Arc::new((socket, listener));
    supervisor.task(Stage::Listeners, "marks socket", OnEnd::Restart, move |stop| {
        let serving = Arc::clone(&serving);
        async move {
            // Dropping the socket removes the file.
            let (_socket, listener) = &*serving;
            listener.serve(stop).await
        }
    });
    Ok(())
}

fn xprof_inputs(services: &SessionServices, host_api: &Arc<HostApi>) -> XprofInputs {
    XprofInputs {
        captures: services.captures_service.clone(),
        recorder: Arc::clone(&services.past.recorder),
        store: services.store.clone(),
        segments: Arc::clone(&services.past.segments),
        host_api: Arc::clone(host_api),
    }
}

/// The services of every listener.
fn read_only_routes(host_api: &Arc<HostApi>, health: &HealthReporter) -> Routes {
    let host = HostServer::new(GrpcHost::new(host_api.clone())).max_decoding_message_size(REQUEST_BYTES);
    grpc_server::health_and_reflection(health.clone()).add_service(host)
}

/// Binds the listener for a central Prometheus, if the settings have one.
async fn bind_metrics(
    settings: &Settings,
    clock: Arc<dyn Clock>,
) -> Result<Option<(Arc<ScrapeListener>, SocketAddr)>, Failure> {
    let Some(wanted) = settings.metrics.address() else { return Ok(None) };
    let (listener, address) = bind("api.metrics", wanted)?;
    let (web_config, plaintext) =
        (settings.web_config().map(PathBuf::from), settings.allows_plaintext_metrics());
    let max = settings.max_connections;
    let file = web_config.clone().unwrap_or_default();
    let opening = tokio::task::spawn_blocking(move || {
        ScrapeListener::open(listener, web_config, plaintext, max, clock)
    });
    let opened = timeout(READ_LIMIT, opening)
        .await
        .map_err(|_| remedies::settings_do_not_answer(&file, READ_LIMIT))?
        .map_err(|error| Failure::internal(format_args!("cannot read api.metrics_web_config: {error}")))?
        .map_err(|error| remedies::web_config(&error))?;
    Ok(Some((Arc::new(opened), address)))
}

/// Binds the listener for other hosts, if the settings have one, and reads its files.
async fn bind_remote(
    settings: &RemoteSettings,
    max_connections: u16,
    clock: Arc<dyn Clock>,
) -> Result<Option<(Arc<RemoteListener>, SocketAddr)>, Failure> {
    let Some(wanted) = settings.listen.address() else { return Ok(None) };
    let (listener, address) = bind("api.remote.listen", wanted)?;
    let listener = TcpListener::from_std(listener)
        .map_err(|error| remedies::tcp_address("api.remote.listen", wanted, &error))?;
    let (settings, cert) = (settings.clone(), settings.cert.clone());
    let files_clock = Arc::clone(&clock);
    let opening = tokio::task::spawn_blocking(move || OpenedFiles::open(&settings, files_clock));
    let files = timeout(READ_LIMIT, opening)
        .await
        .map_err(|_| remedies::settings_do_not_answer(&cert, READ_LIMIT))?
        .map_err(|error| Failure::internal(format_args!("cannot read the files of api.remote: {error}")))?
        .map_err(|error| remedies::remote_files(&error))?;
    Ok(Some((Arc::new(RemoteListener::new(listener, files, max_connections, clock)), address)))
}

fn bind_tcp(
    setting: &str,
    listen: LoopbackListen,
) -> Result<Option<(Arc<ServerListener>, SocketAddr)>, Failure> {
    let Some(wanted) = listen.address() else { return Ok(None) };
    let (listener, address) = bind(setting, wanted)?;
    let listener =
        TcpListener::from_std(listener).map_err(|error| remedies::tcp_address(setting, wanted, &error))?;
    Ok(Some((Arc::new(ServerListener::Tcp(listener)), address)))
}

/// A bound socket that does not block, and its address. `setting` names the wanted one.
fn bind(setting: &str, wanted: SocketAddr) -> Result<(std::net::TcpListener, SocketAddr), Failure> {
    let bound = std::net::TcpListener::bind(wanted).and_then(|listener| {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    });
    bound.map_err(|error| remedies::tcp_address(setting, wanted, &error))
}
