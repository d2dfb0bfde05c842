//! Who may do what: one pure function, [`authorize`], which the [`AuthLayer`](crate::auth_layer::AuthLayer) calls for
//! every gRPC call.
//!
//! | principal | measurements | traces, sessions and jobs | limits of the store | registers jobs |
//! |---|---|---|---|---|
//! | local, the agent's pid namespace: root | read | all | apply | of all users |
//! | local, the agent's pid namespace: the agent's user, the admin group | read | all | apply | of this user |
//! | local, the agent's pid namespace: the user of `slurm.user` | read | those of this user | none | of all users |
//! | local, the agent's pid namespace: any other user | read | those of this user | none | of this user |
//! | local, another pid namespace, any user | read | those of this user in this namespace | none | of this user |
//! | local, unknown pid namespace, unknown user, or a process that is not seen | read | none | none | none |
//! | remote, role operator | read | all | apply | none |
//! | remote, role viewer | read | none | none | none |
//! | remote, role agent | none | none | none | none |
//! | anonymous (TCP on the loopback) | read | none | none | none |
//! | unidentified (`api.xprof`, no user found for the connection) | none | none | none | none |
//!
//! A caller of `api.xprof` whose user is found is a local one. Where `api.xprof_anyone` is set, every caller of it may
//! profile all processes, and nothing more.
//!
//! Hosts are shared: a loopback address authenticates nobody, and root of a container with the socket is not the host's.

use std::{fmt, fs::File, sync::Arc};

use cluster::identity::role::Role;

use crate::remote::RemotePeer;

/// The caller of a connection, made by its transport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Principal {
    /// A process of this host that connected to the Unix socket.
    Local {
        /// The user, from the peer credentials. `None` for the overflow id of a user namespace, which stands for many
        /// users.
        uid: Option<u32>,
        /// The pid namespace of the process.
        pid_namespace: PidNamespace,
    },
    /// A host or a person that a certificate names, over mutual TLS.
    Remote(Arc<RemotePeer>),
    /// A TCP connection over the loopback: the kernel does not name its user.
    Anonymous,
    /// A connection to `api.xprof` whose user was looked for and not found.
    Unidentified,
}

/// For the log.
impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local { uid, pid_namespace } => {
                match uid {
                    Some(uid) => write!(f, "uid {uid}")?,
                    None => f.write_str("unknown user")?,
                }
                match pid_namespace {
                    PidNamespace::Agent => Ok(()),
                    PidNamespace::Foreign(namespace) => write!(f, " in {namespace:?}"),
                    PidNamespace::Unknown => f.write_str(" in an unknown pid namespace"),
                    PidNamespace::Unseen => f.write_str(" without a visible process"),
                }
            }
            Self::Remote(peer) => peer.fmt(f),
            Self::Anonymous => f.write_str("anonymous"),
            Self::Unidentified => f.write_str("unidentified"),
        }
    }
}

/// Where a local caller's process runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PidNamespace {
    /// In the pid namespace of the agent.
    Agent,
    /// In another one, such as a container's.
    Foreign(ForeignNamespace),
    /// The agent cannot tell. It is treated as a foreign namespace without any workload.
    Unknown,
    /// The agent sees no process of the caller, and so no namespace. It is treated as [`PidNamespace::Unknown`] is.
    Unseen,
}

/// A pid namespace that is not the agent's.
///
/// The open file keeps the kernel from using the inode number for another namespace.
#[derive(Clone)]
pub struct ForeignNamespace {
    inode: u64,
    _file: Option<Arc<File>>,
}

impl ForeignNamespace {
    /// The namespace that `file`, an open `/proc/<pid>/ns/pid` with this inode, refers to.
    pub(crate) fn new(inode: u64, file: File) -> Self {
        Self { inode, _file: Some(Arc::new(file)) }
    }

    /// The inode of the namespace, as in `readlink /proc/<pid>/ns/pid`.
    pub fn inode(&self) -> u64 {
        self.inode
    }
}

/// As the kernel writes it in `/proc/<pid>/ns/pid`.
impl fmt::Debug for ForeignNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid:[{}]", self.inode)
    }
}

impl PartialEq for ForeignNamespace {
    fn eq(&self, other: &Self) -> bool {
        self.inode == other.inode
    }
}

