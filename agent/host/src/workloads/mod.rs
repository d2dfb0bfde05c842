//! The processes that own chips of this host, the job of each, and the endpoints that may be contacted.
//!
//! Must never keep an environment variable that is not on the list in [`environment`], contact a port that
//! [`endpoints`] does not allow, wait for a workload's own files, or read more of a process that holds no chip than
//! the links of its descriptors.

mod capabilities;
mod early_scan;
mod endpoints;
mod environment;
mod hidden_processes;
mod job_identity;
pub mod leftovers;
mod libraries;
mod node_watch;
mod owners;
mod port_listeners;
mod process_details;
mod process_life;
mod process_scan;
pub mod process_status;
pub mod process_texts;
mod procfs;
mod profiler_history;
mod profiler_probe;
mod workload_files;
mod young_processes;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    sync::Arc,
    time::Duration,
};

pub use endpoints::{PROFILER_DEFAULTS, PROFILER_VARIABLES};
pub use environment::{CONFIGURATION as CONFIGURATION_VARIABLES, RECORD as RECORD_VARIABLE};

use early_scan::{EarlyScan, OwnerCheck};
use endpoints::{EndpointInputs, EndpointPlan, OwnerInputs, OwnerPlan};
use hidden_processes::hidden_processes;
use model::{
    device::{Chip, ChipIndex},
    time::Timestamp,
    workload::{Owner, Workloads},
};
use node_watch::NodeWatch;
use owners::{KnownOwner, forked_from, join_forks, mark_shared_chips};
use process_details::{ProcessDetails, ProcessReader};
use process_life::ProcessLife;
use process_scan::{DeviceNodes, HeldDevice, ProcessScan, ProcessScanner};
use process_status::ProcessStat;
use procfs::Procfs;
use profiler_history::ProfilerHistory;
use profiler_probe::ProfilerProbe;
use young_processes::YoungProcesses;

use crate::settings::{
    paths::Paths,
    workload::{Discover, Probe, Settings},
};

/// A change makes the next full scan due earlier, but not sooner than this after the last.
const MIN_SCAN_GAP: Duration = Duration::from_secs(1);
/// A tick may come a little early: a scan that is due within this time is not left to the next tick.
const DUE_TOLERANCE: Duration = Duration::from_millis(100);
/// On a host where no owner is expected the scan interval is multiplied by this; a capture asks for a scan at once.
const IDLE_FACTOR: u32 = 30;
/// The scan interval grows with the time since the last owner came, up to this many times: by then its ports are open, and
/// another owner is seen between two scans.
const SETTLED_FACTOR: u32 = 6;
/// While nothing tells of a change, the files of known owners are read at this interval.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of owners that are listed.
const MAX_OWNERS: usize = 512;

/// Finds the owners, and keeps what is known about them from one tick to the next.
///
/// [`tick`](Self::tick) blocks: call it through `spawn_blocking`.
#[derive(Debug)]
pub struct OwnerScanner {
    paths: Paths,
    settings: Settings,
    chips: Arc<[Chip]>,
    other_groups: BTreeSet<u32>,
    nodes: DeviceNodes,
    known: BTreeMap<u32, KnownOwner>,
    mapped_checks: HashMap<u32, MappedCheck>,
    reader: ProcessReader,
    probe: ProfilerProbe,
    scanner: ProcessScanner,
    watch: NodeWatch,
    young: YoungProcesses,
    /// What asks for a scan before it is due.
    early: EarlyScan,
    /// Buffer of the scan, kept for the next one.
    sockets: Vec<(u64, u32)>,
    current: Arc<Workloads>,
    last_scan: Option<Timestamp>,
    /// When the files of the known owners were read last.
    last_check: Option<Timestamp>,
    /// When a scan found an owner that the one before did not know.
    newest_owner: Option<Timestamp>,
    full: bool,
}

/// Whether a process has a framework mapped; valid until its address space changes.
#[derive(Debug)]
struct MappedCheck {
    stat: ProcessStat,
    mapped: bool,
}

