//! Who holds the chips of this host, which job that is, and where it may be asked.
//!
//! Must never keep an environment beyond the allow-list of [`environment`], contact a port that [`endpoints`]
//! does not allow, wait for a workload's own files, or read more of a process that holds no chip than the
//! links of its descriptors.

mod endpoints;
mod environment;
mod facts;
mod identity;
mod libraries;
mod listeners;
mod network;
mod owners;
mod probe;
mod procfs;
mod profile;
mod rights;
mod sweep;

use std::{
    collections::{BTreeMap, HashMap},
    io,
    sync::Arc,
    time::Duration,
};

use endpoints::{EndpointInputs, Plan, Subject};
use facts::Stat;
use model::{
    device::Chip,
    time::Timestamp,
    workload::{Owner, Workloads},
};
use owners::{Known, forked_from};
use probe::Prober;
use procfs::Procfs;
use profile::Profiler;
use sweep::{Held, Nodes, Sweep, Sweeper};

use crate::settings::{
    paths::Paths,
    workload::{Discover, Probe, Workload as Settings},
};

/// Changes bring the next full look forward, but not closer than this to the last.
const LEAST_GAP: Duration = Duration::from_secs(1);
/// Ticks come a little earlier or later than they are due: what is due within this time is not left to the next.
const HAIR: Duration = Duration::from_millis(100);
/// Where nobody is expected, every so many intervals will do; who captures is given a look at once.
const SELDOM: u32 = 6;
/// More owners are not listed.
const MOST_OWNERS: usize = 512;

/// Finds the owners, and keeps what it knows about them from one look to the next.
///
/// A full look blocks, and is to be called through `spawn_blocking`.
#[derive(Debug)]
pub struct OwnerScanner {
    paths: Paths,
    settings: Settings,
    chips: Arc<[Chip]>,
    nodes: Nodes,
    known: BTreeMap<u32, Known>,
    verdicts: HashMap<u32, Verdict>,
    profiler: Profiler,
    prober: Prober,
    sweeper: Sweeper,
    /// Space that the sweep uses again.
    sockets: Vec<(u64, u32)>,
    current: Arc<Workloads>,
    last_scan: Option<Timestamp>,
    full: bool,
}

/// Whether a process has a framework mapped; holds until its address space changes.
#[derive(Debug)]
struct Verdict {
    stat: Stat,
    mapped: bool,
}

impl OwnerScanner {
    /// Nothing is looked at before the first tick.
    pub fn new(paths: Paths, settings: Settings, chips: Arc<[Chip]>) -> Self {
        Self {
            nodes: Nodes::of(&chips, &paths.dev),
            paths,
            settings,
            chips,
            known: BTreeMap::new(),
            verdicts: HashMap::new(),
            profiler: Profiler::default(),
            prober: Prober::default(),
            sweeper: Sweeper::default(),
            sockets: Vec::new(),
            current: Arc::default(),
            last_scan: None,
            full: false,
        }
    }

    /// Takes the chips of a newer device scan; a change makes the next tick look at every process.
    pub fn set_chips(&mut self, chips: Arc<[Chip]>) {
        if self.chips != chips {
            self.nodes = Nodes::of(&chips, &self.paths.dev);
            self.chips = chips;
            self.sweeper.forget();
            self.last_scan = None;
        }
    }

    /// Makes the next tick look at every process.
    pub fn look_at_all(&mut self) {
        self.last_scan = None;
    }

    /// Whether the last tick looked at every process.
    pub fn was_full_scan(&self) -> bool {
        self.full
    }

    /// Whether the last tick could see processes at all.
    pub fn sees_processes(&self) -> bool {
        self.last_scan.is_some()
    }

    /// Whether no full look is due and every known owner is as it was: a few reads of what the kernel has at hand,
    /// which do not block.
    pub fn is_quiet(&mut self, now: Timestamp) -> bool {
        let unchanged = |discovery: &mut Self| {
            Procfs::open(&discovery.paths.procfs).is_ok_and(|proc| discovery.gone(&proc).is_empty())
        };
        !self.due(now, false) && (self.known.is_empty() || unchanged(self))
    }

    /// The owners now. Known ones are checked; every process is looked at when the interval has passed or a
    /// known owner has changed. The answer is the same `Arc` as before when nothing changed.
    pub fn tick(&mut self, now: Timestamp) -> Arc<Workloads> {
        let mut proc = match Procfs::open(&self.paths.procfs) {
            Ok(proc) => proc,
            Err(error) => return self.blind(&error),
        };
        let gone = self.gone(&proc);
        self.full = self.due(now, !gone.is_empty());
        if self.full {
            self.last_scan = Some(now);
            match self.scan(&mut proc) {
                Ok(workloads) => self.publish(workloads),
                Err(error) => return self.blind(&error),
            }
        } else if !gone.is_empty() {
            self.known.retain(|pid, _| !gone.contains(pid));
            let mut left = Workloads::clone(&self.current);
            left.owners.retain(|owner| !gone.contains(&owner.process.pid));
            // The full look that finds out more has to wait a moment, but comes with the next tick after it.
            self.last_scan = self.last_scan.map(|at| self.interval_before(at));
            self.publish(left);
        }
        Arc::clone(&self.current)
    }

