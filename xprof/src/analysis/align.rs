//! Which step of one core is the same as which of another, and the offsets between the time lines of hosts.
//!
//! By the step's number, else by the run that its first program is part of, else by the collectives that its cores
//! took part in together. Never by counting: a host whose trace begins later would be compared with the wrong steps.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use crate::session::ClockOffset;

use super::{
    by_collectives,
    host_trace::{Core, HostTrace},
    stepping::{Keys, Stepping, stepping_cores},
    summary::median,
};

/// What tells that two steps are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AlignedBy {
    /// The number that the host's step marker has.
    StepNum,
    /// The run that the step's first program is part of.
    Runs,
    /// When collectives ended.
    Collectives,
    /// Nothing: steps are compared with no others.
    None,
}

/// How a host's clock offset was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OffsetBy {
    /// It is the host that the others are measured against.
    Reference,
    /// Collectives end at the same instant on all cores.
    Collectives,
    /// Aligned steps are taken to start together.
    Steps,
    /// The wall clocks are used, corrected by what the coordinator of the capture measured.
    MeasuredClocks,
    /// The wall clocks are used.
    ProfileStart,
    /// There is nothing to go by: 0 is taken.
    None,
}

/// How a host's session time line lies to that of the first host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Offset {
    /// The host.
    pub host: String,
    /// What to add to a time of this host to have it on the first host's time line.
    pub offset_ps: i64,
    /// How it was found.
    pub by: OffsetBy,
    /// How far its wall clock runs ahead of the first host's by the steps or collectives, where both are known.
    pub clock_skew_ps: Option<i64>,
    /// The same as the coordinator of the capture measured it, with the bound of its error.
    pub measured_skew: Option<ClockOffset>,
    /// Whether that bound is at least as large as `clock_skew_ps`: the clocks may have been equal.
    pub skew_within_bound: Option<bool>,
}

/// A step of one core: host, core and step as indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct StepRef {
    pub(super) host: usize,
    pub(super) core: usize,
    pub(super) step: usize,
}

/// The steps of all cores brought together.
#[derive(Debug)]
pub(super) struct Aligned {
    pub(super) by: AlignedBy,
    /// Steps that are the same, in the order of their keys.
    pub(super) steps: Vec<Vec<StepRef>>,
}

/// Brings the steps of all cores together. `runs_are_paired` tells that the programs of all hosts are; within a host
/// they always are.
pub(super) fn align(hosts: &[HostTrace], runs_are_paired: bool) -> Aligned {
    let cores: Vec<_> = stepping_cores(hosts).collect();
    let numbers = keys(&cores, |core, at| core.steps[at].step_num);
    if is_common(&numbers) {
        return Aligned { by: AlignedBy::StepNum, steps: gather(&cores, &numbers) };
    }
    let mut runs = keys(&cores, |core, at| i64::try_from(core.run(at)?).ok());
    runs.iter_mut().for_each(once_each);
    let one_host = hosts.len() == 1 && runs.iter().flatten().any(Option::is_some);
    if one_host || runs_are_paired && is_common(&runs) {
        return Aligned { by: AlignedBy::Runs, steps: gather(&cores, &runs) };
    }
    if let Some(keys) = by_collectives::keys(&cores).filter(|keys| is_common(keys)) {
        return Aligned { by: AlignedBy::Collectives, steps: gather(&cores, &keys) };
    }
    // The cores of one host can still be compared with each other.
    Aligned { by: AlignedBy::None, steps: gather(&cores, &runs) }
}

