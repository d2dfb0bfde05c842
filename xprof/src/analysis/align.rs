//! Which step of one core is the same as which of another, and how the hosts' time lines lie to each other.
//!
//! By the step's number, else by its run id, else by the collectives that its cores took part in together.
//! Never by counting: a host whose trace begins later would be compared with the wrong steps.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use super::{by_collectives, summary::median, trace::Core, trace::HostTrace};

/// What tells that two steps are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AlignedBy {
    /// The number that the host's step marker has.
    StepNum,
    /// The run id of the step's first program.
    RunId,
    /// The ids of collectives.
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
    /// The wall clocks are believed.
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
    /// How far its wall clock runs ahead of the first host's, where both are known.
    pub clock_skew_ps: Option<i64>,
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

/// The TensorCores that have steps, with their host's index and their own.
pub(super) fn stepping_cores(hosts: &[HostTrace]) -> impl Iterator<Item = Stepping<'_>> {
    hosts.iter().enumerate().flat_map(|(host, trace)| {
        let cores = trace.cores.iter().enumerate();
        cores
            .filter(|(_, core)| !core.sparse && !core.steps.is_empty())
            .map(move |(at, core)| (host, at, core))
    })
}

/// Brings the steps of all cores together.
pub(super) fn align(hosts: &[HostTrace]) -> Aligned {
    let cores: Vec<_> = stepping_cores(hosts).collect();
    let ways: [(AlignedBy, KeysOf); 3] = [
        (AlignedBy::StepNum, |cores| keys(cores, |core, at| core.steps[at].step_num)),
        (AlignedBy::RunId, |cores| keys(cores, |core, at| core.steps[at].run_id.map(|run| run as i64))),
        (AlignedBy::Collectives, by_collectives::keys),
    ];
    for (by, keys_of) in ways {
        if let Some(keys) = keys_of(&cores).filter(|keys| is_common(keys)) {
            return Aligned { by, steps: gather(&cores, &keys) };
        }
    }
    let none = |&(_, _, core): &Stepping<'_>| vec![None; core.steps.len()];
    let keys: Vec<Keys> = cores.iter().map(none).collect();
    Aligned { by: AlignedBy::None, steps: gather(&cores, &keys) }
}

/// A core with steps: its host, its place there, and itself.
pub(super) type Stepping<'a> = (usize, usize, &'a Core);

/// Per step of a core what it is known by; steps of one key are the same.
pub(super) type Keys = Vec<Option<i64>>;

type KeysOf = fn(&[Stepping<'_>]) -> Option<Vec<Keys>>;

#[expect(clippy::unnecessary_wraps, reason = "one of several ways, of which others can fail")]
fn keys(cores: &[Stepping<'_>], key: fn(&Core, usize) -> Option<i64>) -> Option<Vec<Keys>> {
    let of_core = |&(_, _, core): &Stepping<'_>| (0..core.steps.len()).map(|at| key(core, at)).collect();
    Some(cores.iter().map(of_core).collect())
}

/// Whether each core has keys, no key twice, and shares one with the first.
fn is_common(keys: &[Keys]) -> bool {
    let Some(first) = keys.first() else { return false };
    let first: HashSet<i64> = first.iter().flatten().copied().collect();
    keys.iter().all(|keys| {
        let known: Vec<i64> = keys.iter().flatten().copied().collect();
        let distinct: HashSet<i64> = known.iter().copied().collect();
        distinct.len() == known.len() && !distinct.is_disjoint(&first)
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
        let (offset_ps, by) = if at == 0 {
            (0, OffsetBy::Reference)
        } else if let Some(ps) = reference.gap_to(&Ends::of(host, at, aligned)) {
            (ps, OffsetBy::Collectives)
        } else if let Some(ps) = gap_of_steps(hosts, at, aligned) {
            (ps, OffsetBy::Steps)
        } else {
            started_ps.map_or((0, OffsetBy::None), |ps| (ps, OffsetBy::ProfileStart))
        };
        let measured = matches!(by, OffsetBy::Reference | OffsetBy::Collectives | OffsetBy::Steps);
        let clock_skew_ps = started_ps.filter(|_| measured).map(|ps| ps.saturating_sub(offset_ps));
        Offset { host: host.host.clone(), offset_ps, by, clock_skew_ps }
    };
    hosts.iter().enumerate().map(offset).collect()
}

/// When the collectives of each aligned step ended on a host, in order: the last of its cores each.
///
/// In order, not by id: ids count from the beginning of each host's own trace.
struct Ends(HashMap<usize, Vec<i64>>);

impl Ends {
    fn of(host: &HostTrace, at: usize, aligned: &Aligned) -> Self {
        let mut by_step: HashMap<(usize, usize), Vec<i64>> = HashMap::new();
        for (core_at, core) in host.cores.iter().enumerate() {
            for run in &core.collectives {
                let Some(step) = run.step else { continue };
                by_step.entry((core_at, step as usize)).or_default().push(run.end_ps);
            }
        }
        let mut ends: HashMap<usize, Vec<i64>> = HashMap::new();
        for (group, steps) in aligned.steps.iter().enumerate() {
            let of_host = steps.iter().filter(|step| step.host == at);
            let cores = of_host.filter_map(|step| by_step.get(&(step.core, step.step)));
            let last = cores.cloned().reduce(|mut last, core| {
                last.truncate(core.len());
                last.iter_mut().zip(core).for_each(|(last, end)| *last = end.max(*last));
                last
            });
            ends.extend(last.map(|last| (group, last)));
        }
        Self(ends)
    }

    /// What to add to a time of `other`.
    fn gap_to(&self, other: &Self) -> Option<i64> {
        let pairs = self.0.iter().filter_map(|(group, ends)| Some((ends, other.0.get(group)?)));
        let same = pairs.filter(|(ends, others)| ends.len() == others.len());
        let gaps: Vec<i64> = same
            .flat_map(|(ends, others)| ends.iter().zip(others))
            .map(|(a, b)| a.saturating_sub(*b))
            .collect();
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
