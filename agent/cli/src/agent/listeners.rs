//! The listeners of the agent: bound before anything else starts, so that a conflict ends the start with one line.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use proto::tpuscope::v1::host_server::HostServer;
use server::{
    accept::Listener,
    access::Door,
    auth_layer::AuthLayer,
    grpc::{self, REQUEST_BYTES},
    host::Host,
    host_api::HostApi,
    http,
    scrape::ScrapeListener,
    settings::{Api, Listen},
    socket::Socket,
};
use tokio::net::{TcpListener, UnixListener};
use tonic::service::Routes;
use tonic_health::server::HealthReporter;
use tracing::info;

use super::{failure, traces::Traces};
use crate::{
    exit::{Exit, Failure},
    lifecycle::supervise::{OnEnd, Stage, Supervisor},
};

/// Listeners that nobody accepts on yet.
pub(super) struct Listeners {
    socket: Socket,
    unix: Arc<Listener>,
    http: Option<(Arc<Listener>, SocketAddr)>,
    grpc: Option<(Arc<Listener>, SocketAddr)>,
    metrics: Option<(Arc<ScrapeListener>, SocketAddr)>,
}

impl Listeners {
    /// Binds everything that the settings name; `socket_setting` is where the socket's path comes from.
    pub(super) fn open(settings: &Api, socket_setting: &str) -> Result<Self, Failure> {
        let (socket, unix) = Socket::claim(&settings.socket, settings.socket_mode, &settings.socket_group)
            .map_err(|error| failure::socket(&error, socket_setting))?;
        let unix = UnixListener::from_std(unix)
            .map_err(|error| Failure::new(Exit::Internal, format!("cannot watch the socket: {error}")))?;
        Ok(Self {
            socket,
            unix: Arc::new(Listener::Unix(unix)),
            http: bind("api.http", settings.http)?,
            grpc: bind("api.grpc", settings.grpc)?,
            metrics: bind_metrics(settings)?,
        })
    }

    pub(super) fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(|(_, address)| *address)
    }

    pub(super) fn grpc_address(&self) -> Option<SocketAddr> {
        self.grpc.as_ref().map(|(_, address)| *address)
    }

    /// Starts serving on all of them; gives what tells their callers about health.
    pub(super) fn serve(
        self,
        supervisor: &mut Supervisor,
        host_api: &Arc<HostApi>,
        traces: Traces,
        settings: &Api,
    ) -> Result<HealthReporter, Failure> {
        let health = HealthReporter::new();
        let looking = routes(host_api, &health)?;
        let most = settings.max_connections;
        if let Some((listener, address)) = self.http {
            info!(%address, "HTTP, read-only");
            let (host_api, hosts) = (host_api.clone(), Arc::<[String]>::from(settings.allowed_hosts.clone()));
            supervisor.task(Stage::Listeners, "http", OnEnd::Restart, move |stop| {
                http::serve(listener.clone(), host_api.clone(), hosts.clone(), most, stop)
            });
        }
        if let Some((listener, address)) = self.grpc {
            info!(%address, "gRPC, read-only");
            let (auth_layer, routes) =
                (AuthLayer::new(Door::Loopback, &settings.admin_group), looking.clone());
            supervisor.task(Stage::Listeners, "grpc", OnEnd::Restart, move |stop| {
                grpc::serve(listener.clone(), auth_layer.clone(), routes.clone(), most, stop)
            });
        }
        if let Some((listener, address)) = self.metrics {
            info!(%address, "metrics for other hosts, read-only");
            let host_api = host_api.clone();
            supervisor.task(Stage::Listeners, "metrics", OnEnd::Restart, move |stop| {
                listener.clone().serve(host_api.clone(), stop)
            });
        }
        let auth_layer = AuthLayer::new(Door::Socket, &settings.admin_group);
        let everything = looking.add_service(traces.captures).add_service(traces.sessions);
        let (unix, socket) = (self.unix, Arc::new(self.socket));
        supervisor.task(Stage::Listeners, "socket", OnEnd::Restart, move |stop| {
            let served = grpc::serve(unix.clone(), auth_layer.clone(), everything.clone(), most, stop);
            let socket = socket.clone();
            async move {
                // The socket is on disk for as long as somebody serves it.
                let _socket = socket;
                served.await
            }
        });
        Ok(health)
    }
}

/// What every door serves.
fn routes(host_api: &Arc<HostApi>, health: &HealthReporter) -> Result<Routes, Failure> {
    let host = HostServer::new(Host::new(host_api.clone())).max_decoding_message_size(REQUEST_BYTES);
    let common = grpc::common(health.clone())
        .map_err(|error| Failure::new(Exit::Internal, format!("cannot describe the services: {error}")))?;
    Ok(common.add_service(host))
}

/// The listener for a central Prometheus; off: none.
fn bind_metrics(settings: &Api) -> Result<Option<(Arc<ScrapeListener>, SocketAddr)>, Failure> {
    let Some(wanted) = settings.metrics.address() else { return Ok(None) };
    let bound = std::net::TcpListener::bind(wanted).and_then(|listener| {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    });
    let (listener, address) = bound.map_err(|error| failure::address("api.metrics", wanted, &error))?;
    let web_config = settings.web_config().map(PathBuf::from);
    let plaintext = settings.metrics_plaintext || address.ip().to_canonical().is_loopback();
    let open = ScrapeListener::open(listener, web_config, plaintext, settings.max_connections);
    Ok(Some((Arc::new(open.map_err(|error| failure::web_config(&error))?), address)))
}

fn bind(setting: &str, listen: Listen) -> Result<Option<(Arc<Listener>, SocketAddr)>, Failure> {
    let Some(wanted) = listen.address() else { return Ok(None) };
    let bound = std::net::TcpListener::bind(wanted).and_then(|listener| {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((Arc::new(Listener::Tcp(TcpListener::from_std(listener)?)), address))
    });
    bound.map(Some).map_err(|error| failure::address(setting, wanted, &error))
}