impl Eq for ForeignNamespace {}

/// What a call does, as far as rights are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Read measurements, health or the description of the services.
    ReadMeasurements,
    /// Profile processes by XProf's own protocol.
    Profile,
    /// Profile a process, switch its recording or read its past, or read, list, pin, take in, upload or remove sessions;
    /// read of jobs; send marks, and read what they say of a job.
    UseTraces,
    /// Apply the limits of the store, which concern the sessions of all users.
    ManageStore,
    /// Say that a job starts or ended. What is said grants no rights.
    RegisterJobs,
}

/// The users that have other rights than their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrustedUsers {
    /// The user that the agent runs as.
    pub agent: u32,
    /// The user of `slurm.user`, if there is one.
    pub slurm: Option<u32>,
}

impl Operation {
    /// The operation of a gRPC path. `None` if the agent has no such service.
    pub fn of(path: &str) -> Option<Self> {
        let (service, method) = path.strip_prefix('/')?.split_once('/')?;
        match service {
            "tpuscope.v1.Host"
            | "grpc.health.v1.Health"
            | "grpc.reflection.v1.ServerReflection"
            | "grpc.reflection.v1alpha.ServerReflection" => Some(Self::ReadMeasurements),
            "tensorflow.ProfilerService" => match method {
                "Monitor" => Some(Self::ReadMeasurements),
                "Profile" => Some(Self::Profile),
                "Terminate"
                | "StartContinuousProfiling"
                | "StopContinuousProfiling"
                | "GetSnapshot"
                | "GetSnapShot" => Some(Self::UseTraces),
                _ => None,
            },
            "tpuscope.v1.Sessions" if method == "Prune" => Some(Self::ManageStore),
            "tpuscope.v1.Jobs" if matches!(method, "RegisterAttempt" | "EndAttempt") => {
                Some(Self::RegisterJobs)
            }
            "tpuscope.v1.Captures"
            | "tpuscope.v1.Goodput"
            | "tpuscope.v1.Jobs"
            | "tpuscope.v1.Marks"
            | "tpuscope.v1.Recorder"
            | "tpuscope.v1.Sessions"
            | "tpuscope.v1.Uploads" => Some(Self::UseTraces),
            _ => None,
        }
    }
}

/// The processes and sessions that a permitted call may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// All.
    All,
    /// Those of this user, in any pid namespace.
    User(u32),
    /// Processes of this user in this pid namespace, and the sessions captured from there.
    UserInNamespace {
        /// The user.
        uid: u32,
        /// The namespace.
        pid_namespace: ForeignNamespace,
    },
}

impl Scope {
    /// Whether a process of user `uid` in the pid namespace with inode `pid_namespace` (`None`: unknown) is included.
    pub fn covers_process(&self, uid: u32, pid_namespace: Option<u64>) -> bool {
        match self {
            Self::All => true,
            Self::User(own) => *own == uid,
            Self::UserInNamespace { uid: own, pid_namespace: namespace } => {
                *own == uid && pid_namespace == Some(namespace.inode())
            }
        }
    }

    /// Whether a session of processes of these users is included. A session of several users belongs to none of them.
    /// The caller of a foreign namespace has only the sessions that it captured itself, which this does not include:
    /// see [`session_grants`](crate::session_grants).
    pub fn covers_users(&self, uids: &[u32]) -> bool {
        match self {
            Self::All => true,
            Self::User(own) => !uids.is_empty() && uids.iter().all(|uid| uid == own),
            Self::UserInNamespace { .. } => false,
        }
    }
}

