//! The targets of a capture: profilers that were named, or those of the workloads found on this host.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use host::workloads::{PROFILER_DEFAULTS, PROFILER_VARIABLES};
use model::{
    device::Chip,
    job::{Job, JobKind},
    workload::{Address, Endpoint, EndpointKind, EndpointOrigin, Owner, ProcessKey, Workloads},
};
use xprof::{
    client::Target,
    session::{HostName, Missing, PartJob},
    wording::counted,
};

use crate::old_jaxlib;

/// One profiler to capture from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureTarget {
    /// Its address.
    pub at: Target,
    /// The host that its part is named after.
    pub host: HostName,
    /// The process behind it, where known.
    pub process: Option<ProcessKey>,
    /// Its user.
    pub uid: Option<u32>,
    /// The name of its user, where known.
    pub user: Option<String>,
    /// The versions of its libraries as its files say, by name.
    pub versions: BTreeMap<String, String>,
    /// Its job. `None` if only the process is known: one job may have several processes.
    pub job: Option<PartJob>,
    /// Its command, untrusted. Empty if it is not known.
    pub command: String,
    /// Chips that it holds; `None` if that is not known.
    pub chips: Option<usize>,
    /// Devices on those chips, if the generation is known.
    pub devices: Option<u32>,
    /// Warnings that its part has from the start.
    pub notes: Vec<String>,
}

/// The targets of one capture, and what is missing before it starts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Targets {
    /// The profilers.
    pub targets: Vec<CaptureTarget>,
    /// Processes that belong to the session and cannot be captured.
    pub missing: Vec<Missing>,
    /// Warnings about the whole session.
    pub warnings: Vec<String>,
    /// Processes that the caller may not profile.
    pub denied: usize,
    /// Why a process of this host may not have been seen; `None` where all are seen, or where the targets were named.
    pub hidden: Option<String>,
}

/// Profilers that the caller named; `local` is the name of this host. A profiler that is named twice is one target.
pub fn direct(named: &[Target], local: &HostName) -> Targets {
    let mut seen = BTreeSet::new();
    let targets = named.iter().filter(|at| seen.insert((*at).clone())).map(|at| CaptureTarget {
        at: at.clone(),
        host: if at.is_loopback() { local.clone() } else { HostName::sanitised(at.host()) },
        process: None,
        uid: None,
        user: None,
        versions: BTreeMap::new(),
        job: None,
        command: String::new(),
        chips: None,
        devices: None,
        notes: Vec::new(),
    });
    Targets { targets: targets.collect(), ..Targets::default() }
}

/// The addresses at which a profiler of this machine listens that a user names by its loopback; none for another machine.
pub fn loopback_addresses(named: &Target) -> Vec<SocketAddr> {
    let at = |ip: IpAddr| SocketAddr::new(ip, named.port());
    match named.host().parse() {
        _ if !named.is_loopback() => Vec::new(),
        Ok(ip) => vec![at(ip)],
        Err(_) => vec![at(Ipv4Addr::LOCALHOST.into()), at(Ipv6Addr::LOCALHOST.into())],
    }
}

/// Profilers that the caller named, with what is known of the processes behind those of this machine: `workloads` has
/// their endpoints.
pub fn direct_with_owners(
    named: &[Target],
    local: &HostName,
    workloads: &Workloads,
    chips: &[Chip],
) -> Targets {
    let mut found = direct(named, local);
    for known in &mut found.targets {
        let addresses = loopback_addresses(&known.at);
        let is_it = |endpoint: &&Endpoint| {
            let at = |at: &SocketAddr| endpoint.address == Address::Tcp(*at);
            endpoint.kind == EndpointKind::Profiler
                && !endpoint.listeners.is_empty()
                && addresses.iter().any(at)
        };
        if let Some(owner) =
            workloads.owners.iter().find(|owner| owner.endpoints.iter().any(|one| is_it(&one)))
        {
            let endpoint = owner.endpoints.iter().find(is_it);
            let notes = endpoint.and_then(|one| shared(&known.at, one)).into_iter().collect();
            let owned = target(owner, chips, local, known.at.clone(), notes);
            // An owner without a known chip holds a device that sysfs does not show.
            *known = CaptureTarget { chips: owned.chips.filter(|&chips| chips > 0), ..owned };
        } else if let Some(endpoint) = workloads.endpoints.iter().find(is_it) {
            known.chips = chips_of_listeners(endpoint);
            known.notes.extend(shared(&known.at, endpoint));
        }
    }
    found
}

