//! The walk over entries in log order: its state and its totals.

use super::{
    checkpoints::Checkpoints,
    customs::{CustomEvent, Customs, KindSums},
    elastic::Elastic,
    ranges::Ranges,
    segment::{SegmentOutcome, Shape, StepSegment},
};
use crate::{
    badput::{Amount, BadputType as B, Buckets},
    entry::{Boundary, JobEvent, LogEntry, StartupPhase},
    error::Error,
};

/// The totals of a walk.
#[derive(Debug, Clone)]
pub(super) struct WalkTotals {
    pub(super) productive: f64,
    pub(super) buckets: Buckets,
    pub(super) max_step: i64,
    pub(super) last_step: i64,
}

/// State of the walk.
#[derive(Debug, Default)]
pub(super) struct LogWalk {
    job_start: Option<f64>,
    job_end: Option<f64>,
    tpu_init: OpenPhase,
    prep: OpenPhase,
    loading: OpenPhase,
    /// Whether the next load is one that training waits for.
    loads_async: bool,
    current_load: Option<f64>,
    disruptions: u64,
    current: Option<StepSegment>,
    closed: Vec<(StepSegment, SegmentOutcome)>,
    /// The periods of the closed segments.
    reaches: Ranges,
    customs: Customs,
    checkpoints: Checkpoints,
    elastic: Option<Elastic>,
    /// The buckets of the walk so far, without custom events, in the order they were created.
    buckets: Buckets,
    closed_productive: f64,
    /// Custom seconds of the closed segments by type; `None` once they have to be added up again.
    closed_customs: Option<KindSums>,
    damage: Option<Error>,
    work: u64,
}

/// A phase that may be running, and the seconds of those that ended.
#[derive(Debug, Default)]
struct OpenPhase {
    open: Option<f64>,
    total: f64,
}

impl OpenPhase {
    /// Adds a start or an end; returns whether it had an effect, and the seconds of the span that it ended.
    fn push(&mut self, boundary: Boundary, at: f64) -> (bool, Option<f64>) {
        if boundary == Boundary::Start {
            self.open = Some(at);
            return (true, None);
        }
        let closed = self.open.take().map(|start| at - start);
        self.total += closed.unwrap_or(0.0);
        (closed.is_some(), closed)
    }
}

impl LogWalk {
    pub(super) fn new(elastic: bool) -> Self {
        let elastic = elastic.then(Elastic::default);
        Self { elastic, closed_customs: Some(KindSums::default()), ..Self::default() }
    }

    /// Disruptions so far.
    pub(super) fn disruptions(&self) -> u64 {
        self.disruptions
    }

    pub(super) fn elastic(&self) -> Option<&Elastic> {
        self.elastic.as_ref()
    }

    /// The number of elementary operations so far: entries, steps and events read.
    pub(super) fn work(&self) -> u64 {
        self.work
    }

    /// Adds the next entry in log order.
    pub(super) fn push(&mut self, entry: &LogEntry) {
        self.work += 1;
        let mut phase_done = false;
        for event in entry.events.as_slice() {
            match event {
                JobEvent::JobStart(at) => self.job_start = Some(*at),
                JobEvent::Step { step, start } => self.step(*step, *start),
                JobEvent::JobEnd(at) => self.job_end = Some(*at),
                // Of several phase keys in one entry only the first with an effect counts.
                JobEvent::Phase(phase, boundary, at) if !phase_done => {
                    phase_done = self.phase(*phase, *boundary, *at);
                }
                JobEvent::Custom(kind, boundary, at) => {
                    if let Some(custom) = self.customs.push(kind, *boundary, *at) {
                        self.late_custom(&custom);
                    }
                }
                JobEvent::Checkpoint(checkpoint) => self.checkpoints.push(checkpoint),
                JobEvent::Damaged(error) => {
                    self.damage.get_or_insert_with(|| (**error).clone());
                }
                _ => {}
            }
            if let Some(elastic) = &mut self.elastic {
                elastic.push(event);
            }
        }
    }

    fn step(&mut self, step: i64, start: f64) {
        match &mut self.current {
            None => self.current = Some(StepSegment::new(step, start)),
            Some(segment) if !segment.contains(step) => {
                segment.push(step, start, &self.customs, &mut self.work);
            }
            Some(_) => self.disruption(step, start),
        }
    }

    /// Step `step` was logged before: close the segment there and start a new one.
    fn disruption(&mut self, step: i64, start: f64) {
        let Some(mut segment) = self.current.replace(StepSegment::new(step, start)) else { return };
        self.disruptions += 1;
        let last = segment.last_start();
        let wasted = segment.close(step, &self.customs, &mut self.work);
        let outcome = segment.outcome();
        self.closed_productive += outcome.productive;
        create(&mut self.buckets, &outcome, wasted);
        self.loads_async = false;
        if let Some(load) = self.current_load.take() {
            self.buckets.add(B::DataLoadingSync, load);
        }
        if let Some(job_start) = self.job_start.filter(|at| *at > last) {
            self.buckets.add(B::InfrastructureRecovery, job_start - last);
        }
        if outcome.shape != Shape::Nothing {
            if let Some(sums) = &mut self.closed_customs {
                add_kinds(sums, &segment, &mut self.work);
            }
            let (begin, end) = segment.reach();
            self.reaches.push(begin, end);
            self.closed.push((segment, outcome));
        }
    }