/// Why a call is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// The caller connected to a read-only address.
    Anonymous,
    /// No user was found for the caller's connection.
    Unidentified,
    /// The agent's user namespace does not map the caller's user.
    UnknownUser,
    /// The agent cannot tell the caller's pid namespace.
    UnknownNamespace,
    /// The agent does not see the caller's process.
    UnseenProcess,
    /// A viewer may only read measurements.
    Viewer,
    /// An agent's certificate is not for calls.
    Agent,
    /// The operation is an administrator's.
    NotAdmin,
    /// Jobs are registered on their own host.
    Elsewhere,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Anonymous => {
                "this address is read-only (health, reflection, status, samples, history); use the agent's Unix socket"
            }
            Self::Unidentified => {
                "the agent cannot tell which user opened this connection: call from the agent's own network namespace"
            }
            Self::UnknownUser => {
                "the agent's user namespace does not map your user; call as root or as a user that it maps"
            }
            Self::UnknownNamespace => {
                "the agent cannot tell the pid namespace of your process; call from the agent's pid namespace"
            }
            Self::UnseenProcess => {
                "the agent sees no process of your user that has this connection open; processes of other users than its own it \
                 sees only with the capabilities CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, as its unit gives them"
            }
            Self::NotAdmin => {
                "the limits of the store concern the sessions of all users: call as root or as a member of api.admin_group"
            }
            Self::Elsewhere => {
                "a job is registered by a process of its own host: call the agent there, over its Unix socket"
            }
            Self::Viewer => {
                "your certificate has the role viewer, which may only read measurements; use one with the role operator"
            }
            Self::Agent => {
                "your certificate has the role agent, which may not call anything; use one with the role operator or viewer"
            }
        })
    }
}

/// Whether the principal's membership in the admin group can change the answer of [`authorize`].
pub fn depends_on_admin_group(users: TrustedUsers, principal: &Principal, operation: Operation) -> bool {
    authorize(users, principal, true, operation) != authorize(users, principal, false, operation)
}