impl OwnerScanner {
    /// A scanner that has not read anything yet.
    pub fn new(paths: Paths, settings: Settings, chips: Arc<[Chip]>) -> Self {
        let watch = NodeWatch::of(&chips, &paths.dev);
        Self {
            nodes: DeviceNodes::of(&chips, &BTreeSet::new(), &paths.dev),
            paths,
            settings,
            chips,
            other_groups: BTreeSet::new(),
            known: BTreeMap::new(),
            mapped_checks: HashMap::new(),
            reader: ProcessReader::default(),
            probe: ProfilerProbe::default(),
            scanner: ProcessScanner::default(),
            watch,
            young: YoungProcesses::default(),
            early: EarlyScan::default(),
            sockets: Vec::new(),
            current: Arc::default(),
            last_scan: None,
            last_check: None,
            newest_owner: None,
            full: false,
        }
    }

    /// Takes the chips of a newer device scan, and the IOMMU groups of devices that are no TPU; a change makes the next
    /// tick a full scan.
    pub fn set_chips(&mut self, chips: Arc<[Chip]>, other_groups: BTreeSet<u32>) {
        if self.chips != chips || self.other_groups != other_groups {
            self.nodes = DeviceNodes::of(&chips, &other_groups, &self.paths.dev);
            self.watch = NodeWatch::of(&chips, &self.paths.dev);
            self.chips = chips;
            self.other_groups = other_groups;
            self.scanner.clear();
            self.last_scan = None;
        }
    }

    /// Makes the next tick a full scan.
    pub fn request_full_scan(&mut self) {
        self.last_scan = None;
    }

    /// Whether the last tick was a full scan.
    pub fn was_full_scan(&self) -> bool {
        self.full
    }

    /// Whether the last tick could read processes at all.
    pub fn sees_processes(&self) -> bool {
        self.last_scan.is_some()
    }

    /// Whether a tick has nothing to read: no chip and no owner is known, and no full scan is due. Does not block.
    pub fn is_idle(&self, now: Timestamp) -> bool {
        self.chips.is_empty() && self.known.is_empty() && !self.due(now, false)
    }

    /// Whether nothing tells that the owners have changed since the last tick: each chip has an owner, all owners live, no
    /// node of a chip was used, and neither a scan nor a check is due. Does not block.
    pub fn is_unchanged(&mut self, now: Timestamp) -> bool {
        let used = self.watch.was_used();
        self.early.node_used |= used;
        let checked = |at: Timestamp| now >= at && at.age(now) + DUE_TOLERANCE < CHECK_INTERVAL;
        !used
            && self.last_check.is_some_and(checked)
            && !self.due(now, self.early.wanted(now))
            && self.all_chips_owned()
            && process_life::all_live(self.known.values().map(|known| &known.life))
    }

    /// The owners now. Known owners and young processes are checked; a full scan is made when the interval has passed, a
    /// known owner has changed, or a chip was opened. Returns the same `Arc` as before when nothing changed.
    pub fn tick(&mut self, now: Timestamp) -> Arc<Workloads> {
        let mut proc = match Procfs::open(&self.paths.procfs) {
            Ok(proc) => proc,
            Err(error) => return self.unreadable(&error),
        };
        let OwnerCheck { gone, other_state } = self.check_owners(&proc);
        self.last_check = Some(now);
        if let Err(error) = self.look_for_new_owners(&mut proc, now) {
            return self.unreadable(&error);
        }
        self.full = self.due(now, !gone.is_empty() || other_state || self.early.wanted(now));
        if self.full {
            let for_use = self.early.is_for_use(&gone);
            self.last_scan = Some(now);
            let mut has_new = match self.scan_for_owners(&mut proc) {
                Ok(has_new) => has_new,
                Err(error) => return self.unreadable(&error),
            };
            if for_use && !has_new && self.early.look_closer(now) {
                // Somebody may have closed one descriptor and opened the node instead: their number does not tell.
                self.scanner.clear();
                has_new = match self.scan_for_owners(&mut proc) {
                    Ok(has_new) => has_new,
                    Err(error) => return self.unreadable(&error),
                };
            }
            if has_new {
                self.newest_owner = Some(now);
            }
            self.early.scanned(now, for_use && !has_new, self.settings.scan_interval.get());
        } else if !gone.is_empty() {
            self.known.retain(|pid, _| !gone.contains(pid));
            let mut left = Workloads::clone(&self.current);
            left.owners.retain(|owner| !gone.contains(&owner.process.pid));
            // The full scan that finds out more is made by the first tick after the minimum gap.
            self.last_scan = self.last_scan.map(|at| self.interval_before(at));
            self.publish(left);
        }
        Arc::clone(&self.current)
    }

