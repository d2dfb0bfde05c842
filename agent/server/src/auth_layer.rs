//! The tower layer in front of the gRPC services: every call passes [`access::authorize`] here.
//!
//! A service finds the caller's [`Scope`] in the extensions of its request. Without one it must refuse.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use model::log_budget::{LogBudget, LogPermit};
use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use tokio::{sync::Semaphore, time::Instant};
use tonic::{
    Status,
    body::Body,
    codegen::{Service, http},
};
use tracing::{debug, info, warn};

use super::{
    access::{self, Denied, Operation, Principal, Scope, TrustedUsers},
    connections::ConnectInfo,
};

/// The longest that the user database, which may be a directory server, may take.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// Decides on the calls of one listener.
#[derive(Debug, Clone)]
pub struct AuthLayer {
    users: TrustedUsers,
    admin_group: Option<Arc<str>>,
    /// The id that stands for every user that the agent's user namespace does not map.
    overflow_uid: Option<u32>,
    /// One look-up at a time: a user database that hangs occupies one thread.
    lookup: Arc<Semaphore>,
    refusals: Arc<Mutex<LogBudget>>,
    /// Every caller may profile every process.
    anyone_profiles: bool,
}

/// A local caller, as its transport names it.
#[derive(Debug, Clone, Copy)]
struct LocalCaller {
    uid: u32,
    gid: u32,
    pid: Option<u32>,
}

impl AuthLayer {
    /// A layer that gives all rights to root, the agent's user and the members of `admin_group` (empty: no group), and lets
    /// `slurm_uid` register jobs of all users.
    /// `overflow_uid` is the result of [`overflow_uid`](crate::peer::overflow_uid).
    pub fn new(admin_group: &str, slurm_uid: Option<u32>, overflow_uid: Option<u32>) -> Self {
        Self {
            users: TrustedUsers { agent: Uid::effective().as_raw(), slurm: slurm_uid },
            admin_group: (!admin_group.is_empty()).then(|| admin_group.into()),
            overflow_uid,
            lookup: Arc::new(Semaphore::new(1)),
            refusals: Arc::default(),
            anyone_profiles: false,
        }
    }

    /// The same, but every caller may profile every process by XProf's protocol if `anyone` is set.
    #[must_use]
    pub fn with_anyone_profiling(self, anyone: bool) -> Self {
        Self { anyone_profiles: anyone, ..self }
    }

    /// The scope of one request, or the status that refuses it.
    async fn admit(&self, path: &str, info: &ConnectInfo) -> Result<Scope, Status> {
        let Some(operation) = Operation::of(path) else {
            return Err(match info {
                ConnectInfo::Unix(_) | ConnectInfo::Remote(_) | ConnectInfo::Loopback(_) => {
                    Status::unimplemented("the agent has no such call")
                }
                // The same answer for every path, whether it exists on the socket or not.
                ConnectInfo::Tcp => Status::permission_denied(Denied::Anonymous.to_string()),
            });
        };
        if operation == Operation::Profile && self.anyone_profiles {
            return Ok(Scope::All);
        }
        let (principal, peer) = match info {
            ConnectInfo::Unix(peer) => {
                let caller = LocalCaller { uid: peer.uid(), gid: peer.gid(), pid: peer.pid() };
                (peer.principal(self.overflow_uid).await, Some(caller))
            }
            ConnectInfo::Loopback(peer) => {
                let caller = peer.identity().map(|found| LocalCaller {
                    uid: found.uid,
                    gid: found.gid,
                    pid: peer.pid(),
                });
                (peer.principal(self.overflow_uid), caller)
            }
            ConnectInfo::Remote(peer) => (Principal::Remote(Arc::clone(peer)), None),
            ConnectInfo::Tcp => (Principal::Anonymous, None),
        };
        let in_admin_group = match peer {
            Some(peer) if access::depends_on_admin_group(self.users, &principal, operation) => {
                self.in_admin_group(peer).await
            }
            _ => false,
        };
        debug!(path, %principal, pid = peer.and_then(|peer| peer.pid), "call");
        access::authorize(self.users, &principal, in_admin_group, operation).map_err(|denied| {
            if let Some(permit) = self.log_permit() {
                let pid = peer.and_then(|peer| peer.pid);
                info!(path, %principal, pid, %denied, "call refused{permit}");
            }
            Status::permission_denied(denied.to_string())
        })
    }

    /// Any user can make calls that are refused, as often as they like.
    fn log_permit(&self) -> Option<LogPermit> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now())
    }

    async fn in_admin_group(&self, peer: LocalCaller) -> bool {
        let Some(group) = self.admin_group.clone() else { return false };
        let (LocalCaller { uid, gid, .. }, permit) = (peer, self.lookup.clone());
        let lookup = async {
            let permit = permit.acquire_owned().await.ok()?;
            let looked_up = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                is_member(&group, uid, gid)
            });
            looked_up.await.ok()
        };
        match tokio::time::timeout(LOOKUP_TIMEOUT, lookup).await {
            Ok(Some(member)) => member,
            _ => {
                if let Some(permit) = self.log_permit() {
                    warn!(
                        uid,
                        "the user database does not answer: the caller is not treated as an admin{permit}"
                    );
                }
                false
            }
        }
    }
}

fn is_member(group: &str, uid: u32, gid: u32) -> bool {
    let Ok(Some(group)) = Group::from_name(group) else { return false };
    if Gid::from_raw(gid) == group.gid {
        return true;
    }
    let Ok(Some(user)) = User::from_uid(Uid::from_raw(uid)) else { return false };
    let Ok(name) = std::ffi::CString::new(user.name) else { return false };
    getgrouplist(&name, user.gid).is_ok_and(|groups| groups.contains(&group.gid))
}

impl<S> tower::Layer<S> for AuthLayer {
    type Service = AuthService<S>;

    fn layer(&self, inner: S) -> AuthService<S> {
        AuthService { auth_layer: self.clone(), inner }
    }
}

/// The services behind an [`AuthLayer`].
#[derive(Debug, Clone)]
pub struct AuthService<S> {
    auth_layer: AuthLayer,
    inner: S,
}

impl<S> Service<http::Request<Body>> for AuthService<S>
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
        let unready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, unready);
        Box::pin(async move {
            let info = request.extensions().get::<ConnectInfo>().cloned().unwrap_or(ConnectInfo::Tcp);
            match auth_layer.admit(request.uri().path(), &info).await {
                Ok(scope) => {
                    request.extensions_mut().insert(scope);
                    inner.call(request).await
                }
                Err(status) => Ok(status.into_http()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every system has the user root, whose primary group is root.
    #[test]
    fn members_are_known_by_the_group_of_the_process_and_by_the_user_database() {
        let (root, other) = (0, 54_321);
        assert!(is_member("root", other, root), "the process runs in the group");
        assert!(is_member("root", root, other), "the user database has the user in the group");
        assert!(!is_member("root", other, other));
        assert!(!is_member("tpuscope-no-such-group", root, root));
    }
}