fn keys(cores: &[Stepping<'_>], key: impl Fn(&Core, usize) -> Option<i64>) -> Vec<Keys> {
    cores.iter().map(|(_, _, core)| (0..core.steps.len()).map(|at| key(core, at)).collect()).collect()
}

/// Steps that overlap may have the same first program: it stands for the first of them only.
fn once_each(keys: &mut Keys) {
    let mut seen = HashSet::new();
    for key in keys {
        *key = key.filter(|&key| seen.insert(key));
    }
}

/// Whether each core has keys, no key twice, and shares one with a core before it.
fn is_common(keys: &[Keys]) -> bool {
    let mut seen: HashSet<i64> = HashSet::new();
    !keys.is_empty()
        && keys.iter().enumerate().all(|(at, keys)| {
            let known: Vec<i64> = keys.iter().flatten().copied().collect();
            let distinct: HashSet<i64> = known.iter().copied().collect();
            let linked = at == 0 && !known.is_empty() || !distinct.is_disjoint(&seen);
            let once = distinct.len() == known.len();
            seen.extend(distinct);
            linked && once
        })
}

fn gather(cores: &[Stepping<'_>], keys: &[Keys]) -> Vec<Vec<StepRef>> {
    let mut by_key: BTreeMap<i64, Vec<StepRef>> = BTreeMap::new();
    let mut alone = Vec::new();
    for (&(host, core, _), keys) in cores.iter().zip(keys) {
        for (step, key) in keys.iter().enumerate() {
            let step = StepRef { host, core, step };
            match key {
                Some(key) => by_key.entry(*key).or_default().push(step),
                None => alone.push(vec![step]),
            }
        }
    }
    by_key.into_values().chain(alone).collect()
}

/// How the hosts' time lines lie to the first one's.
pub(super) fn offsets(hosts: &[HostTrace], aligned: &Aligned) -> Vec<Offset> {
    let Some(first) = hosts.first() else { return Vec::new() };
    let reference = Ends::of(first, 0, aligned);
    let offset = |(at, host): (usize, &HostTrace)| {
        let starts = host.profile_start_ns.zip(first.profile_start_ns);
        let started_ps = starts.and_then(|(own, first)| own.checked_sub(first)?.checked_mul(1000));
        let measured_skew = host.clock.zip(first.clock).filter(|_| at > 0);
        let measured_skew = measured_skew.and_then(|(own, first)| own.ahead_of(&first));
        let (offset_ps, by) = if at == 0 {
            (0, OffsetBy::Reference)
        } else if let Some(ps) = reference.gap_to(&Ends::of(host, at, aligned)) {
            (ps, OffsetBy::Collectives)
        } else if let Some(ps) = gap_of_steps(hosts, at, aligned) {
            (ps, OffsetBy::Steps)
        } else {
            by_wall_clocks(started_ps, measured_skew)
        };
        let told = matches!(by, OffsetBy::Reference | OffsetBy::Collectives | OffsetBy::Steps);
        let clock_skew_ps = started_ps.filter(|_| told).map(|ps| ps.saturating_sub(offset_ps));
        let within = |(skew_ps, measured): (i64, ClockOffset)| {
            measured.bound_ns.saturating_mul(1000) >= skew_ps.unsigned_abs()
        };
        let skew_within_bound = clock_skew_ps.zip(measured_skew).map(within);
        Offset { host: host.host.clone(), offset_ps, by, clock_skew_ps, measured_skew, skew_within_bound }
    };
    hosts.iter().enumerate().map(offset).collect()
}

/// The offset where nothing in the traces tells it: how much later the host began by its own clock, and where the clocks
/// were measured, by one clock.
fn by_wall_clocks(started_ps: Option<i64>, measured_skew: Option<ClockOffset>) -> (i64, OffsetBy) {
    match (started_ps, measured_skew) {
        (None, _) => (0, OffsetBy::None),
        (Some(ps), None) => (ps, OffsetBy::ProfileStart),
        (Some(ps), Some(skew)) => {
            (ps.saturating_sub(skew.offset_ns.saturating_mul(1000)), OffsetBy::MeasuredClocks)
        }
    }
}

/// What tells a collective from others: its step, an index of the aligned ones, its operation, and how often that ran
/// in the step before it.
type CollectiveKey = (usize, u64, u32);

/// When the collectives of a host ended: on the last of its cores each.
struct Ends(HashMap<CollectiveKey, i64>);

impl Ends {
    fn of(host: &HostTrace, at: usize, aligned: &Aligned) -> Self {
        let mut groups: HashMap<(usize, usize), usize> = HashMap::new();
        for (group, steps) in aligned.steps.iter().enumerate() {
            let of_host = steps.iter().filter(|step| step.host == at);
            groups.extend(of_host.map(|step| ((step.core, step.step), group)));
        }
        let mut ends: HashMap<CollectiveKey, i64> = HashMap::new();
        for (core_at, core) in host.cores.iter().enumerate() {
            let mut before: HashMap<(usize, u64), u32> = HashMap::new();
            for run in &core.collectives {
                let group = run.step.and_then(|step| groups.get(&(core_at, step as usize)));
                let Some(&group) = group else { continue };
                let nth = before.entry((group, run.op)).or_default();
                let end = ends.entry((group, run.op, *nth)).or_insert(run.end_ps);
                *end = run.end_ps.max(*end);
                *nth += 1;
            }
        }
        Self(ends)
    }

    /// What to add to a time of `other`.
    fn gap_to(&self, other: &Self) -> Option<i64> {
        let gaps = self.0.iter().filter_map(|(key, end)| Some(end.saturating_sub(*other.0.get(key)?)));
        let gaps: Vec<i64> = gaps.collect();
        (!gaps.is_empty()).then(|| median(gaps))
    }
}

fn gap_of_steps(hosts: &[HostTrace], at: usize, aligned: &Aligned) -> Option<i64> {
    let start = |step: &StepRef| Some(hosts[step.host].cores.get(step.core)?.steps.get(step.step)?.start_ps);
    let earliest =
        |steps: &[StepRef], host| steps.iter().filter(|step| step.host == host).filter_map(start).min();
    let gap = |steps: &Vec<StepRef>| earliest(steps, 0)?.checked_sub(earliest(steps, at)?);
    let gaps: Vec<i64> = aligned.steps.iter().filter_map(gap).collect();
    (!gaps.is_empty()).then(|| median(gaps))
}
