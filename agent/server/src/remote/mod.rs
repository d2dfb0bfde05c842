//! The listener for commands on other hosts (`[api.remote]`): gRPC over mutual TLS.
//!
//! ```text
//! accept ── failures of the address ── handshake (5 s, role of the certificate) ── slot of the role ── gRPC
//! ```
//!
//! Must never serve a byte to a peer that has not proved who it is, let peers without a certificate take the place of
//! those with one, or run cryptography of a handshake on the thread that samples.

pub(crate) mod active;
pub(crate) mod connection;
mod handshake;
pub mod settings;

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use cluster::identity::{certificate::CertificateFacts, role::Role, tls_fault::Unaccepted};
use model::{
    time::Clock,
    untrusted::{LABEL, clean},
};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, MissedTickBehavior},
};
use tokio_rustls::server::TlsStream;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tonic::service::Routes;
use tracing::warn;

use crate::{
    ServeResult,
    auth_layer::AuthLayer,
    connection_limits::{ConnectionLimits, LimitPolicy},
    connections::{ServerConnection, ServerListener, accept},
    failure_limits::FailureLimits,
    grpc_server::{self, REMOTE_KEEPALIVE},
    own_metrics,
    refusals::{RefusalReason, Refusals, RefusedPeer},
};
pub use active::RemoteError;
use active::{RemoteFiles, RemoteSource, RemoteTls};
use connection::RemoteConnection;
pub use connection::RemotePeer;
use handshake::{HandshakeError, Handshakes};
use settings::RemoteSettings;

/// The longest time between two checks of the files and of their validity. Each connection checks the files too.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// The listener, before it serves.
pub struct RemoteListener {
    listener: Arc<ServerListener>,
    files: Arc<RemoteFiles>,
    max_connections: u16,
    clock: Arc<dyn Clock>,
    notes: watch::Sender<Vec<String>>,
}

fn source(settings: &RemoteSettings) -> Result<RemoteSource, RemoteError> {
    let files = settings.files().ok_or(RemoteError::Missing)?;
    Ok(RemoteSource { files, allow: settings.allow.clone() })
}

/// The files of the listener, read and checked.
pub struct OpenedFiles(RemoteFiles);

impl OpenedFiles {
    /// Reads the files of these settings. Blocks.
    ///
    /// # Errors
    /// If they cannot be used.
    pub fn open(settings: &RemoteSettings, clock: Arc<dyn Clock>) -> Result<Self, RemoteError> {
        Ok(Self(RemoteFiles::open(source(settings)?, clock)?))
    }
}

impl RemoteListener {
    /// Takes a bound `listener` and its files.
    pub fn new(
        listener: TcpListener,
        files: OpenedFiles,
        max_connections: u16,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            listener: Arc::new(ServerListener::Tcp(listener)),
            files: Arc::new(files.0),
            max_connections,
            clock,
            notes: watch::Sender::default(),
        }
    }

    /// What an administrator should know of the certificates.
    pub fn notes(&self) -> watch::Receiver<Vec<String>> {
        self.notes.subscribe()
    }

    /// Takes the files and the roles of these settings; files that cannot be used change nothing.
    pub fn set_settings(&self, settings: &RemoteSettings) {
        if let Ok(source) = source(settings) {
            self.files.set_source(source);
        }
    }

    /// Serves `routes` until `stop`, behind `auth_layer`.
    pub async fn serve(
        self: Arc<Self>,
        auth_layer: AuthLayer,
        routes: Routes,
        stop: CancellationToken,
    ) -> ServeResult {
        let (queue, accepted) = mpsc::channel(1);
        let (proved, connections) = mpsc::channel(1);
        let limits = ConnectionLimits::new(self.max_connections, LimitPolicy::ReplaceLeastActive);
        let refusals = Refusals::of("remote");
        let accepting = accept(self.listener.clone(), limits, refusals.clone(), queue, stop.clone());
        let _accepting = AbortOnDropHandle::new(tokio::spawn(accepting));
        let handshakes = HandshakeQueue {
            files: Arc::clone(&self.files),
            handshakes: Handshakes::default(),
            failures: Mutex::default(),
            // An operator has the share of root.
            slots: ConnectionLimits::new(self.max_connections, LimitPolicy::ByUser(0)),
            refusals: refusals.clone(),
            proved,
        };
        let _proving = AbortOnDropHandle::new(tokio::spawn(Arc::new(handshakes).run(accepted)));
        let _watching = AbortOnDropHandle::new(tokio::spawn(Arc::clone(&self).watch_files()));
        let served =
            grpc_server::serve_connections(connections, auth_layer, routes, REMOTE_KEEPALIVE, stop).await;
        refusals.flush();
        served
    }

    /// Reads the files again when they change, and tells when they expire.
    async fn watch_files(self: Arc<Self>) {
        let mut due = tokio::time::interval(CHECK_INTERVAL);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = due.tick() => {}
                // A connection has looked at the files.
                () = self.files.changed() => {}
            }
            let active = self.files.current().await;
            for (file, end) in active.ends() {
                own_metrics::certificate_end(file, end);
            }
            let warnings = active.warnings(self.clock.now());
            let before = self.notes.borrow().clone();
            // The text changes once a day.
            for warning in warnings.iter().filter(|warning| !before.contains(warning)) {
                warn!("{warning}");
            }
            let fault = self.files.fault();
            own_metrics::files_unused(fault.is_some());
            let fault = fault.map(|fault| {
                format!("api.remote: the new files are not used, the earlier ones stay: {fault}")
            });
            self.notes.send_replace(warnings.into_iter().chain(fault).collect());
        }
    }
}