    /// Adds a start or an end of a phase; returns whether it had an effect.
    fn phase(&mut self, phase: StartupPhase, boundary: Boundary, at: f64) -> bool {
        match phase {
            StartupPhase::TpuInit => self.tpu_init.push(boundary, at).0,
            StartupPhase::TrainingPrep => self.prep.push(boundary, at).0,
            StartupPhase::DataLoading => {
                let (done, closed) = self.loading.push(boundary, at);
                if let Some(seconds) = closed {
                    self.current_load = Some(seconds);
                    if !self.loads_async {
                        self.buckets.add(B::DataLoadingSync, seconds);
                        self.loads_async = true;
                    }
                }
                done
            }
        }
    }

    /// Adds a custom event that has ended to the pairs around it, in any segment.
    fn late_custom(&mut self, custom: &CustomEvent) {
        let overlapping = self.reaches.overlapping(custom.start, custom.end);
        for (segment, outcome) in &mut self.closed[overlapping] {
            if !segment.late_custom(custom, &mut self.work) {
                continue;
            }
            self.closed_customs = None;
            let now = segment.outcome();
            self.closed_productive += now.productive - outcome.productive;
            if now.startup != outcome.startup {
                self.buckets.add(B::ProgramStartup, now.startup - outcome.startup);
            }
            *outcome = now;
        }
        if let Some(segment) = &mut self.current {
            segment.late_custom(custom, &mut self.work);
        }
    }

    /// The totals, added up as the library does at the end of its walk.
    ///
    /// # Errors
    /// The error of the first entry that cannot be used.
    pub(super) fn totals(&mut self) -> Result<WalkTotals, Error> {
        if let Some(damage) = &self.damage {
            return Err(damage.clone());
        }
        let (saved, restored) = self.checkpoints.seconds()?;
        let mut buckets = self.buckets.clone();
        buckets.set(B::TpuInitialization, Amount::Flat(self.tpu_init.total));
        buckets.set(B::TrainingPrep, Amount::Flat(self.prep.total));
        let loaded_async = self.loading.total - buckets.seconds(B::DataLoadingSync);
        buckets.set(B::DataLoadingAsync, Amount::Flat(loaded_async));
        buckets.set(B::CheckpointSave, Amount::Flat(saved));
        buckets.set(B::CheckpointRestore, Amount::Flat(restored));
        let mut totals = WalkTotals { productive: 0.0, buckets, max_step: 0, last_step: 0 };
        if let Some(segment) = &self.current {
            let outcome = segment.outcome();
            let (last_step, last_start) = segment.largest();
            create(&mut totals.buckets, &outcome, 0.0);
            totals.productive = self.closed_productive + outcome.productive;
            (totals.max_step, totals.last_step) = (outcome.max_step, last_step);
            if let Some(job_end) = self.job_end {
                totals.productive += job_end - last_start;
                totals.max_step = last_step;
            }
            totals.productive -= saved;
        }
        self.add_customs(&mut totals.buckets);
        if let Some(elastic) = &self.elastic {
            elastic.add_to(&mut totals.buckets);
        }
        Ok(totals)
    }

    fn add_customs(&mut self, buckets: &mut Buckets) {
        let sums = self.closed_customs.get_or_insert_with(|| {
            let mut sums = KindSums::default();
            for (segment, _) in &self.closed {
                add_kinds(&mut sums, segment, &mut self.work);
            }
            sums
        });
        let mut sums = sums.clone();
        if let Some(segment) = &self.current
            && segment.outcome().shape != Shape::Nothing
        {
            add_kinds(&mut sums, segment, &mut self.work);
        }
        if !sums.is_empty() {
            buckets.set(B::CustomEvents, self.customs.amount(&sums));
        }
    }

    /// The custom events of the walk.
    pub(super) fn customs(&self) -> &Customs {
        &self.customs
    }
}

/// Adds a segment's custom seconds by type, in the order they were first counted.
fn add_kinds(sums: &mut KindSums, segment: &StepSegment, work: &mut u64) {
    *work += 1;
    for kind in segment.kinds() {
        *work += 1;
        sums.add(kind.kind, kind.seconds);
    }
}

/// Creates and fills the buckets of a segment in the library's order; custom events are added up later.
fn create(buckets: &mut Buckets, outcome: &SegmentOutcome, wasted: f64) {
    match outcome.shape {
        Shape::Nothing => {}
        Shape::WastedOnly => buckets.add(B::WastedProgress, wasted),
        Shape::StartupLast => {
            buckets.add(B::WastedProgress, wasted);
            buckets.create_custom();
            buckets.add(B::ProgramStartup, outcome.startup);
        }
        Shape::StartupFirst => {
            buckets.add(B::ProgramStartup, outcome.startup);
            buckets.add(B::WastedProgress, wasted);
            buckets.create_custom();
        }
    }
}