/// What to know of a part of a port on which several processes listen, as far as they are seen.
fn shared(at: &Target, endpoint: &Endpoint) -> Option<String> {
    let pids: Vec<String> = endpoint.listeners.iter().map(|key| key.pid.to_string()).collect();
    (pids.len() > 1).then(|| {
        format!(
            "{at} is shared by the processes {}: this part is of one of them; give each process a port of its own",
            pids.join(", ")
        )
    })
}

/// The chips of the processes that listen on an endpoint without an owner: those that are seen hold none.
fn chips_of_listeners(endpoint: &Endpoint) -> Option<usize> {
    (!endpoint.listeners.is_empty()).then_some(0)
}

/// The profilers of the workloads on this host: of all, or only of `pids`. `may` says whether the caller may profile the
/// processes of an owner (`None`: a profiler without a known owner).
pub fn of_workloads(
    workloads: &Workloads,
    chips: &[Chip],
    host: &HostName,
    pids: &[u32],
    may: impl Fn(Option<&Owner>) -> bool,
) -> Targets {
    let mut found = Targets { hidden: workloads.hidden.clone(), ..Targets::default() };
    for owner in &workloads.owners {
        let pid = owner.process.pid;
        if !pids.is_empty() && !pids.contains(&pid) {
            continue;
        }
        if may(Some(owner)) {
            found.add(owner, chips, host);
        } else {
            found.denied += 1;
        }
    }
    let ownerless = workloads.endpoints.iter().filter(|endpoint| endpoint.kind == EndpointKind::Profiler);
    for endpoint in ownerless.filter(|_| pids.is_empty()) {
        match (&endpoint.unreachable, &endpoint.address) {
            (None, Address::Tcp(at)) if may(None) => {
                let known = direct(&[Target::from(*at)], host).targets.into_iter();
                let (chips, notes) = (chips_of_listeners(endpoint), shared(&Target::from(*at), endpoint));
                let notes: Vec<String> = notes.into_iter().collect();
                found.targets.extend(known.map(|target| CaptureTarget {
                    chips,
                    notes: notes.clone(),
                    ..target
                }));
            }
            (None, Address::Tcp(_)) => found.denied += 1,
            (Some(why), at) => found.warnings.push(format!("{at} was left out: {why}")),
            (None, Address::Unix(_)) => {}
        }
    }
    for pid in pids.iter().filter(|&&pid| workloads.owners.iter().all(|owner| owner.process.pid != pid)) {
        let why = "no workload process of this host has this pid".to_owned();
        found.missing.push(Missing { host: host.to_string(), process: Some(format!("pid {pid}")), why });
    }
    // Who names no process asks for those of their own: nothing of them is missing.
    if !pids.is_empty() {
        found.warnings.extend(found.left_out());
    }
    found
}

impl Targets {
    /// How many processes are not the caller's; `None` without one.
    pub(crate) fn left_out(&self) -> Option<String> {
        let denied = (self.denied > 0).then(|| counted(self.denied, "process"));
        denied.map(|denied| format!("left out, because not yours: {denied}"))
    }

