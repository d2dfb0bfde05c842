//! The core or host that the others wait for.
//!
//! In a step that all cores end together every core takes the same time; the one that the others wait for
//! shows only in that it waits least itself: its own work (everything but collectives) is longest, its
//! collectives are shortest. Both must hold, over most steps, or there is no straggler.

use std::collections::HashMap;

use serde::Serialize;

use super::{
    align::{Aligned, StepRef},
    category::Class,
    core::{ClassTimes, of_class, worked},
    host_trace::HostTrace,
    summary::{mean, median},
    warnings::ms,
};
use crate::wording::counted;

/// What is less than this part of a step is jitter.
const LEAST_SHARE: f64 = 0.03;
/// Without collectives there is no proof that anyone waits: more is asked for.
const LEAST_SHARE_ALONE: f64 = 0.10;
/// The part of the steps that must show it.
const MOST_STEPS: f64 = 0.75;

/// The slowest core, or the host whose cores are all slow.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Straggler {
    /// The host.
    pub host: String,
    /// The part's file name: a host may have several.
    pub file: String,
    /// The core; none where all cores of the host are slow.
    pub plane: Option<String>,
    /// How much longer its own work takes per step than the others', in the mean.
    pub excess_ps: i64,
    /// That in parts of the mean step time.
    pub share: f64,
    /// What shows it, in words.
    pub evidence: String,
}

/// One core in one step.
#[derive(Debug, Clone, Copy)]
struct Sample {
    own: i64,
    wait: i64,
    compute: i64,
}

/// One core against the others.
#[derive(Debug, Default, Clone)]
struct Account {
    own_excess: Vec<i64>,
    compute_excess: Vec<i64>,
    waits: Vec<i64>,
    others_waits: Vec<i64>,
}

impl Account {
    fn part_slower(&self) -> f64 {
        let slower = self.own_excess.iter().filter(|&&excess| excess > 0).count();
        slower as f64 / self.own_excess.len().max(1) as f64
    }
}

/// Finds the straggler, if there is one.
pub(super) fn find(hosts: &[HostTrace], aligned: &Aligned) -> Option<Straggler> {
    let cores: Vec<(usize, usize)> =
        super::stepping::stepping_cores(hosts).map(|(host, at, _)| (host, at)).collect();
    let places: HashMap<(usize, usize), usize> =
        cores.iter().enumerate().map(|(place, &core)| (core, place)).collect();
    let mut accounts = vec![Account::default(); cores.len()];
    let mut step_times = Vec::new();
    for steps in aligned.steps.iter().filter(|steps| steps.len() > 1) {
        let samples: Vec<(usize, Sample)> = steps
            .iter()
            .filter_map(|step| Some((*places.get(&(step.host, step.core))?, sample(hosts, step)?)))
            .collect();
        step_times.extend(steps.iter().filter_map(|step| duration(hosts, step)).max());
        compare(&samples, &mut accounts);
    }
    judge(hosts, &cores, &accounts, mean(&step_times))
}

fn duration(hosts: &[HostTrace], step: &StepRef) -> Option<i64> {
    Some(hosts.get(step.host)?.cores.get(step.core)?.steps.get(step.step)?.duration_ps)
}

fn sample(hosts: &[HostTrace], step: &StepRef) -> Option<Sample> {
    let times: &ClassTimes = hosts.get(step.host)?.cores.get(step.core)?.step_times.get(step.step)?;
    let wait = of_class(times, Class::Collective);
    let own = duration(hosts, step)?.max(worked(times)).saturating_sub(wait);
    Some(Sample { own, wait, compute: of_class(times, Class::Compute) })
}

/// Each core of one step against the median of the others.
fn compare(samples: &[(usize, Sample)], accounts: &mut [Account]) {
    let own = Others::of(samples, |sample| sample.own);
    let compute = Others::of(samples, |sample| sample.compute);
    let wait = Others::of(samples, |sample| sample.wait);
    for (at, sample) in samples {
        let account = &mut accounts[*at];
        account.own_excess.push(sample.own.saturating_sub(own.median_without(sample.own)));
        account.compute_excess.push(sample.compute.saturating_sub(compute.median_without(sample.compute)));
        account.waits.push(sample.wait);
        account.others_waits.push(wait.median_without(sample.wait));
    }
}

