//! The walk with excluded intervals: the library's offline variant, which differs from the other walk in
//! many small ways (no shortcut at step 0, custom events by overlap, no checkpoints, no range check).
//!
//! It reads all entries again; it is not made for frequent queries.

use std::collections::HashMap;

use super::{
    customs::{Customs, KindSums},
    ranges::Ranges,
    walk::WalkTotals,
};
use crate::{
    badput::{Amount, BadputType as B, Buckets},
    entry::{Boundary, JobEvent, LogEntry, StartupPhase},
    time::Micros,
};

/// The excluded intervals: sorted, merged, not empty.
#[derive(Debug, Default)]
pub(super) struct Exclusions(Vec<(f64, f64)>);

impl Exclusions {
    pub(super) fn new(intervals: &[(Micros, Micros)]) -> Self {
        let mut sorted: Vec<_> = intervals.iter().filter(|(start, end)| start < end).copied().collect();
        sorted.sort_unstable();
        let mut merged: Vec<(Micros, Micros)> = Vec::with_capacity(sorted.len());
        for (start, end) in sorted {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        Self(merged.into_iter().map(|(start, end)| (start.seconds(), end.seconds())).collect())
    }

    fn overlap(&self, start: f64, end: f64) -> f64 {
        let first = self.0.partition_point(|(_, e)| *e <= start);
        let touching = self.0[first..].iter().take_while(|(s, _)| *s < end);
        touching.map(|&(s, e)| overlap(start, end, s, e)).sum()
    }
}

fn overlap(start: f64, end: f64, s: f64, e: f64) -> f64 {
    (end.min(e) - start.max(s)).max(0.0)
}

/// The totals of the walk.
#[derive(Debug)]
pub(super) struct Walked {
    pub(super) totals: WalkTotals,
    pub(super) excluded: f64,
    pub(super) disruptions: u64,
    pub(super) step_times: Vec<(i64, f64)>,
}

struct ExclusionWalk<'a> {
    customs: &'a Customs,
    /// The periods of the custom events, by start.
    reaches: Ranges,
    custom_sums: KindSums,
    exclusions: &'a Exclusions,
    productive: f64,
    buckets: Buckets,
    excluded: f64,
    disruptions: u64,
    max_step: i64,
    steps: Vec<(i64, f64)>,
    smallest: i64,
    times: Vec<(i64, f64)>,
    positions: HashMap<i64, usize>,
    job_start: Option<f64>,
    job_end: Option<f64>,
    open: [Option<f64>; 3],
    sums: [f64; 3],
    loads_async: bool,
}

/// Walks all entries read so far.
pub(super) fn walk<'e>(
    entries: impl Iterator<Item = &'e LogEntry>,
    customs: &Customs,
    exclusions: &Exclusions,
) -> Walked {
    let mut state = ExclusionWalk {
        customs,
        reaches: Ranges::default(),
        custom_sums: KindSums::default(),
        exclusions,
        productive: 0.0,
        buckets: Buckets::new(),
        excluded: 0.0,
        disruptions: 0,
        max_step: 0,
        steps: Vec::new(),
        smallest: i64::MAX,
        times: Vec::new(),
        positions: HashMap::new(),
        job_start: None,
        job_end: None,
        open: [None; 3],
        sums: [0.0; 3],
        loads_async: false,
    };
    for custom in customs.by_start() {
        state.reaches.push(custom.start, custom.end);
    }
    let mut seen = std::collections::HashSet::new();
    for entry in entries {
        state.entry(entry, &mut seen);
    }
    state.finish()
}