    fn add(&mut self, owner: &Owner, chips: &[Chip], host: &HostName) {
        let mut obstacle = None;
        let mut reached = false;
        let hangs = old_jaxlib::that_hangs(&owner.versions);
        for endpoint in owner.endpoints.iter().filter(|endpoint| endpoint.kind == EndpointKind::Profiler) {
            match (&endpoint.unreachable, &endpoint.address) {
                (Some(why), at) => {
                    obstacle = Some(match &endpoint.origin {
                        EndpointOrigin::Variable(name) => format!("{at} of {name}: {why}"),
                        _ => why.clone(),
                    });
                }
                (None, Address::Unix(_)) => {}
                (None, Address::Tcp(_)) if hangs.is_some() => obstacle = hangs.map(old_jaxlib::reason),
                (None, Address::Tcp(at)) if !reached => {
                    reached = true;
                    let at = Target::from(*at);
                    // A call to a shared port reaches one of its listeners: one call, and the others are missing.
                    if self.targets.iter().any(|target| target.at == at) {
                        obstacle = Some(format!(
                            "it shares {at} with another process, and a call reaches only one of them"
                        ));
                        reached = false;
                        continue;
                    }
                    let notes = shared(&at, endpoint).into_iter().collect();
                    self.targets.push(target(owner, chips, host, at, notes));
                }
                (None, Address::Tcp(_)) => {}
            }
        }
        if !reached {
            self.add_without_profiler(owner, host, obstacle);
        }
    }

    /// A process without a usable profiler: missing if it holds chips, otherwise a warning.
    fn add_without_profiler(&mut self, owner: &Owner, host: &HostName, obstacle: Option<String>) {
        let why = obstacle.unwrap_or_else(|| no_profiler_seen(owner));
        let process = format!("pid {} ({})", owner.process.pid, owner.command);
        if owner.chips.is_empty() {
            self.warnings.push(format!("{process} was left out: {why}"));
        } else {
            self.missing.push(Missing { host: host.to_string(), process: Some(process), why });
        }
    }
}

/// What was observed of a process without any profiler. The agent does not know what the process called, or whether a
/// profiler closed before the agent started.
fn no_profiler_seen(owner: &Owner) -> String {
    let named = PROFILER_VARIABLES.iter().filter_map(|name| {
        let value =
            owner.environment.get(*name).map(|value| value.trim()).filter(|value| !value.is_empty())?;
        Some(format!("{value} ({name})"))
    });
    let ports: Vec<String> = PROFILER_DEFAULTS.iter().map(u16::to_string).chain(named).collect();
    format!(
        "no profiler of it has been seen since the agent started: it was not seen to listen on any of {}",
        ports.join(", ")
    )
}

/// The profiler of `owner` at this address.
pub(crate) fn target(
    owner: &Owner,
    chips: &[Chip],
    host: &HostName,
    at: Target,
    notes: Vec<String>,
) -> CaptureTarget {
    let held = owner.chips.iter().map(|index| chips.iter().find(|chip| chip.index == *index)?.cores);
    CaptureTarget {
        at,
        host: host.clone(),
        process: Some(owner.process),
        uid: Some(owner.uid),
        user: owner.job.user.clone(),
        versions: owner.versions.clone(),
        job: part_job(&owner.job),
        command: owner.command.clone(),
        chips: Some(owner.chips.len()),
        devices: held.sum::<Option<u32>>().filter(|&devices| devices > 0),
        notes,
    }
}