    /// Scans all processes and publishes the result; whether there is an owner that was not known.
    fn scan_for_owners(&mut self, proc: &mut Procfs) -> io::Result<bool> {
        let before: Vec<u32> = self.known.keys().copied().collect();
        let workloads = self.scan(proc)?;
        self.publish(workloads);
        Ok(!self.known.keys().all(|pid| before.contains(pid)))
    }

    /// Without chips no owner is expected; a process may still hold a device that sysfs does not show.
    fn no_owner_expected(&self) -> bool {
        self.chips.is_empty()
            && self.known.is_empty()
            && self.settings.discover == Discover::Chips
            && self.settings.endpoints.is_empty()
    }

    /// How long the last owner was known at the last scan. `None` without owners, and without chips: nothing tells of a
    /// new owner between two scans then.
    fn settled_for(&self) -> Option<Duration> {
        let (last, newest) = (self.last_scan?, self.newest_owner?);
        (!self.chips.is_empty() && !self.known.is_empty()).then(|| newest.age(last))
    }

    /// The time between two full scans.
    fn interval(&self) -> Duration {
        let interval = self.settings.scan_interval.get();
        if self.no_owner_expected() {
            return interval.saturating_mul(IDLE_FACTOR);
        }
        let longest = interval.saturating_mul(SETTLED_FACTOR);
        self.settled_for().map_or(interval, |settled| settled.clamp(interval, longest))
    }

    /// Moves the last scan back so that the next one is due [`MIN_SCAN_GAP`] after it.
    fn interval_before(&self, at: Timestamp) -> Timestamp {
        let back = self.interval().saturating_sub(MIN_SCAN_GAP);
        Timestamp(at.0.saturating_sub(i64::try_from(back.as_nanos()).unwrap_or(i64::MAX)))
    }

    fn due(&self, now: Timestamp, changed: bool) -> bool {
        let Some(last) = self.last_scan else { return true };
        let wait = if changed { MIN_SCAN_GAP } else { self.interval() };
        // The clock may have been set back.
        now < last || last.age(now) + DUE_TOLERANCE >= wait
    }

    /// Whether each chip has an owner. A node of a chip is opened by one process at a time: another can only inherit it.
    fn all_chips_owned(&self) -> bool {
        let owned = self.known.values().flat_map(|known| &known.held).filter_map(|(_, held)| match held {
            HeldDevice::Chip(chip) => Some(*chip),
            HeldDevice::Unlisted(_) => None,
        });
        let owned: BTreeSet<ChipIndex> = owned.collect();
        self.chips.iter().all(|chip| owned.contains(&chip.index))
    }

    /// Looks for signs of a new owner between two scans: only on a host with chips. Young processes are left out while
    /// no chip is free for them: a program that starts many would pay for it, and a fork is found by the next scan.
    fn look_for_new_owners(&mut self, proc: &mut Procfs, now: Timestamp) -> io::Result<()> {
        if self.chips.is_empty() {
            return Ok(());
        }
        self.early.node_used |= self.watch.was_used();
        if self.all_chips_owned() {
            return Ok(());
        }
        self.young.look(proc, now)?;
        self.early.young_holds |= self.young.any_holds(proc, &self.nodes, &mut self.scanner);
        Ok(())
    }

