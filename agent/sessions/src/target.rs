//! The targets of a capture: profilers that were named, or those of the workloads found on this host.

use std::collections::{BTreeMap, BTreeSet};

use model::{
    device::Chip,
    job::{Job, JobKind},
    workload::{Address, EndpointKind, Owner, ProcessKey, Workloads},
};
use xprof::{
    client::Target,
    session::{HostName, Missing, PartJob},
};

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
    /// Chips that it holds.
    pub chips: usize,
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
        chips: 0,
        devices: None,
        notes: Vec::new(),
    });
    Targets { targets: targets.collect(), ..Targets::default() }
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
    let mut found = Targets::default();
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
                found.targets.extend(direct(&[Target::from(*at)], host).targets);
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
    if found.denied > 0 {
        let denied = found.denied;
        found.warnings.push(format!("{denied} process(es) that are not yours were left out"));
    }
    found
}

impl Targets {
    fn add(&mut self, owner: &Owner, chips: &[Chip], host: &HostName) {
        let mut obstacle = None;
        let mut reached = false;
        for endpoint in owner.endpoints.iter().filter(|endpoint| endpoint.kind == EndpointKind::Profiler) {
            match (&endpoint.unreachable, &endpoint.address) {
                (Some(why), _) => obstacle = Some(why.clone()),
                (None, Address::Unix(_)) => {}
                (None, Address::Tcp(at)) if !reached => {
                    reached = true;
                    let at = Target::from(*at);
                    let sharing: Vec<_> = endpoint
                        .listeners
                        .iter()
                        .filter(|key| **key != owner.process)
                        .map(|key| key.pid)
                        .collect();
                    // A call to a shared port reaches one of its listeners: one call, and the others are missing.
                    if self.targets.iter().any(|target| target.at == at) {
                        obstacle = Some(format!(
                            "it shares {at} with another process, and a call reaches only one of them"
                        ));
                        reached = false;
                        continue;
                    }
                    let mut notes = Vec::new();
                    if !sharing.is_empty() {
                        notes.push(format!(
                            "{at} is shared by pid {} and {sharing:?}: this part is of one of them; give each process \
                             a port of its own",
                            owner.process.pid
                        ));
                    }
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
        let why = obstacle.unwrap_or_else(|| {
            "no profiler of it has been seen: it listens neither on the port of JAX_PROFILER_PORT in its environment nor on \
             a default port, so jax.profiler.start_server(PORT) was not called, or was called with another port"
                .to_owned()
        });
        let process = format!("pid {} ({})", owner.process.pid, owner.command);
        if owner.chips.is_empty() {
            self.warnings.push(format!("{process} was left out: {why}"));
        } else {
            self.missing.push(Missing { host: host.to_string(), process: Some(process), why });
        }
    }
}

fn target(owner: &Owner, chips: &[Chip], host: &HostName, at: Target, notes: Vec<String>) -> CaptureTarget {
    let held = owner.chips.iter().map(|index| chips.iter().find(|chip| chip.index == *index)?.cores);
    CaptureTarget {
        at,
        host: host.clone(),
        process: Some(owner.process),
        uid: Some(owner.uid),
        user: owner.job.user.clone(),
        versions: versions(owner),
        job: part_job(&owner.job),
        command: owner.command.clone(),
        chips: owner.chips.len(),
        devices: held.sum::<Option<u32>>().filter(|&devices| devices > 0),
        notes,
    }
}

/// The versions of the libraries that the owner has mapped.
fn versions(owner: &Owner) -> BTreeMap<String, String> {
    let framework = owner.framework.as_deref().and_then(|framework| framework.split_once(' '));
    let libtpu = owner.libtpu_version.as_deref().map(|version| ("libtpu", version));
    let known = framework.into_iter().chain(libtpu);
    known.map(|(name, version)| (name.to_owned(), version.to_owned())).collect()
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
    use std::{collections::BTreeMap, net::SocketAddr};

    use super::*;
    use model::{
        device::ChipIndex,
        workload::{Endpoint, EndpointOrigin},
    };

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
            libtpu_version: Some("0.0.52".into()),
            framework: Some("jaxlib 0.10.2".into()),
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
        assert!(found.missing[0].why.contains("start_server"));
        assert!(found.missing[1].why.contains("no workload process"));
        assert!(found.warnings[0].contains("pid 2"));
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
        assert!(found.targets[0].notes[0].contains("shared by pid 1"));
        assert!(found.missing[0].why.contains("shares 127.0.0.1:9001"));
    }

    #[test]
    fn other_users_are_left_out() {
        let found = find(vec![owner(1, 5, &[9001], &[0]), owner(2, 6, &[9002], &[1])], &[], Some(6));
        assert_eq!(found.targets.len(), 1);
        assert_eq!(found.targets[0].uid, Some(6));
        assert!(found.warnings[0].contains("1 process"));
        assert_eq!(found.denied, 1);
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