/// The job as the manifest has it. A job that is known by its process only is not written: the manifest would then say
/// that two processes of one job belong to two jobs.
fn part_job(job: &Job) -> Option<PartJob> {
    (job.kind != JobKind::Process).then(|| PartJob {
        kind: job.kind.as_str().to_owned(),
        id: job.id.clone(),
        attempt: job.attempt,
        name: job.name.clone(),
        user: job.user.clone(),
        rank: job.rank,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FailureReason, capture::no_target};
    use model::device::ChipIndex;

    fn owner(pid: u32, uid: u32, ports: &[u16], chips: &[u32]) -> Owner {
        let endpoint = |port: &u16| Endpoint {
            kind: EndpointKind::Profiler,
            address: Address::Tcp(SocketAddr::from(([127, 0, 0, 1], *port))),
            origin: EndpointOrigin::Config,
            listeners: vec![ProcessKey { pid, start_ticks: 1 }],
            unreachable: None,
        };
        Owner {
            process: ProcessKey { pid, start_ticks: 1 },
            container_pid: None,
            uid,
            gid: uid,
            command: "python".into(),
            chips: chips.iter().map(|&chip| ChipIndex(chip)).collect(),
            environment: BTreeMap::new(),
            libtpu: None,
            versions: [("jaxlib", "0.10.2"), ("libtpu", "0.0.52")]
                .map(|(name, version)| (name.to_owned(), version.to_owned()))
                .into(),
            pid_namespace: None,
            network_namespace: None,
            shares_our_network: true,
            job: Job {
                kind: JobKind::Process,
                id: pid.to_string(),
                attempt: None,
                name: None,
                user: Some("ada".into()),
                rank: None,
                hosts: Vec::new(),
            },
            endpoints: ports.iter().map(endpoint).collect(),
            no_metrics: None,
            notes: Vec::new(),
        }
    }

    fn find(owners: Vec<Owner>, pids: &[u32], uid: Option<u32>) -> Targets {
        let workloads = Workloads { owners, ..Workloads::default() };
        let may = |owner: Option<&Owner>| uid.is_none() || uid == owner.map(|owner| owner.uid);
        of_workloads(&workloads, &[], &HostName::sanitised("h"), pids, may)
    }

    #[test]
    fn a_process_with_a_jaxlib_that_hangs_is_asked_only_where_it_is_named() {
        let old = [("jaxlib".to_owned(), "0.7.2".to_owned())].into();
        let owner = Owner { versions: old, ..owner(10, 1000, &[9012], &[0]) };
        let workloads = Workloads { owners: vec![owner], ..Workloads::default() };
        let host: HostName = "h".parse().unwrap();
        let found = of_workloads(&workloads, &[], &host, &[], |_| true);
        assert!(
            found.targets.is_empty() && found.missing[0].why.starts_with("its jaxlib 0.7.2 stops for ever"),
            "{found:?}"
        );
        let named = direct_with_owners(&["localhost:9012".parse().unwrap()], &host, &workloads, &[]);
        assert_eq!(named.targets.len(), 1);
    }

    #[test]
    fn each_process_is_one_target() {
        let found = find(vec![owner(1, 5, &[9001, 9002], &[0]), owner(2, 5, &[9003], &[1])], &[], None);
        let ports: Vec<_> = found.targets.iter().map(|target| target.at.port()).collect();
        assert_eq!((ports, found.missing.len()), (vec![9001, 9003], 0));
        let CaptureTarget { uid, user, versions, .. } = &found.targets[0];
        assert_eq!((*uid, user.as_deref()), (Some(5), Some("ada")));
        let versions: Vec<_> = versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
        assert_eq!(versions, ["jaxlib 0.10.2", "libtpu 0.0.52"]);
    }

    #[test]
    fn a_target_has_the_job_that_names_it() {
        let mut named = owner(1, 5, &[9001], &[0]);
        named.job = Job {
            kind: JobKind::Slurm,
            id: "77".into(),
            attempt: Some(2),
            name: Some("train".into()),
            user: Some("ada".into()),
            rank: Some(3),
            hosts: vec!["a".into()],
        };
        let found = find(vec![named, owner(2, 5, &[9002], &[1])], &[], None);
        let expected = PartJob {
            kind: "slurm".into(),
            id: "77".into(),
            attempt: Some(2),
            name: Some("train".into()),
            user: Some("ada".into()),
            rank: Some(3),
        };
        let jobs: Vec<_> = found.targets.into_iter().map(|target| target.job).collect();
        assert_eq!(jobs, [Some(expected), None]);
    }

    #[test]
    fn a_process_without_a_usable_profiler_is_named() {
        let found = find(vec![owner(1, 5, &[], &[0]), owner(2, 5, &[], &[])], &[1, 2, 77], None);
        assert_eq!(found.missing.len(), 2);
        assert_eq!(
            found.missing[0].why,
            "no profiler of it has been seen since the agent started: it was not seen to listen on any of 9999, 9012, 6009"
        );
        assert!(found.missing[1].why.contains("no workload process"));
        assert!(found.warnings[0].contains("pid 2"));
    }

    #[test]
    fn a_port_of_a_variable_is_named_with_its_variable() {
        let mut named = owner(1, 5, &[], &[0]);
        named.environment.insert("JAX_PROFILER_PORT".into(), "7777".into());
        let why = find(vec![named.clone()], &[], None).missing.remove(0).why;
        assert!(why.ends_with("listen on any of 9999, 9012, 6009, 7777 (JAX_PROFILER_PORT)"), "{why}");
        named.endpoints = owner(1, 5, &[7777], &[0]).endpoints;
        named.endpoints[0].origin = EndpointOrigin::Variable("JAX_PROFILER_PORT".into());
        named.endpoints[0].unreachable = Some("nothing listens there".into());
        assert_eq!(
            find(vec![named], &[], None).missing[0].why,
            "127.0.0.1:7777 of JAX_PROFILER_PORT: nothing listens there"
        );
    }

    #[test]
    fn a_process_that_cannot_be_seen_is_part_of_the_reason() {
        let workloads = |owners| Workloads {
            owners,
            hidden: Some("the descriptors of some processes, such as 7, cannot be read".into()),
            ..Workloads::default()
        };
        let error = |owners, pids: &[u32]| {
            let targets = of_workloads(&workloads(owners), &[], &HostName::sanitised("h"), pids, |_| true);
            assert!(targets.targets.is_empty());
            no_target(&targets)
        };
        let unseen = "one that cannot be seen may hold a chip: the descriptors of some processes, such as 7, cannot be read";
        let none = error(Vec::new(), &[]);
        assert_eq!(none.to_string(), format!("no workload process was found on this host, but {unseen}"));
        assert_eq!(none.reason(), FailureReason::OwnersHidden);
        for (owners, pids, seen) in [
            (Vec::new(), &[9][..], "pid 9: no workload process of this host has this pid"),
            (vec![owner(1, 5, &[], &[0])], &[][..], "pid 1 (python): no profiler of it has been seen"),
        ] {
            let error = error(owners, pids);
            let text = error.to_string();
            assert!(text.contains(seen) && text.ends_with(&format!("; {unseen}")), "{text}");
            assert_eq!(error.reason(), FailureReason::OwnersHidden);
        }
        let all_seen = no_target(&Targets::default());
        assert_eq!(all_seen.to_string(), "no workload process was found on this host");
        assert_eq!(all_seen.reason(), FailureReason::NoTarget);
    }

    #[test]
    fn a_profiler_that_is_gone_is_the_reason() {
        let mut gone = owner(1, 5, &[9012], &[0]);
        let why = "the profiler on 127.0.0.1:9012 closed 8 s after the process started";
        gone.endpoints[0].unreachable = Some(why.into());
        assert_eq!(find(vec![gone], &[], None).missing[0].why, why);
    }

    #[test]
    fn a_shared_port_gives_one_part_and_names_the_other() {
        let mut owners = vec![owner(1, 5, &[9001], &[0]), owner(2, 5, &[9001], &[1])];
        let both: Vec<_> = owners.iter().map(|owner| owner.process).collect();
        for owner in &mut owners {
            owner.endpoints[0].listeners.clone_from(&both);
        }
        let found = find(owners, &[], None);
        assert_eq!(found.targets.len(), 1);
        assert!(found.targets[0].notes[0].contains("shared by the processes 1, "));
        assert!(found.missing[0].why.contains("shares 127.0.0.1:9001"));
    }

    #[test]
    fn a_port_that_is_shared_is_told_also_where_it_was_named() {
        let mut sharing = owner(1, 5, &[9001], &[0]);
        sharing.endpoints[0].listeners.push(ProcessKey { pid: 2, start_ticks: 7 });
        let endpoint = sharing.endpoints[0].clone();
        let host = HostName::sanitised("h");
        let named = ["localhost:9001".parse().unwrap()];
        let told = |workloads: Workloads| {
            let direct = direct_with_owners(&named, &host, &workloads, &[]);
            let found = of_workloads(&workloads, &[], &host, &[], |_| true);
            [direct, found].map(|found| found.targets[0].notes.clone())
        };
        for notes in told(Workloads { owners: vec![sharing], ..Workloads::default() })
            .into_iter()
            .chain(told(Workloads { endpoints: vec![endpoint], ..Workloads::default() }))
        {
            assert!(
                notes[0].contains("is shared by the processes 1, 2: this part is of one of them"),
                "{notes:?}"
            );
        }
    }

    #[test]
    fn other_users_are_left_out() {
        let both = || vec![owner(1, 5, &[9001], &[0]), owner(2, 6, &[9002], &[1])];
        let found = find(both(), &[], Some(6));
        assert_eq!(found.targets.len(), 1);
        assert_eq!(found.targets[0].uid, Some(6));
        assert_eq!(found.denied, 1);
        // Nothing that was asked for is missing, unless the process was named.
        assert_eq!((found.warnings.len(), found.missing.len()), (0, 0));
        let named = find(both(), &[1, 2], Some(6));
        assert_eq!((named.targets.len(), named.missing.len()), (1, 0));
        assert_eq!(named.warnings, ["left out, because not yours: 1 process"]);
    }

    #[test]
    fn the_owner_of_a_named_profiler_of_this_machine_is_known() {
        let none = owner(2, 5, &[9002], &[]).endpoints;
        let mut unseen = owner(3, 5, &[9003], &[]).endpoints;
        unseen[0].listeners.clear();
        let workloads = Workloads {
            owners: vec![owner(1, 5, &[9001], &[0, 1])],
            endpoints: none.into_iter().chain(unseen).collect(),
            ..Workloads::default()
        };
        let named = ["localhost:9001", "127.0.0.1:9002", "127.0.0.1:9003", "[::1]:9001", "tpu-7:9001"];
        let named: Vec<Target> = named.iter().map(|text| text.parse().unwrap()).collect();
        let found = direct_with_owners(&named, &HostName::sanitised("me"), &workloads, &[]).targets;
        let chips: Vec<_> = found.iter().map(|target| target.chips).collect();
        assert_eq!(chips, [Some(2), Some(0), None, None, None]);
        assert_eq!(
            (found[0].process.map(|process| process.pid), found[0].at.clone()),
            (Some(1), named[0].clone())
        );
        assert_eq!(found[4].host.to_string(), "tpu-7");
        // The agent knows it of a profiler in its settings in the same way.
        let found = of_workloads(&workloads, &[], &HostName::sanitised("me"), &[], |_| true).targets;
        let chips: Vec<_> = found.iter().map(|target| target.chips).collect();
        assert_eq!(chips, [Some(2), Some(0), None]);
    }

    #[test]
    fn a_target_that_is_named_twice_is_one_target_with_the_name_of_its_host() {
        let named: Vec<Target> = ["localhost:1", "127.0.0.1:1", "localhost:1", "tpu-7:2"]
            .iter()
            .map(|t| t.parse().unwrap())
            .collect();
        let hosts: Vec<_> = direct(&named, &HostName::sanitised("me"))
            .targets
            .into_iter()
            .map(|t| t.host.to_string())
            .collect();
        assert_eq!(hosts, ["me", "me", "tpu-7"]);
    }
}