/// The values of all cores, sorted, so that a median without one of them costs little: jobs have thousands.
struct Others(Vec<i64>);

impl Others {
    fn of(samples: &[(usize, Sample)], value: fn(&Sample) -> i64) -> Self {
        let mut values: Vec<i64> = samples.iter().map(|(_, sample)| value(sample)).collect();
        values.sort_unstable();
        Self(values)
    }

    /// The median of all values but one that equals `value`.
    fn median_without(&self, value: i64) -> i64 {
        let left_out = self.0.partition_point(|&other| other < value);
        let at = |place: usize| self.0.get(if place < left_out { place } else { place + 1 }).copied();
        let (half, odd) = ((self.0.len() - 1) / 2, (self.0.len() - 1) % 2 == 1);
        match at(half) {
            None => 0,
            Some(middle) if odd => middle,
            Some(middle) => median(vec![middle, at(half.wrapping_sub(1)).unwrap_or(middle)]),
        }
    }
}

fn judge(
    hosts: &[HostTrace],
    cores: &[(usize, usize)],
    accounts: &[Account],
    step_time: i64,
) -> Option<Straggler> {
    let slow: Vec<usize> = (0..accounts.len()).filter(|&at| is_slow(&accounts[at], step_time)).collect();
    let &worst = slow.iter().max_by_key(|&&at| mean(&accounts[at].own_excess))?;
    let (host, core) = cores[worst];
    let of_host: Vec<usize> = (0..cores.len()).filter(|&at| cores[at].0 == host).collect();
    let has_other_hosts = cores.iter().any(|&(other, _)| other != host);
    let whole_host = has_other_hosts && of_host.iter().all(|at| slow.contains(at));
    let members = if whole_host { of_host } else { vec![worst] };
    let of = |of: fn(&Account) -> &Vec<i64>| {
        mean(&members.iter().map(|&at| mean(of(&accounts[at]))).collect::<Vec<_>>())
    };
    let excess_ps = of(|account| &account.own_excess);
    let share = excess_ps as f64 / step_time as f64;
    let plane = (!whole_host).then(|| hosts[host].cores[core].plane.clone());
    let steps = accounts[worst].own_excess.len();
    let evidence = evidence(
        of(|account| &account.waits),
        of(|account| &account.others_waits),
        of(|account| &account.compute_excess),
        excess_ps,
        steps,
    );
    let (host, file) = (hosts[host].host.clone(), hosts[host].file.clone());
    Some(Straggler { host, file, plane, excess_ps, share, evidence })
}

fn is_slow(account: &Account, step_time: i64) -> bool {
    let excess = mean(&account.own_excess);
    let (wait, others) = (mean(&account.waits), mean(&account.others_waits));
    let share = excess as f64 / step_time.max(1) as f64;
    let enough = account.part_slower() >= MOST_STEPS;
    if wait == 0 && others == 0 {
        // Nothing is waited for, so only the device's own computing can tell.
        let compute = mean(&account.compute_excess) as f64 / step_time.max(1) as f64;
        return enough && share >= LEAST_SHARE_ALONE && compute >= LEAST_SHARE_ALONE;
    }
    // The others' extra wait must account for a good part of what this core takes longer.
    enough && share >= LEAST_SHARE && others.saturating_sub(wait) >= excess / 4
}

fn evidence(wait: i64, others: i64, compute: i64, excess: i64, steps: usize) -> String {
    let waits = if wait == 0 && others == 0 {
        "there are no collectives to compare".to_owned()
    } else {
        format!("least wait in the collectives, {} a step against {} of the others", ms(wait), ms(others))
    };
    let why = if compute.saturating_mul(2) >= excess {
        format!("its own compute takes {} longer a step", ms(compute))
    } else {
        format!(
            "its own time outside the collectives is {} longer a step, compute {}",
            ms(excess),
            ms(compute)
        )
    };
    format!("{waits}; {why}; over {}", counted(steps, "step"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_the_others() {
        let mut values = vec![5, 1, 9, 3, 3, 8];
        while values.len() > 1 {
            let mut sorted = values.clone();
            sorted.sort_unstable();
            let others = Others(sorted);
            for at in 0..values.len() {
                let mut rest = values.clone();
                let value = rest.remove(at);
                assert_eq!(others.median_without(value), median(rest), "{values:?} without {value}");
            }
            values.pop();
        }
    }
}