    /// Where there are no chips nobody is expected to hold one; somebody may yet hold what sysfs does not show.
    fn nobody_expected(&self) -> bool {
        self.chips.is_empty()
            && self.known.is_empty()
            && self.settings.discover == Discover::Chips
            && self.settings.endpoints.is_empty()
    }

    /// From one full look to the next.
    fn interval(&self) -> Duration {
        let interval = self.settings.scan_interval.get();
        if self.nobody_expected() { interval.saturating_mul(SELDOM) } else { interval }
    }

    /// Moves the last look back so that the next one is due [`LEAST_GAP`] after it.
    fn interval_before(&self, at: Timestamp) -> Timestamp {
        let back = self.interval().saturating_sub(LEAST_GAP);
        Timestamp(at.0.saturating_sub(i64::try_from(back.as_nanos()).unwrap_or(i64::MAX)))
    }

    fn due(&self, now: Timestamp, changed: bool) -> bool {
        let Some(last) = self.last_scan else { return true };
        let wait = if changed { LEAST_GAP } else { self.interval() };
        // The clock may have been set back.
        now < last || last.age(now) + HAIR >= wait
    }

    /// Known owners that ended, exec'd another program or let go of a chip.
    fn gone(&mut self, proc: &Procfs) -> Vec<u32> {
        let (profiler, nodes) = (&mut self.profiler, &self.nodes);
        let holds = |pid: u32, (descriptor, held): &(u32, Held)| {
            let target = proc.link(&pid.to_string(), &format!("fd/{descriptor}"));
            target.is_ok_and(|target| nodes.held(&target).as_ref() == Some(held))
        };
        let changed = self.known.iter().filter(|(pid, known)| {
            profiler.same(proc, **pid, known.profile.stat).is_none()
                || !known.held.iter().all(|one| holds(**pid, one))
        });
        changed.map(|(pid, _)| *pid).collect()
    }

    fn blind(&mut self, error: &io::Error) -> Arc<Workloads> {
        self.full = false;
        self.last_scan = None;
        self.known.clear();
        let at = self.paths.procfs.display();
        let note = format!(
            "cannot read processes in {at} ({error}): owners are unknown; mount the host's procfs, or set paths.procfs"
        );
        self.publish(Workloads { notes: vec![note], ..Workloads::default() });
        Arc::clone(&self.current)
    }

    fn publish(&mut self, workloads: Workloads) {
        for note in workloads.notes.iter().filter(|note| !self.current.notes.contains(note)) {
            tracing::warn!("{note}");
        }
        if *self.current != workloads {
            self.current = Arc::new(workloads);
        }
    }

    fn scan(&mut self, proc: &mut Procfs) -> io::Result<Workloads> {
        let sockets = std::mem::take(&mut self.sockets);
        let sweep = self.sweeper.sweep(proc, &self.nodes, sockets)?;
        let mut notes = self.notes(proc, &sweep);
        let ignored = self.take_in(proc, &sweep);
        if ignored > 0 {
            notes.push(format!("{ignored} owners asked to be left alone (TPUSCOPE_IGNORE=1)"));
        }
        if self.known.len() > MOST_OWNERS {
            notes.push(format!("{} owners found, the first {MOST_OWNERS} are listed", self.known.len()));
            while self.known.len() > MOST_OWNERS {
                self.known.pop_last();
            }
        }
        let plan = self.plan(proc, &sweep);
        notes.extend(plan.notes);
        self.sockets = sweep.sockets;
        let owners = self.known.iter().zip(plan.subjects);
        let our_namespace = network::our_namespace(proc);
        Ok(Workloads {
            owners: owners
                .map(|((pid, known), (endpoints, notes))| Owner {
                    endpoints,
                    shares_our_network: our_namespace.is_some()
                        && known.profile.network_namespace == our_namespace,
                    ..known.owner(*pid, forked_from(&self.known, known), notes)
                })
                .collect(),
            endpoints: plan.shared,
            notes,
        })
    }

