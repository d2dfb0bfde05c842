//! The connections of `api.xprof`: the user of each is looked for before its first call.

use std::{sync::Arc, time::Duration};

use nix::unistd::Uid;
use tokio::{
    sync::{Semaphore, mpsc},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tonic::service::Routes;
use tracing::warn;

use super::{XprofService, caller::LoopbackPeer};
use crate::{
    ServeResult,
    auth_layer::AuthLayer,
    connection_limits::{ConnectionLimits, LimitPolicy},
    connections::{ACCEPT_RETRY, ConnectInfo, ServerConnection, ServerListener, Stream},
    grpc_server::{self, LOOPBACK_KEEPALIVE},
    refusals::{RefusalReason, Refusals, RefusedPeer},
};

/// The longest look for the user of a connection.
const LOOK_UP: Duration = Duration::from_secs(2);
/// Looks at the same time. Each may read a large table.
const LOOKS: usize = 4;

/// Serves `service` on `listener`, behind `auth_layer`, until `stop`.
///
/// # Errors
/// Why the server ended before `stop`.
pub async fn serve(
    listener: Arc<ServerListener>,
    auth_layer: AuthLayer,
    service: XprofService,
    max_connections: u16,
    stop: CancellationToken,
) -> ServeResult {
    let (queue, connections) = mpsc::channel(1);
    let limits = ConnectionLimits::new(max_connections, LimitPolicy::ByUser(Uid::effective().as_raw()));
    let refusals = Refusals::of("xprof");
    let accepting = Accepting { listener, limits, refusals, queue, looks: Arc::new(Semaphore::new(LOOKS)) };
    let ended = stop.clone();
    let _accepting = AbortOnDropHandle::new(tokio::spawn(async move {
        let refusals = accepting.refusals.clone();
        ended.run_until_cancelled(accepting.run()).await;
        refusals.flush();
    }));
    let routes = Routes::new(service);
    grpc_server::serve_connections(connections, auth_layer, routes, LOOPBACK_KEEPALIVE, stop).await
}

struct Accepting {
    listener: Arc<ServerListener>,
    limits: ConnectionLimits,
    refusals: Refusals,
    queue: mpsc::Sender<ServerConnection>,
    looks: Arc<Semaphore>,
}

impl Accepting {
    async fn run(self) {
        let this = Arc::new(self);
        // Those that wait for a look wait in the kernel's queue.
        while let Ok(permit) = Arc::clone(&this.looks).acquire_owned().await {
            match this.listener.accept().await {
                Ok(stream) => {
                    let this = Arc::clone(&this);
                    tokio::spawn(async move {
                        this.admit(stream).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    async fn admit(&self, stream: Stream) {
        let peer = Arc::new(look_up(&stream).await);
        let (uid, refused) = (peer.uid(), RefusedPeer { uid: peer.uid(), address: stream.peer_ip() });
        // The calls of an unknown user are refused with the reason, unless anyone may make them.
        let Some(slot) = self.limits.take(uid) else {
            return self.refusals.add(RefusalReason::NoSlot, refused, None);
        };
        // The server may have ended.
        let _ = self.queue.send(ServerConnection::new(stream, ConnectInfo::Loopback(peer), slot)).await;
    }
}

async fn look_up(stream: &Stream) -> LoopbackPeer {
    let Some((peer, local)) = stream.ends() else { return LoopbackPeer::unidentified() };
    let looking = tokio::task::spawn_blocking(move || LoopbackPeer::look_up(peer, local));
    match timeout(LOOK_UP, looking).await {
        Ok(Ok(found)) => found,
        _ => LoopbackPeer::unidentified(),
    }
}
