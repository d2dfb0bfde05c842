//! Who may do what: one pure function, asked at the auth_layer for every call.
//!
//! Loopback is not authentication, because hosts are shared: whoever comes through TCP may look at what is
//! measured and nothing else. The Unix socket knows its callers by peer credentials.

use std::fmt;

/// Where a call came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// The Unix socket.
    Socket,
    /// TCP on the loopback.
    Loopback,
}

/// Who calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// Where the call came in.
    pub door: Door,
    /// The user that the kernel names; `None` where it names none (TCP), or one that stands for any (the overflow
    /// id of a user namespace).
    pub uid: Option<u32>,
    /// The user is in the admin group.
    pub admin: bool,
}

/// What a call does, as far as rights go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Reads measurements, health or the description of the services.
    Look,
    /// Profiles a process, or reads, lists or removes traces.
    Trace,
}

impl Call {
    /// The call behind a gRPC path; `None` where no service of ours has it.
    pub fn of(path: &str) -> Option<Self> {
        let (service, _) = path.strip_prefix('/')?.split_once('/')?;
        match service {
            "tpuscope.v1.Host"
            | "grpc.health.v1.Health"
            | "grpc.reflection.v1.ServerReflection"
            | "grpc.reflection.v1alpha.ServerReflection" => Some(Self::Look),
            "tpuscope.v1.Captures" | "tpuscope.v1.Sessions" => Some(Self::Trace),
            _ => None,
        }
    }
}

/// Whose workloads and sessions a permitted call may touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Everybody's.
    All,
    /// This user's.
    User(u32),
}

impl Scope {
    /// Whether something that belongs to `owner` may be touched.
    pub fn covers(self, owner: u32) -> bool {
        match self {
            Self::All => true,
            Self::User(uid) => uid == owner,
        }
    }
}

/// Why a call is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// Traces do not go through TCP.
    Loopback,
    /// The kernel does not say who it is.
    Nobody,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loopback => {
                "this address is read-only (health, reflection, status, samples, history): everything else goes \
                 through the agent's Unix socket"
            }
            Self::Nobody => "your user has no name in the agent's user namespace: ask as root or as a user that it maps",
        })
    }
}

/// Who has all rights beside root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// The user that the agent runs as.
    pub own_uid: u32,
}

/// Whether `caller` may make this `call`, and on whose things.
pub fn decide(rules: Rules, caller: Caller, call: Call) -> Result<Scope, Denied> {
    match (call, caller.door, caller.uid) {
        (Call::Look, _, _) => Ok(Scope::All),
        (Call::Trace, Door::Loopback, _) => Err(Denied::Loopback),
        (Call::Trace, Door::Socket, None) => Err(Denied::Nobody),
        (Call::Trace, Door::Socket, Some(uid)) if uid == 0 || uid == rules.own_uid || caller.admin => {
            Ok(Scope::All)
        }
        (Call::Trace, Door::Socket, Some(uid)) => Ok(Scope::User(uid)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules { own_uid: 990 };

    #[test]
    fn the_table() {
        let caller = |door, uid, admin| Caller { door, uid, admin };
        use Door::{Loopback, Socket};
        let table = [
            (caller(Socket, Some(0), false), Ok(Scope::All)),
            (caller(Socket, Some(990), false), Ok(Scope::All)),
            (caller(Socket, Some(1000), true), Ok(Scope::All)),
            (caller(Socket, Some(1000), false), Ok(Scope::User(1000))),
            (caller(Socket, None, false), Err(Denied::Nobody)),
            (caller(Socket, None, true), Err(Denied::Nobody)),
            (caller(Loopback, None, false), Err(Denied::Loopback)),
            (caller(Loopback, Some(0), true), Err(Denied::Loopback)),
        ];
        for (caller, verdict) in table {
            assert_eq!(decide(RULES, caller, Call::Trace), verdict, "{caller:?}");
            assert_eq!(decide(RULES, caller, Call::Look), Ok(Scope::All), "{caller:?}");
        }
    }

    #[test]
    fn a_user_touches_his_own_alone() {
        assert!(Scope::User(7).covers(7));
        assert!(!Scope::User(7).covers(8));
        assert!(!Scope::User(7).covers(0));
        assert!(Scope::All.covers(8));
    }

    #[test]
    fn every_method_of_ours_is_classed() {
        let descriptors =
            <prost_types::FileDescriptorSet as prost::Message>::decode(proto::DESCRIPTORS).unwrap();
        let file = descriptors.file.iter().find(|file| file.name() == "tpuscope/v1/agent.proto").unwrap();
        for service in &file.service {
            for method in &service.method {
                let path = format!("/tpuscope.v1.{}/{}", service.name(), method.name());
                let looks = service.name() == "Host";
                assert_eq!(Call::of(&path), Some(if looks { Call::Look } else { Call::Trace }), "{path}");
            }
        }
        for none in
            ["", "/", "tpuscope.v1.Host/Status", "/tpuscope.v1.HostX/Status", "/tensorflow.ProfilerService/X"]
        {
            assert_eq!(Call::of(none), None, "{none}");
        }
    }
}
