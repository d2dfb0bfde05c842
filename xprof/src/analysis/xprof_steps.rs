//! A host's steps as XProf 2.24 tells them: for comparison, not for judgement.
//!
//! A step is a *group*: the rank of its marker in the file. Without any link between host and device every
//! core numbers its step events by itself. Only groups that all cores have are kept, and all cores are given
//! the begin and duration of the core that took longest.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    core::{CoreLines, places_in},
    device_events::{DeviceEvent, Interval},
    range_min::RangeMin,
    steps::HostSide,
};

/// A step of one core before the cores are brought together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GroupedStep {
    pub(super) group: i64,
    pub(super) line: Interval,
    pub(super) device: Interval,
}

/// The steps of one core, and the hull of all step events that XProf leaves on it.
#[derive(Debug, Clone, Default)]
pub(super) struct GroupedCore {
    pub(super) steps: Vec<GroupedStep>,
    pub(super) line_start: Option<i64>,
    pub(super) device_end: Option<i64>,
}

/// Groups the cores of one host; each comes with its ordinal. `grouped` tells that the file carries groups.
pub(super) fn group(cores: &[(&CoreLines, i64)], host: &HostSide<'_>, grouped: bool) -> Vec<GroupedCore> {
    let found: Vec<Vec<Option<i64>>> =
        cores.iter().map(|&(lines, ordinal)| groups_of(lines, ordinal, host, grouped)).collect();
    let linked = found.iter().flatten().any(Option::is_some);
    let next_free = host.groups.markers.len() as i64;
    let cores = cores.iter().zip(found).map(|(&(lines, _), mut groups)| {
        if !linked {
            groups = (next_free..).map(Some).take(groups.len()).collect();
        }
        // Without a step line XProf groups programs, but has no steps.
        let events = if lines.steps.is_empty() { &[][..] } else { &lines.steps[..] };
        merge(events, &groups, grouped)
    });
    cores.collect()
}

fn groups_of(lines: &CoreLines, ordinal: i64, host: &HostSide<'_>, grouped: bool) -> Vec<Option<i64>> {
    if grouped {
        let events = if lines.steps.is_empty() { &lines.modules } else { &lines.steps };
        return events.iter().map(|event| event.group_id).collect();
    }
    let group = |module| host.group(ordinal, module, u64::MAX).map(i64::from);
    let of_modules: Vec<Option<i64>> = lines.modules.iter().map(group).collect();
    if lines.steps.is_empty() {
        return of_modules;
    }
    let least = RangeMin::of(&of_modules);
    lines.steps.iter().map(|step| least.least(places_in(&lines.modules, step.at))).collect()
}

/// Leaves out events without a group and joins consecutive ones of one group. A file that carries groups is
/// taken as it is.
fn merge(events: &[DeviceEvent], groups: &[Option<i64>], grouped: bool) -> GroupedCore {
    let mut core = GroupedCore::default();
    for (event, group) in events.iter().zip(groups) {
        let device = event.device.unwrap_or(event.at);
        if group.is_some() || grouped {
            core.line_start = Some(core.line_start.map_or(event.at.start, |s| s.min(event.at.start)));
            core.device_end = Some(core.device_end.map_or(device.end, |end| end.max(device.end)));
        }
        let Some(group) = *group else { continue };
        match core.steps.last_mut().filter(|last| last.group == group) {
            Some(last) => {
                last.line = last.line.hull(event.at);
                last.device = last.device.hull(device);
            }
            None => core.steps.push(GroupedStep { group, line: event.at, device }),
        }
    }
    core
}