/// Makes proved connections of accepted ones.
struct HandshakeQueue {
    files: Arc<RemoteFiles>,
    handshakes: Handshakes,
    failures: Mutex<FailureLimits>,
    slots: ConnectionLimits,
    refusals: Refusals,
    proved: mpsc::Sender<RemoteConnection>,
}

impl HandshakeQueue {
    async fn run(self: Arc<Self>, mut accepted: mpsc::Receiver<ServerConnection>) {
        let mut running = JoinSet::new();
        while let Some(connection) = accepted.recv().await {
            running.spawn(Arc::clone(&self).prove(connection));
            while running.try_join_next().is_some() {}
        }
    }

    /// One connection: its handshake and its slot.
    async fn prove(self: Arc<Self>, connection: ServerConnection) {
        let Some(address) = connection.peer_ip() else { return };
        if !self.failures().allows(address, Instant::now()) {
            self.refuse(RefusalReason::FailureLimit, address, None);
            return handshake::refuse_address(connection).await;
        }
        let active = self.files.current().await;
        let evicted = connection.evicted();
        let proved = match self.handshakes.run(Arc::clone(&active.config), connection).await {
            Err(HandshakeError::Nothing) => return,
            Ok(stream) => {
                peer(&stream, &active, address).map(|peer| (stream, peer)).map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        match proved {
            Ok((stream, peer)) => self.admit(stream, peer).await,
            // A connection that was closed in favour of another is counted as that.
            Err(_) if evicted.is_cancelled() => {}
            Err(fault) => {
                self.failures().take(address, Instant::now());
                self.refuse(RefusalReason::Handshake, address, Some(fault));
            }
        }
    }

    /// From here on the connection is counted with those of its role: peers without a certificate cannot replace it.
    async fn admit(&self, mut stream: TlsStream<ServerConnection>, peer: RemotePeer) {
        let uid = (peer.role == Role::Operator).then_some(0);
        match self.slots.take(uid) {
            Some(slot) => stream.get_mut().0.set_slot(slot),
            None => {
                let detail = format!("{} {}", peer.role, peer.name);
                return self.refuse(RefusalReason::NoSlot, peer.address, Some(detail));
            }
        }
        // The server may have ended.
        let _ = self.proved.send(RemoteConnection::new(stream, peer)).await;
    }

    fn refuse(&self, reason: RefusalReason, address: IpAddr, detail: Option<String>) {
        self.refusals.add(reason, RefusedPeer { uid: None, address: Some(address) }, detail);
    }

    fn failures(&self) -> std::sync::MutexGuard<'_, FailureLimits> {
        // Each change is one step, so the numbers are right even after a panic.
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who is at the other end. The handshake has verified the certificate.
fn peer(
    stream: &TlsStream<ServerConnection>,
    active: &RemoteTls,
    address: IpAddr,
) -> Result<RemotePeer, Unaccepted> {
    let unreadable = || Unaccepted::Name("its certificate cannot be read".to_owned());
    let certificates = stream.get_ref().1.peer_certificates();
    let certificate = certificates.and_then(|chain| chain.first()).ok_or_else(unreadable)?;
    let parsed = webpki::EndEntityCert::try_from(certificate).map_err(|_| unreadable())?;
    let role = active.roles.of(&parsed)?;
    let facts = CertificateFacts::of(certificate).map_err(|_| unreadable())?;
    Ok(RemotePeer { name: clean(&facts.shown_name(), LABEL), role, address })
}
