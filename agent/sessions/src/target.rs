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
    /// Processes of the caller that have no usable profiler and hold no chip.
    pub unusable: usize,
    /// Those that a profile would stop for ever, among the missing and the unusable ones.
    pub hanging: usize,
    /// Processes that the caller may not profile.
    pub denied: usize,
    /// Those among them that are of the caller's user, in another pid namespace.
    pub elsewhere: usize,
    /// Why a process of this host may not have been seen; `None` where all are seen, or where the targets were named.
    pub hidden: Option<String>,
}

/// Whether a caller may profile a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    /// It may.
    Granted,
    /// The process is of another user.
    NotYours,
    /// The process is of the caller's user, in another pid namespace than the caller.
    Elsewhere,
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
    may: impl Fn(Option<&Owner>) -> Permission,
) -> Targets {
    let mut found = Targets { hidden: workloads.hidden.clone(), ..Targets::default() };
    for owner in &workloads.owners {
        let pid = owner.process.pid;
        if !pids.is_empty() && !pids.contains(&pid) {
            continue;
        }
        match may(Some(owner)) {
            Permission::Granted => found.add(owner, chips, host),
            Permission::NotYours => found.denied += 1,
            Permission::Elsewhere => {
                found.denied += 1;
                found.elsewhere += 1;
            }
        }
    }
    let ownerless = workloads.endpoints.iter().filter(|endpoint| endpoint.kind == EndpointKind::Profiler);
    for endpoint in ownerless.filter(|_| pids.is_empty()) {
        match (&endpoint.unreachable, &endpoint.address) {
            (None, Address::Tcp(at)) if may(None) == Permission::Granted => {
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
    /// Leaves out the processes that a profile would stop for ever, as far as their versions are known.
    #[must_use]
    pub fn without_old_jaxlib(mut self) -> Self {
        let (hang, targets): (Vec<_>, _) = std::mem::take(&mut self.targets)
            .into_iter()
            .partition(|target| old_jaxlib::that_hangs(&target.versions).is_some());
        self.targets = targets;
        self.hanging += hang.len();
        self.missing.extend(hang.into_iter().filter_map(|target| {
            let why = old_jaxlib::left_out(old_jaxlib::that_hangs(&target.versions)?, &target.at);
            let process = target.process.map(|process| format!("pid {} ({})", process.pid, target.command));
            Some(Missing { host: target.host.to_string(), process, why })
        }));
        self
    }

    /// How many processes are not the caller's; `None` without one.
    pub fn left_out(&self) -> Option<String> {
        let count = |number| (number > 0).then(|| counted(number, "process"));
        let others = count(self.denied - self.elsewhere).map(|others| format!("not yours: {others}"));
        let elsewhere = count(self.elsewhere).map(|own| format!("in another pid namespace than you: {own}"));
        let because: Vec<String> = others.into_iter().chain(elsewhere).collect();
        (!because.is_empty()).then(|| format!("left out, because {}", because.join("; because ")))
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
                (None, Address::Tcp(at)) if hangs.is_some() => {
                    obstacle = hangs.map(|version| old_jaxlib::left_out(version, &Target::from(*at)));
                }
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
            self.hanging += usize::from(hangs.is_some());
            self.add_without_profiler(owner, host, obstacle);
        }
    }

    /// A process without a usable profiler: missing if it holds chips, otherwise a warning.
    fn add_without_profiler(&mut self, owner: &Owner, host: &HostName, obstacle: Option<String>) {
        let why = obstacle.unwrap_or_else(|| no_profiler_seen(owner));
        let process = format!("pid {} ({})", owner.process.pid, owner.command);
        if owner.chips.is_empty() {
            self.unusable += 1;
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
mod tests;