    /// Checks the known owners: same process, same program, its chips still open, stopped or not as before.
    fn check_owners(&mut self, proc: &Procfs) -> OwnerCheck {
        let (reader, nodes) = (&mut self.reader, &self.nodes);
        let holds = |pid: u32, (descriptor, held): &(u32, HeldDevice)| {
            let target = proc.link(&pid.to_string(), &format!("fd/{descriptor}"));
            target.is_ok_and(|target| nodes.held(&target).as_ref() == Some(held))
        };
        let mut check = OwnerCheck::default();
        for (pid, known) in &self.known {
            match reader.unchanged(proc, *pid, known.details.stat) {
                Some(stat) if known.held.iter().all(|one| holds(*pid, one)) => {
                    check.other_state |= stat.stopped != known.details.stat.stopped;
                }
                _ => check.gone.push(*pid),
            }
        }
        check
    }

    fn unreadable(&mut self, error: &io::Error) -> Arc<Workloads> {
        self.full = false;
        self.last_scan = None;
        self.known.clear();
        let at = self.paths.procfs.display();
        let note = format!(
            "cannot read processes in {at} ({error}): owners are unknown; mount the host's procfs, or set paths.procfs"
        );
        self.publish(Workloads {
            hidden: Some(format!("processes cannot be read in {at}")),
            notes: vec![note],
            ..Workloads::default()
        });
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
        let scan = self.scanner.scan(proc, &self.nodes, sockets)?;
        self.young.scanned(&scan.pids);
        let (hidden, mut notes) = hidden_processes(proc, &scan);
        let (ignored, ignored_chips) = self.update_known(proc, &scan);
        if self.no_owner_expected() {
            // What cannot be seen makes no difference then.
            notes.clear();
        }
        if ignored > 0 {
            notes.push(match ignored {
                1 => "1 owner is ignored: it sets TPUSCOPE_IGNORE=1".to_owned(),
                _ => format!("{ignored} owners are ignored: they set TPUSCOPE_IGNORE=1"),
            });
        }
        if self.known.len() > MAX_OWNERS {
            notes.push(format!("{} owners found, the first {MAX_OWNERS} are listed", self.known.len()));
            while self.known.len() > MAX_OWNERS {
                self.known.pop_last();
            }
        }
        join_forks(&mut self.known);
        let mut plan = self.plan(proc, &scan);
        notes.extend(plan.notes);
        let uptime = self.reader.uptime(proc);
        for (known, OwnerPlan { endpoints, .. }) in self.known.values_mut().zip(&mut plan.owners) {
            let age = uptime.and_then(|uptime| known.details.stat.age(uptime));
            known.profilers.observe(endpoints, age);
        }
        self.sockets = scan.sockets;
        let owners = self.known.iter().zip(plan.owners);
        let our_namespace = port_listeners::our_namespace(proc);
        let mut owners: Vec<Owner> = owners
            .map(|((pid, known), OwnerPlan { endpoints, no_metrics, notes })| Owner {
                endpoints,
                no_metrics,
                shares_our_network: our_namespace.is_some()
                    && known.details.network_namespace == our_namespace,
                ..known.owner(*pid, forked_from(&self.known, known), notes)
            })
            .collect();
        let is_fork =
            |pid| self.known.get(&pid).is_some_and(|known| forked_from(&self.known, known).is_some());
        mark_shared_chips(&mut owners, is_fork);
        Ok(Workloads { owners, endpoints: plan.shared, hidden, ignored: ignored_chips, notes })
    }