    /// What cannot be seen from here.
    fn notes(&self, proc: &Procfs, sweep: &Sweep) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(pid) = sweep.denied {
            notes.push(format!(
                "some processes, such as {pid}, cannot be looked into: a chip that they hold seems free; {}",
                rights::remedy()
            ));
        }
        if sweep.pids.first() != Some(&1) {
            notes.push(format!(
                "{} does not show process 1: it is mounted with hidepid, and processes of other users are hidden; \
                 the agent needs to be in the group that hidepid lets through (gid=)",
                proc.path().display()
            ));
        }
        // The first pid namespace of a machine has this fixed number.
        const FIRST_PID_NAMESPACE: u64 = 4_026_531_836;
        let namespace = proc.namespace("self", "pid");
        if !self.chips.is_empty()
            && sweep.holders.is_empty()
            && namespace.is_some_and(|at| at != FIRST_PID_NAMESPACE)
        {
            notes.push(
                "nobody in this pid namespace holds a chip, and processes outside it are invisible: share it with \
                 the workload (shareProcessNamespace: true), or use the host's (hostPID: true)"
                    .to_owned(),
            );
        }
        notes
    }

    /// Updates what is known from a sweep. Returns how many owners asked to be left alone.
    fn take_in(&mut self, proc: &Procfs, sweep: &Sweep) -> usize {
        let mut before = std::mem::take(&mut self.known);
        let mut ignored = 0;
        for pid in &sweep.pids {
            let held = sweep.holders.get(pid);
            if held.is_none() && !(self.settings.discover == Discover::Any && self.has_mapped(proc, *pid)) {
                continue;
            }
            let old = before.remove(pid);
            let same =
                old.and_then(|old| Some((self.profiler.same(proc, *pid, old.profile.stat)?, old.profile)));
            let profile = match same {
                Some((stat, mut profile)) => {
                    self.profiler.refresh(proc, stat, *pid, held.is_some(), &mut profile);
                    Some(profile)
                }
                None => self.profiler.read(proc, *pid, held.is_some()),
            };
            let Some(profile) = profile else { continue };
            if environment::ignored(&profile.environment) {
                ignored += 1;
                continue;
            }
            self.known.insert(*pid, Known { profile, held: held.cloned().unwrap_or_default() });
        }
        if self.settings.discover == Discover::Any {
            self.verdicts.retain(|pid, _| sweep.pids.binary_search(pid).is_ok());
        }
        ignored
    }

    /// Whether a process has jaxlib, torch_xla or libtpu mapped. Its map is read only when its address space
    /// has changed since it was read last. Our own child that loads libtpu is no workload.
    fn has_mapped(&mut self, proc: &Procfs, pid: u32) -> bool {
        let Some(stat) = self.profiler.stat(proc, pid) else { return false };
        if let Some(Verdict { stat: before, mapped }) = self.verdicts.get(&pid) {
            // What is mapped stays mapped until the process execs.
            if *before == stat || (*mapped && before.same_program(stat)) {
                return *mapped;
            }
        }
        let program = |process: &str| proc.link(process, "exe").ok();
        let ours = || program("self").is_some_and(|own| program(&pid.to_string()) == Some(own));
        let mapped = proc.file(&pid.to_string(), "maps").and_then(libraries::mapped);
        let mapped = mapped.is_ok_and(|mapped| mapped.any()) && !ours();
        self.verdicts.insert(pid, Verdict { stat, mapped });
        mapped
    }

    /// Decides on endpoints; asks listeners where that is wanted.
    fn plan(&mut self, proc: &Procfs, sweep: &Sweep) -> Plan {
        let profiler = &mut self.profiler;
        let subjects: Vec<Subject<'_>> = self
            .known
            .iter()
            .map(|(pid, known)| Subject {
                process: known.key(*pid),
                uid: known.profile.status.uid,
                holds_chips: !known.held.is_empty() && forked_from(&self.known, known).is_none(),
                environment: &known.profile.environment,
                namespace: known.profile.network_namespace,
                metrics_socket: profiler.unix_socket(&known.profile),
            })
            .collect();
        let chips = !self.chips.is_empty();
        if subjects.is_empty() && !chips && self.settings.endpoints.is_empty() {
            return Plan::default();
        }
        let network = network::look(proc, profiler, &subjects, &self.settings.endpoints, &sweep.sockets);
        let scene = |profilers| EndpointInputs {
            subjects: &subjects,
            listeners: &network.listeners,
            our_namespace: network.our_namespace,
            local_addresses: &network.local_addresses,
            statics: &self.settings.endpoints,
            probe: self.settings.probe == Probe::Listeners,
            profilers,
            chips,
        };
        let known = self.prober.profilers().clone();
        let plan = endpoints::plan(&scene(&known));
        self.prober.keep(&network.listeners.iter().map(|listener| listener.inode).collect());
        if !self.prober.ask(&plan.candidates) {
            return plan;
        }
        let known = self.prober.profilers().clone();
        endpoints::plan(&scene(&known))
    }
}

#[cfg(test)]
mod tests;
