//! Which parts of a session are of one job, before anything is averaged over them.
//!
//! Parts whose job is known are separated by it. The others belong together unless the traces show otherwise: other
//! programs, or step numbers that cannot be those of one job at one time. Run ids prove nothing, they are counted per
//! core. Must never part what could be one job: a wrong average is seen, a job in two halves is not.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{HostTrace, MissingPart, Report, Rules};

/// Step numbers of one job in one window lie no further apart than this many times the steps of the window.
const NEAR: i64 = 2;
/// How JAX annotates the call of a compiled function, with its name behind.
const CALL: &str = "PjitFunction(";

/// The figures of one job of a session that holds several.
#[derive(Debug, Serialize)]
pub struct JobReport {
    /// What names the job, where that is known.
    pub job: Option<String>,
    /// What tells its parts from the others.
    pub told_by: String,
    /// Its parts alone.
    pub report: Report,
}

/// One part, and what names its job where its writer knew it.
#[derive(Debug)]
pub struct JobPart {
    /// The part.
    pub trace: HostTrace,
    /// The job.
    pub job: Option<String>,
}

/// Brings the parts of a session together, job by job where they are of several.
pub fn by_job(
    name: String,
    parts: Vec<JobPart>,
    missing: Vec<MissingPart>,
    rules: Rules,
    top: Option<usize>,
) -> Report {
    // XProf knows no jobs.
    let groups = if rules == Rules::True { group(&parts) } else { vec![0; parts.len()] };
    let count = groups.iter().max().map_or(0, |&last| last + 1);
    if count <= 1 {
        let hosts = parts.into_iter().map(|part| part.trace).collect();
        return super::session(name, hosts, missing, rules, top);
    }
    let mut jobs: Vec<Vec<JobPart>> = (0..count).map(|_| Vec::new()).collect();
    for (part, group) in parts.into_iter().zip(groups) {
        jobs[group].push(part);
    }
    let labels: Vec<String> = jobs.iter().map(|parts| told_by(parts)).collect();
    let mut whole = super::session(name.clone(), Vec::new(), missing, rules, top);
    whole.warnings.push(format!(
        "the parts are of {count} jobs ({}): nothing is averaged or compared across them",
        labels.join("; ")
    ));
    let reports = jobs.into_iter().zip(labels).map(|(parts, told_by)| {
        let job = parts.iter().find_map(|part| part.job.clone());
        let hosts = parts.into_iter().map(|part| part.trace).collect();
        JobReport { job, told_by, report: super::session(name.clone(), hosts, Vec::new(), rules, top) }
    });
    whole.jobs = reports.collect();
    whole
}

/// The group of each part, numbered from 0 by first appearance.
fn group(parts: &[JobPart]) -> Vec<usize> {
    let shown: Vec<Shown> = parts.iter().map(|part| Shown::of(&part.trace)).collect();
    let mut groups: Vec<usize> = Vec::new();
    let mut count = 0;
    for (at, part) in parts.iter().enumerate() {
        // Of all earlier parts that it may be of one job with, the groups become one.
        let same: BTreeSet<usize> = (0..at)
            .filter(|&other| match (&part.job, &parts[other].job) {
                (Some(job), Some(other)) => job == other,
                _ => shown[at].may_be_one_job(&shown[other]),
            })
            .map(|other| groups[other])
            .collect();
        let own = same.first().copied().unwrap_or_else(|| {
            count += 1;
            count - 1
        });
        groups.iter_mut().filter(|group| same.contains(group)).for_each(|group| *group = own);
        groups.push(own);
    }
    let order: BTreeSet<usize> = groups.iter().copied().collect();
    let order: Vec<usize> = order.into_iter().collect();
    groups.iter().map(|group| order.binary_search(group).unwrap_or_default()).collect()
}

/// What a part shows of its job.
#[derive(Debug)]
struct Shown {
    /// The programs by name, and the one with most time.
    programs: BTreeSet<String>,
    main: Option<String>,
    /// The first and the last step number.
    steps: Option<(i64, i64)>,
    /// The session in nanoseconds since the epoch.
    window: Option<(i64, i64)>,
}

impl Shown {
    fn of(trace: &HostTrace) -> Self {
        let modules = trace.cores.iter().flat_map(|core| &core.modules);
        let modules = modules.map(|module| (module.name.as_str(), module.duration_ps));
        // A host without cores tells the programs that it called by name.
        let calls = trace.annotations.rows.iter().filter(|row| row.name.starts_with(CALL));
        let calls = calls.filter(|_| trace.cores.is_empty()).map(|row| (row.name.as_str(), row.time_ps));
        let mut times = BTreeMap::<&str, i64>::new();
        for (name, spent) in modules.chain(calls) {
            let time = times.entry(name).or_default();
            *time = time.saturating_add(spent);
        }
        let numbers = || trace.host_steps.iter().filter_map(|step| step.step_num);
        Self {
            main: times.iter().max_by_key(|&(_, time)| time).map(|(&name, _)| name.to_owned()),
            programs: times.into_keys().map(str::to_owned).collect(),
            steps: numbers().min().zip(numbers().max()),
            window: trace.profile_start_ns.map(|start| (start, start.saturating_add(trace.window_ps / 1000))),
        }
    }

    fn may_be_one_job(&self, other: &Self) -> bool {
        self.shares_programs(other) && !self.steps_are_unrelated(other)
    }

    fn shares_programs(&self, other: &Self) -> bool {
        match (&self.main, &other.main) {
            (Some(main), Some(others)) => other.programs.contains(main) || self.programs.contains(others),
            _ => true,
        }
    }

    /// Numbers that are far apart although both counted at the same time.
    fn steps_are_unrelated(&self, other: &Self) -> bool {
        let (Some(a), Some(b)) = (self.steps, other.steps) else { return false };
        let (Some(when), Some(others)) = (self.window, other.window) else { return false };
        let at_once = when.0 <= others.1 && others.0 <= when.1;
        let gap = b.0.saturating_sub(a.1).max(a.0.saturating_sub(b.1));
        let length = |(first, last): (i64, i64)| last.saturating_sub(first).saturating_add(1);
        at_once && gap > length(a).max(length(b)).saturating_mul(NEAR).saturating_add(NEAR)
    }
}

/// What tells the parts of one group from others, in words.
fn told_by(parts: &[JobPart]) -> String {
    if let Some(job) = parts.iter().find_map(|part| part.job.as_ref()) {
        return format!("job {job}");
    }
    let shown: Vec<Shown> = parts.iter().map(|part| Shown::of(&part.trace)).collect();
    let program = shown.iter().find_map(|shown| shown.main.as_ref()).map(|name| format!("program {name}"));
    let first = shown.iter().filter_map(|shown| shown.steps).map(|steps| steps.0).min();
    let last = shown.iter().filter_map(|shown| shown.steps).map(|steps| steps.1).max();
    let steps = first.zip(last).map(|(first, last)| format!("steps {first} to {last}"));
    let said: Vec<String> = program.into_iter().chain(steps).collect();
    match said.is_empty() {
        true => parts.iter().map(|part| part.trace.file.as_str()).collect::<Vec<_>>().join(", "),
        false => said.join(", "),
    }
}