    /// Updates what is known from a scan. Returns how many owners are ignored because they asked for it, and their chips.
    fn update_known(&mut self, proc: &Procfs, scan: &ProcessScan) -> (usize, Vec<ChipIndex>) {
        let mut before = std::mem::take(&mut self.known);
        let (mut ignored, mut ignored_chips) = (0, BTreeSet::new());
        for pid in &scan.pids {
            let held = scan.owners.get(pid);
            if held.is_none() && !(self.settings.discover == Discover::Any && self.has_mapped(proc, *pid)) {
                continue;
            }
            let old = before.remove(pid);
            let same = old.and_then(|old| Some((self.reader.unchanged(proc, *pid, old.details.stat)?, old)));
            let known = match same {
                Some((stat, mut old)) => {
                    self.reader.refresh(proc, stat, *pid, held.is_some(), &mut old.details);
                    Some((old.details, old.profilers, old.life))
                }
                None => self.read_new(proc, *pid, held.is_some()),
            };
            let Some((details, profilers, life)) = known else { continue };
            if environment::ignored(&details.environment) {
                ignored += 1;
                ignored_chips.extend(held.into_iter().flatten().filter_map(|(_, held)| match held {
                    HeldDevice::Chip(chip) => Some(*chip),
                    HeldDevice::Unlisted(_) => None,
                }));
                continue;
            }
            let held = held.cloned().unwrap_or_default();
            self.known.insert(*pid, KnownOwner { details, held, profilers, life });
        }
        if self.settings.discover == Discover::Any {
            self.mapped_checks.retain(|pid, _| scan.pids.binary_search(pid).is_ok());
        }
        (ignored, ignored_chips.into_iter().collect())
    }

    /// Reads an owner that was not known; `None` when it has ended.
    fn read_new(
        &mut self,
        proc: &Procfs,
        pid: u32,
        holds_chip: bool,
    ) -> Option<(ProcessDetails, ProfilerHistory, ProcessLife)> {
        // Followed first: the process that is read then is the one that is followed, or that one has ended.
        let life = ProcessLife::follow(proc, pid);
        let details = self.reader.read(proc, pid, holds_chip)?;
        Some((details, ProfilerHistory::default(), life))
    }

    /// Whether a process has jaxlib, torch_xla or libtpu mapped. Its map is read only when its address space has
    /// changed since the last read. The agent's own child that loads libtpu is not a workload.
    fn has_mapped(&mut self, proc: &Procfs, pid: u32) -> bool {
        let Some(stat) = self.reader.stat(proc, pid) else { return false };
        if let Some(MappedCheck { stat: before, mapped }) = self.mapped_checks.get(&pid) {
            // A mapped library stays mapped until the process calls exec.
            if *before == stat || (*mapped && before.same_program(stat)) {
                return *mapped;
            }
        }
        let program = |process: &str| proc.link(process, "exe").ok();
        let ours = || program("self").is_some_and(|own| program(&pid.to_string()) == Some(own));
        let mapped = proc.file(&pid.to_string(), "maps").and_then(libraries::mapped);
        let mapped = mapped.is_ok_and(|mapped| mapped.any()) && !ours();
        self.mapped_checks.insert(pid, MappedCheck { stat, mapped });
        mapped
    }

    /// Decides on endpoints; probes listeners where the settings allow it.
    fn plan(&mut self, proc: &Procfs, scan: &ProcessScan) -> EndpointPlan {
        let reader = &mut self.reader;
        let owners: Vec<OwnerInputs<'_>> = self
            .known
            .iter()
            .map(|(pid, known)| OwnerInputs {
                process: known.key(*pid),
                uid: known.details.ids.uid,
                holds_chips: !known.held.is_empty() && forked_from(&self.known, known).is_none(),
                environment: &known.details.environment,
                namespace: known.details.network_namespace,
                metrics_socket: reader.unix_socket(&known.details),
            })
            .collect();
        let chips = !self.chips.is_empty();
        if owners.is_empty() && !chips && self.settings.endpoints.is_empty() {
            return EndpointPlan::default();
        }
        let network = port_listeners::read(proc, reader, &owners, &self.settings.endpoints, &scan.sockets);
        let inputs = |profilers| EndpointInputs {
            owners: &owners,
            listeners: &network.listeners,
            our_namespace: network.our_namespace,
            local_addresses: &network.local_addresses,
            configured: &self.settings.endpoints,
            probe: self.settings.probe == Probe::Listeners,
            profilers,
            chips,
        };
        let known = self.probe.profilers().clone();
        let plan = endpoints::plan(&inputs(&known));
        self.probe.keep(&network.listeners.iter().map(|listener| listener.inode).collect());
        if !self.probe.probe(&plan.candidates) {
            return plan;
        }
        let known = self.probe.profilers().clone();
        endpoints::plan(&inputs(&known))
    }
}

#[cfg(test)]
mod tests;
