//! The auth_layer of the gRPC doors: every call passes [`access::decide`] here, before any service sees it.
//!
//! A service finds the caller's [`Scope`] in its request's extensions; without one it must refuse.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use tokio::sync::Semaphore;
use tonic::{
    Status,
    body::Body,
    codegen::{Service, http},
    transport::server::UdsConnectInfo,
};
use tracing::{info, warn};

use super::access::{self, Call, Caller, Door, Rules, Scope};

/// Longest that the user database may take: it may be a directory server.
const LOOKUP: Duration = Duration::from_secs(2);

/// What one door knows about rights.
#[derive(Debug, Clone)]
pub struct AuthLayer {
    door: Door,
    rules: Rules,
    admin_group: Option<Arc<str>>,
    /// The id that stands for every user that the namespace of the agent does not map, where there is one.
    overflow_uid: Option<u32>,
    /// One look-up at a time: a user database that hangs holds one thread, not all.
    lookup: Arc<Semaphore>,
}

impl AuthLayer {
    /// The auth_layer of `door`. Members of `admin_group` have all rights; empty: nobody.
    pub fn new(door: Door, admin_group: &str) -> Self {
        Self {
            door,
            rules: Rules { own_uid: Uid::effective().as_raw() },
            admin_group: (!admin_group.is_empty()).then(|| admin_group.into()),
            overflow_uid: overflow_uid(),
            lookup: Arc::new(Semaphore::new(1)),
        }
    }

    /// The rights behind one request, or the answer that refuses it.
    async fn admit(&self, path: &str, peer: Option<UdsConnectInfo>) -> Result<Scope, Status> {
        let call = match (Call::of(path), self.door) {
            (Some(call), _) => call,
            // Said to everybody alike: a closed door tells nothing about what is behind it.
            (None, Door::Loopback) => {
                return Err(Status::permission_denied(access::Denied::Loopback.to_string()));
            }
            (None, Door::Socket) => return Err(Status::unimplemented("the agent has no such call")),
        };
        let peer = peer.and_then(|peer| peer.peer_cred);
        let uid = peer.map(|peer| peer.uid()).filter(|uid| Some(*uid) != self.overflow_uid);
        let admin = match (call, uid) {
            (Call::Trace, Some(uid)) if uid != 0 => self.is_admin(uid, peer.map(|peer| peer.gid())).await,
            _ => false,
        };
        access::decide(self.rules, Caller { door: self.door, uid, admin }, call).map_err(|denied| {
            info!(path, ?uid, %denied, "refused");
            Status::permission_denied(denied.to_string())
        })
    }

    async fn is_admin(&self, uid: u32, gid: Option<u32>) -> bool {
        let Some(group) = self.admin_group.clone() else { return false };
        let turn = self.lookup.clone();
        let lookup = async {
            let turn = turn.acquire_owned().await.ok()?;
            let looked_up = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                is_member(&group, uid, gid)
            });
            looked_up.await.ok()
        };
        match tokio::time::timeout(LOOKUP, lookup).await {
            Ok(Some(member)) => member,
            _ => {
                warn!(uid, "the user database does not answer: taken as no member of the admin group");
                false
            }
        }
    }
}

fn is_member(group: &str, uid: u32, gid: Option<u32>) -> bool {
    let Ok(Some(group)) = Group::from_name(group) else { return false };
    if gid.map(Gid::from_raw) == Some(group.gid) {
        return true;
    }
    let Ok(Some(user)) = User::from_uid(Uid::from_raw(uid)) else { return false };
    let Ok(name) = std::ffi::CString::new(user.name) else { return false };
    getgrouplist(&name, user.gid).is_ok_and(|groups| groups.contains(&group.gid))
}

/// In a user namespace that does not map every id, one id stands for all others and so names nobody.
fn overflow_uid() -> Option<u32> {
    let map = std::fs::read_to_string("/proc/self/uid_map").ok()?;
    if map.split_whitespace().eq(["0", "0", "4294967295"]) {
        return None;
    }
    let id = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
    Some(id.and_then(|id| id.trim().parse().ok()).unwrap_or(65534))
}

impl<S> tower::Layer<S> for AuthLayer {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { auth_layer: self.clone(), inner }
    }
}

/// Services behind an [`AuthLayer`].
#[derive(Debug, Clone)]
pub struct Guarded<S> {
    auth_layer: AuthLayer,
    inner: S,
}

impl<S> Service<http::Request<Body>> for Guarded<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let auth_layer = self.auth_layer.clone();
        // The service that was polled ready is the one to call.
        let fresh = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, fresh);
        Box::pin(async move {
            let peer = request.extensions().get::<UdsConnectInfo>().cloned();
            match auth_layer.admit(request.uri().path(), peer).await {
                Ok(scope) => {
                    request.extensions_mut().insert(scope);
                    inner.call(request).await
                }
                Err(status) => Ok(status.into_http()),
            }
        })
    }
}