/// Whether `principal` may do `operation`, and on which processes and sessions.
///
/// # Errors
/// Why the call is refused.
pub fn authorize(
    users: TrustedUsers,
    principal: &Principal,
    in_admin_group: bool,
    operation: Operation,
) -> Result<Scope, Denied> {
    let scope = match principal {
        Principal::Remote(peer) if peer.role == Role::Agent => Err(Denied::Agent),
        Principal::Unidentified => Err(Denied::Unidentified),
        _ if operation == Operation::ReadMeasurements => return Ok(Scope::All),
        Principal::Anonymous => Err(Denied::Anonymous),
        Principal::Remote(peer) if peer.role == Role::Operator => Ok(Scope::All),
        Principal::Remote(_) => Err(Denied::Viewer),
        Principal::Local { uid: None, .. } => Err(Denied::UnknownUser),
        Principal::Local { uid: Some(uid), pid_namespace } => match pid_namespace {
            PidNamespace::Unknown => Err(Denied::UnknownNamespace),
            PidNamespace::Unseen => Err(Denied::UnseenProcess),
            PidNamespace::Foreign(pid_namespace) => {
                Ok(Scope::UserInNamespace { uid: *uid, pid_namespace: pid_namespace.clone() })
            }
            PidNamespace::Agent if operation == Operation::RegisterJobs => {
                let for_all = *uid == 0 || Some(*uid) == users.slurm;
                Ok(if for_all { Scope::All } else { Scope::User(*uid) })
            }
            PidNamespace::Agent if *uid == 0 || *uid == users.agent || in_admin_group => Ok(Scope::All),
            PidNamespace::Agent => Ok(Scope::User(*uid)),
        },
    }?;
    match operation {
        Operation::ManageStore if scope != Scope::All => Err(Denied::NotAdmin),
        Operation::RegisterJobs if matches!(principal, Principal::Remote(_)) => Err(Denied::Elsewhere),
        _ => Ok(scope),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const AGENT_UID: u32 = 990;
    const SLURM_UID: u32 = 64;
    const USERS: TrustedUsers = TrustedUsers { agent: AGENT_UID, slurm: Some(SLURM_UID) };

    pub(crate) fn foreign(inode: u64) -> ForeignNamespace {
        ForeignNamespace { inode, _file: None }
    }

    fn remote(role: Role) -> Principal {
        Principal::Remote(Arc::new(RemotePeer {
            name: "alice".to_owned(),
            role,
            address: [10, 0, 0, 7].into(),
        }))
    }

    fn in_namespace(uid: u32) -> Result<Scope, Denied> {
        Ok(Scope::UserInNamespace { uid, pid_namespace: foreign(7) })
    }

    #[test]
    fn every_principal_has_the_rights_of_the_table() {
        let local = |uid, pid_namespace| Principal::Local { uid, pid_namespace };
        let (all, unknown) = (Ok(Scope::All), Err(Denied::UnknownNamespace));
        // Principal, traces outside the admin group, traces as its member.
        let mut table = vec![
            (Principal::Anonymous, Err(Denied::Anonymous), Err(Denied::Anonymous)),
            (Principal::Unidentified, Err(Denied::Unidentified), Err(Denied::Unidentified)),
            (remote(Role::Viewer), Err(Denied::Viewer), Err(Denied::Viewer)),
            (remote(Role::Agent), Err(Denied::Agent), Err(Denied::Agent)),
            (remote(Role::Operator), all.clone(), all.clone()),
            (local(Some(0), PidNamespace::Agent), all.clone(), all.clone()),
            (local(Some(AGENT_UID), PidNamespace::Agent), all.clone(), all.clone()),
            (local(Some(1000), PidNamespace::Agent), Ok(Scope::User(1000)), all),
        ];
        for uid in [0, AGENT_UID, 1000] {
            let foreign = local(Some(uid), PidNamespace::Foreign(foreign(7)));
            table.push((foreign, in_namespace(uid), in_namespace(uid)));
            table.push((local(Some(uid), PidNamespace::Unknown), unknown.clone(), unknown.clone()));
        }
        for namespace in [PidNamespace::Agent, PidNamespace::Foreign(foreign(7)), PidNamespace::Unknown] {
            let unmapped = local(None, namespace);
            table.push((unmapped, Err(Denied::UnknownUser), Err(Denied::UnknownUser)));
        }
        for (principal, user, admin) in table {
            let traces = |member| authorize(USERS, &principal, member, Operation::UseTraces);
            assert_eq!(traces(false), user, "{principal:?}");
            assert_eq!(traces(true), admin, "{principal:?} in the admin group");
            assert_eq!(
                depends_on_admin_group(USERS, &principal, Operation::UseTraces),
                user != admin,
                "{principal:?}"
            );
            for (member, traces) in [(false, &user), (true, &admin)] {
                let manage = authorize(USERS, &principal, member, Operation::ManageStore);
                let wanted = match traces {
                    Ok(Scope::All) => Ok(Scope::All),
                    Ok(_) => Err(Denied::NotAdmin),
                    Err(denied) => Err(*denied),
                };
                assert_eq!(manage, wanted, "{principal:?}");
                let read = authorize(USERS, &principal, member, Operation::ReadMeasurements);
                let wanted = match &principal {
                    Principal::Remote(peer) if peer.role == Role::Agent => Err(Denied::Agent),
                    Principal::Unidentified => Err(Denied::Unidentified),
                    _ => Ok(Scope::All),
                };
                assert_eq!(read, wanted, "{principal:?}");
                let profile = authorize(USERS, &principal, member, Operation::Profile);
                assert_eq!(profile, *traces, "{principal:?}");
            }
        }
    }

    #[test]
    fn root_and_the_user_of_slurm_register_jobs_of_all_users_and_others_their_own() {
        let local = |uid, pid_namespace| Principal::Local { uid: Some(uid), pid_namespace };
        for (principal, wanted) in [
            (local(0, PidNamespace::Agent), Ok(Scope::All)),
            (local(SLURM_UID, PidNamespace::Agent), Ok(Scope::All)),
            (local(AGENT_UID, PidNamespace::Agent), Ok(Scope::User(AGENT_UID))),
            (local(1000, PidNamespace::Agent), Ok(Scope::User(1000))),
            (local(0, PidNamespace::Foreign(foreign(7))), in_namespace(0)),
            (local(SLURM_UID, PidNamespace::Foreign(foreign(7))), in_namespace(SLURM_UID)),
            (local(0, PidNamespace::Unknown), Err(Denied::UnknownNamespace)),
            (local(0, PidNamespace::Unseen), Err(Denied::UnseenProcess)),
            (Principal::Local { uid: None, pid_namespace: PidNamespace::Agent }, Err(Denied::UnknownUser)),
            (remote(Role::Operator), Err(Denied::Elsewhere)),
            (remote(Role::Viewer), Err(Denied::Viewer)),
            (remote(Role::Agent), Err(Denied::Agent)),
            (Principal::Anonymous, Err(Denied::Anonymous)),
            (Principal::Unidentified, Err(Denied::Unidentified)),
        ] {
            for member in [false, true] {
                let registers = authorize(USERS, &principal, member, Operation::RegisterJobs);
                assert_eq!(registers, wanted, "{principal:?}");
            }
        }
        let traces = authorize(USERS, &local(SLURM_UID, PidNamespace::Agent), false, Operation::UseTraces);
        assert_eq!(traces, Ok(Scope::User(SLURM_UID)), "it reads no traces of others");
    }

    #[test]
    fn a_scope_includes_the_users_own_processes_only() {
        assert!(Scope::All.covers_process(8, None));
        assert!(Scope::User(7).covers_process(7, None) && Scope::User(7).covers_process(7, Some(9)));
        assert!(!Scope::User(7).covers_process(8, None) && !Scope::User(7).covers_process(0, None));
        for (uid, namespace, covered) in
            [(0, Some(7), true), (0, Some(8), false), (0, None, false), (1000, Some(7), false)]
        {
            let scope = in_namespace(0).unwrap();
            assert_eq!(scope.covers_process(uid, namespace), covered, "{uid} {namespace:?}");
        }
    }

    #[test]
    fn a_session_belongs_to_a_user_who_owns_all_its_processes() {
        assert!(Scope::All.covers_users(&[]));
        assert!(Scope::User(5).covers_users(&[5]));
        assert!(!Scope::User(5).covers_users(&[5, 6]));
        assert!(!Scope::User(5).covers_users(&[6]));
        assert!(!Scope::User(5).covers_users(&[]));
        assert!(!in_namespace(5).unwrap().covers_users(&[5]));
    }

    #[test]
    fn every_method_of_the_agent_has_an_operation() {
        let descriptors =
            <prost_types::FileDescriptorSet as prost::Message>::decode(proto::DESCRIPTORS).unwrap();
        let file = descriptors.file.iter().find(|file| file.name() == "tpuscope/v1/agent.proto").unwrap();
        for service in &file.service {
            for method in &service.method {
                let path = format!("/tpuscope.v1.{}/{}", service.name(), method.name());
                let wanted = match (service.name(), method.name()) {
                    ("Host", _) => Operation::ReadMeasurements,
                    ("Sessions", "Prune") => Operation::ManageStore,
                    ("Jobs", "RegisterAttempt" | "EndAttempt") => Operation::RegisterJobs,
                    ("Captures" | "Goodput" | "Jobs" | "Marks" | "Recorder" | "Sessions" | "Uploads", _) => {
                        Operation::UseTraces
                    }
                    (other, _) => unreachable!("no row of the table is about {other}"),
                };
                assert_eq!(Operation::of(&path), Some(wanted), "{path}");
            }
        }
        let xprof =
            descriptors.file.iter().find(|file| file.package() == "tensorflow" && !file.service.is_empty());
        for method in &xprof.unwrap().service[0].method {
            let wanted = match method.name() {
                "Monitor" => Operation::ReadMeasurements,
                "Profile" => Operation::Profile,
                _ => Operation::UseTraces,
            };
            let path = format!("/tensorflow.ProfilerService/{}", method.name());
            assert_eq!(Operation::of(&path), Some(wanted), "{path}");
        }
        for none in
            ["", "/", "tpuscope.v1.Host/Status", "/tpuscope.v1.HostX/Status", "/tensorflow.ProfilerService/X"]
        {
            assert_eq!(Operation::of(none), None, "{none}");
        }
    }

    #[test]
    fn the_log_names_a_caller_in_words() {
        let local = |uid, pid_namespace| Principal::Local { uid, pid_namespace }.to_string();
        let container = ForeignNamespace { inode: 4_026_532_000, _file: None };
        assert_eq!(local(Some(65534), PidNamespace::Agent), "uid 65534");
        assert_eq!(local(Some(0), PidNamespace::Foreign(container)), "uid 0 in pid:[4026532000]");
        assert_eq!(local(None, PidNamespace::Unknown), "unknown user in an unknown pid namespace");
        assert_eq!(Principal::Anonymous.to_string(), "anonymous");
        assert_eq!(remote(Role::Viewer).to_string(), "viewer alice at 10.0.0.7");
    }
}