impl ExclusionWalk<'_> {
    fn entry(&mut self, entry: &LogEntry, seen: &mut std::collections::HashSet<i64>) {
        let mut phase_done = false;
        // Here a job end is read before a step.
        for event in entry.events.as_slice() {
            if let JobEvent::JobEnd(at) = event {
                self.job_end = Some(*at);
            }
        }
        for event in entry.events.as_slice() {
            match event {
                JobEvent::JobStart(at) => self.job_start = Some(*at),
                JobEvent::Step { step, start } => {
                    if seen.contains(step) {
                        self.disruption(*step);
                        seen.clear();
                    }
                    seen.insert(*step);
                    self.smallest = self.smallest.min(*step);
                    self.steps.push((*step, *start));
                }
                JobEvent::Phase(phase, boundary, at) if !phase_done => {
                    phase_done = self.phase(*phase, *boundary, *at);
                }
                _ => {}
            }
        }
    }

    /// A difference without the excluded time, which is added to the sum of excluded time.
    fn adjusted(&mut self, start: f64, end: f64) -> f64 {
        let excluded = self.exclusions.overlap(start, end);
        self.excluded += excluded;
        (end - start - excluded).max(0.0)
    }

    fn phase(&mut self, phase: StartupPhase, boundary: Boundary, at: f64) -> bool {
        let slot = phase as usize;
        if boundary == Boundary::Start {
            self.open[slot] = Some(at);
            return true;
        }
        // A start at exactly 0 counts as none.
        let Some(start) = self.open[slot].filter(|start| *start != 0.0) else { return false };
        self.open[slot] = None;
        let seconds = self.adjusted(start, at);
        self.sums[slot] += seconds;
        if phase == StartupPhase::DataLoading && !self.loads_async {
            self.buckets.add(B::DataLoadingSync, seconds);
            self.loads_async = true;
        }
        true
    }

    fn disruption(&mut self, step: i64) {
        self.disruptions += 1;
        let last = self.steps.last().map_or(0.0, |(_, start)| *start);
        self.segment(step);
        let job_start = self.job_start.filter(|at| *at != 0.0 && last != 0.0 && *at > last);
        if let Some(job_start) = job_start {
            let seconds = self.adjusted(last, job_start);
            self.buckets.add(B::InfrastructureRecovery, seconds);
        }
        self.steps.clear();
        self.smallest = i64::MAX;
        self.loads_async = false;
    }

    /// Adds up the steps since the last disruption, closed at step `limit`.
    #[expect(clippy::cast_precision_loss, reason = "a count of steps")]
    fn segment(&mut self, limit: i64) {
        let steps = std::mem::take(&mut self.steps);
        let (mut total, mut first, mut wasted, mut pairs, mut max_step) = (0.0, 0.0, 0.0, 0_u64, 0);
        let mut customs = KindSums::default();
        let mut times: Vec<(i64, f64)> = Vec::new();
        for pair in steps.windows(2) {
            let [(a, from), (b, to)] = [pair[0], pair[1]];
            let excluded = self.exclusions.overlap(from, to);
            self.excluded += excluded;
            if b > limit {
                wasted += (to - from - excluded).max(0.0);
            } else if a.checked_add(1) == Some(b) {
                let custom = self.customs_in(from, to, &mut customs);
                let seconds = (to - from - custom - excluded).max(0.0);
                total += seconds;
                times.push((a, seconds));
                if a == self.smallest {
                    first = seconds;
                }
                pairs += 1;
                max_step = a;
            }
        }
        if pairs == 0 {
            self.buckets.add(B::WastedProgress, wasted);
            return;
        }
        let rest: f64 =
            times.iter().filter(|(step, _)| *step != self.smallest).map(|(_, seconds)| seconds).sum();
        let average = if pairs > 1 { rest / (pairs - 1) as f64 } else { first };
        let startup = (first - average).max(0.0);
        self.productive += total - startup;
        self.max_step = self.max_step.max(max_step);
        self.buckets.add(B::ProgramStartup, startup);
        self.buckets.add(B::WastedProgress, wasted);
        self.buckets.create_custom();
        self.count_customs(&customs);
        for (step, seconds) in times {
            self.record(step, if step == self.smallest { first.min(average) } else { seconds });
        }
    }

    /// Custom seconds within a pair, which are added to `sums` by type.
    fn customs_in(&self, from: f64, to: f64, sums: &mut KindSums) -> f64 {
        let mut all = 0.0;
        for custom in &self.customs.by_start()[self.reaches.overlapping(to, from)] {
            let seconds = overlap(from, to, custom.start, custom.end);
            if seconds > 0.0 {
                sums.add(custom.kind, seconds);
                all += seconds;
            }
        }
        all
    }

    /// Adds the custom events of a segment. Every type of the job has an entry, even of 0 seconds.
    fn count_customs(&mut self, counted: &KindSums) {
        if self.custom_sums.is_empty() {
            let customs = self.customs;
            let mut closed: Vec<_> = customs.by_start().iter().collect();
            closed.sort_unstable_by_key(|custom| custom.number);
            closed.iter().for_each(|custom| self.custom_sums.add(custom.kind, 0.0));
        }
        counted.iter().for_each(|(kind, seconds)| self.custom_sums.add(kind, seconds));
    }

    fn record(&mut self, step: i64, seconds: f64) {
        match self.positions.get(&step) {
            Some(&position) => self.times[position].1 = seconds,
            None => {
                self.positions.insert(step, self.times.len());
                self.times.push((step, seconds));
            }
        }
    }

    fn finish(mut self) -> Walked {
        let largest = self.steps.iter().copied().max_by_key(|(step, _)| *step);
        if let Some((step, start)) = largest {
            self.segment(step);
            if let Some(job_end) = self.job_end.filter(|at| *at != 0.0) {
                self.productive += self.adjusted(start, job_end);
                self.max_step = step;
            }
        }
        let [tpu_init, prep, loading] = self.sums;
        self.buckets.set(B::TpuInitialization, Amount::Flat(tpu_init));
        self.buckets.set(B::TrainingPrep, Amount::Flat(prep));
        if !self.custom_sums.is_empty() {
            self.buckets.set(B::CustomEvents, self.customs.amount(&self.custom_sums));
        }
        let loaded_async = loading - self.buckets.seconds(B::DataLoadingSync);
        self.buckets.set(B::DataLoadingAsync, Amount::Flat(loaded_async));
        Walked {
            totals: WalkTotals {
                productive: self.productive,
                buckets: self.buckets,
                max_step: self.max_step,
                last_step: largest.map_or(0, |(step, _)| step),
            },
            excluded: self.excluded,
            disruptions: self.disruptions,
            step_times: self.times,
        }
    }
}