/// The steps that XProf shows for a host: per group the begin and duration that all its cores are given.
pub(super) fn host_wide(cores: &[GroupedCore]) -> BTreeMap<i64, Interval> {
    let mut common: Option<BTreeSet<i64>> = None;
    let mut longest: BTreeMap<i64, Interval> = BTreeMap::new();
    for core in cores.iter().filter(|core| !core.steps.is_empty()) {
        let groups: BTreeSet<i64> = core.steps.iter().map(|step| step.group).collect();
        common = Some(common.map_or_else(|| groups.clone(), |common| &common & &groups));
        for step in &core.steps {
            let known = longest.entry(step.group).or_insert(step.device);
            if step.device.len() > known.len() {
                *known = step.device;
            }
        }
    }
    let common = common.unwrap_or_default();
    longest.retain(|group, _| common.contains(group));
    longest
}

/// For each host, which of its steps XProf pairs with the others': an index and a count of steps.
///
/// The chief is the host with the shortest covered time; every other host is moved against it by the number
/// of steps that gives the largest overlap of times, taken as they are.
pub(super) fn pair_hosts(hosts: &[Vec<Interval>]) -> Option<(Vec<usize>, usize)> {
    let covered = |steps: &Vec<Interval>| Some(steps.last()?.end.saturating_sub(steps.first()?.start));
    let chief = (0..hosts.len()).filter(|&at| !hosts[at].is_empty()).min_by_key(|&at| covered(&hosts[at]))?;
    let shifts: Vec<i64> = hosts.iter().map(|host| best_shift(&hosts[chief], host)).collect();
    // In the chief's indices: the steps that every host has.
    let from = shifts.iter().map(|&shift| -shift).max()?.max(0);
    let to = hosts.iter().zip(&shifts).map(|(host, shift)| host.len() as i64 - shift).min()?;
    let count = usize::try_from(to - from).ok().filter(|&count| count > 0)?;
    Some((shifts.iter().map(|shift| (from + shift) as usize).collect(), count))
}

/// How far apart two hosts' steps are looked for: the search is quadratic.
const FURTHEST: i64 = 2048;

/// How far `host`'s indices lie ahead of `chief`'s. They stay as they are unless another shift is better.
fn best_shift(chief: &[Interval], host: &[Interval]) -> i64 {
    let (chief_len, host_len) = (chief.len() as i64, host.len() as i64);
    let mut best = (0, overlap(chief, host, 0));
    for shift in (1 - chief_len).max(-FURTHEST)..host_len.min(FURTHEST) {
        let overlap = overlap(chief, host, shift);
        if overlap > best.1 {
            best = (shift, overlap);
        }
    }
    best.0
}

/// How long the steps run at the same time if `host`'s are moved by `shift`.
fn overlap(chief: &[Interval], host: &[Interval], shift: i64) -> i64 {
    let (chief_len, host_len) = (chief.len() as i64, host.len() as i64);
    let mut overlap = 0i64;
    for at in (-shift).max(0)..chief_len.min(host_len - shift) {
        let (a, b) = (chief[at as usize], host[(at + shift) as usize]);
        let common = a.end.min(b.end).saturating_sub(a.start.max(b.start));
        overlap = overlap.saturating_add(common.max(0));
    }
    overlap
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(starts: &[i64]) -> Vec<Interval> {
        starts.iter().map(|&start| Interval::new(start, 10)).collect()
    }

    #[test]
    fn hosts_are_paired_by_overlap() {
        let paired = pair_hosts(&[steps(&[0, 10, 20, 30]), steps(&[11, 21, 31])]);
        assert_eq!(paired, Some((vec![1, 0], 3)));
        // Later by more than half a step: the wrong partner.
        let paired = pair_hosts(&[steps(&[0, 10, 20, 30]), steps(&[3, 13, 23])]);
        assert_eq!(paired, Some((vec![0, 0], 3)));
        assert_eq!(pair_hosts(&[steps(&[0, 10])]), Some((vec![0], 2)));
        assert_eq!(pair_hosts(&[Vec::new()]), None);
        // None at the same time: by index.
        let paired = pair_hosts(&[steps(&[0, 10, 20]), steps(&[1000, 1010, 1020])]);
        assert_eq!(paired, Some((vec![0, 0], 3)));
    }
}
