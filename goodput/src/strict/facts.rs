//! The events of the entries: times in microseconds, sorted and without repetitions.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::repair::{Repair, Repairs};
use crate::{
    badput::BadputType,
    entry::{Boundary, Checkpoint, CheckpointOperation, JobEvent, LogEntry, StartupPhase},
    exact::elastic::Elastic,
    time::Micros,
};

/// Job starts, steps and job ends. Marks of equal time are in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum JobMark {
    Start,
    Step(i64),
    End,
}

/// The kind of a span with a start and an end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SpanKind {
    Phase(StartupPhase),
    Custom(Arc<str>),
    Wait(Arc<str>),
    Reinit,
}

/// A checkpoint as one host logged it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LoggedCheckpoint {
    pub(super) operation: CheckpointOperation,
    pub(super) group: Box<str>,
    pub(super) start: i64,
    pub(super) length: i64,
}

/// The events of a job until a given time.
#[derive(Debug, Default)]
pub(super) struct JobFacts {
    pub(super) now: i64,
    pub(super) marks: Vec<(i64, JobMark)>,
    boundaries: BTreeMap<SpanKind, Vec<(i64, bool)>>,
    pub(super) checkpoints: Vec<LoggedCheckpoint>,
    pub(super) slices: Elastic,
    pub(super) elastic: bool,
    customs: Vec<Arc<str>>,
    earliest: Option<i64>,
    latest: Option<i64>,
}

impl JobFacts {
    /// Reads all events until `now`.
    pub(super) fn new<'e>(
        entries: impl IntoIterator<Item = &'e LogEntry>,
        now: i64,
        repairs: &mut Repairs,
    ) -> Self {
        let mut facts = Self { now, ..Self::default() };
        let mut slices = Vec::new();
        for entry in entries {
            facts.elastic |= entry.is_elastic();
            for event in entry.events.as_slice() {
                if let JobEvent::Slices(counts) = event {
                    slices.push(**counts);
                } else if facts.event(entry, event, repairs).is_none() {
                    repairs.add(Repair::UnreadableValue, 1);
                }
            }
        }
        slices.sort_by(|a, b| {
            let key = |s: &crate::entry::SliceCounts| [s.at, s.active, s.available, s.total];
            key(a).partial_cmp(&key(b)).unwrap_or(std::cmp::Ordering::Equal)
        });
        for counts in slices {
            if let Ok(at) = Micros::from_seconds(counts.at) {
                facts.latest = facts.latest.max((at.0 <= now).then_some(at.0));
            }
            facts.slices.push(&JobEvent::Slices(Box::new(counts)));
        }
        facts.sort(repairs);
        facts
    }

    /// Adds one event; `None` if it cannot be used.
    fn event(&mut self, entry: &LogEntry, event: &JobEvent, repairs: &mut Repairs) -> Option<()> {
        match event {
            JobEvent::JobStart(at) => self.mark(*at, JobMark::Start),
            JobEvent::JobEnd(at) => self.mark(*at, JobMark::End),
            // A saturated value is not a step number: no number follows it, and all others would be smaller.
            JobEvent::Step { step: i64::MIN | i64::MAX, .. } => None,
            JobEvent::Step { step, start } => self.mark(*start, JobMark::Step(*step)),
            JobEvent::Phase(phase, boundary, at) => self.boundary(SpanKind::Phase(*phase), *boundary, *at),
            JobEvent::Custom(kind, boundary, at) => {
                self.boundary(SpanKind::Custom(Arc::clone(kind)), *boundary, *at)
            }
            JobEvent::Wait(kind, boundary, at) => {
                self.boundary(SpanKind::Wait(Arc::clone(kind)), *boundary, *at)
            }
            JobEvent::Reinit(boundary, at) => self.boundary(SpanKind::Reinit, *boundary, *at),
            JobEvent::Checkpoint(checkpoint) => {
                repairs.add(Repair::IncompleteCheckpoint, u64::from(checkpoint.fault.is_some()));
                self.checkpoint(entry, checkpoint)
            }
            JobEvent::Slices(_) => Some(()),
            JobEvent::Damaged(_) => None,
        }
    }

    /// The time in microseconds: `None` if it is out of range, `Some(None)` if it is after `now`.
    fn instant(&mut self, at: f64) -> Option<Option<i64>> {
        let at = Micros::from_seconds(at).ok()?.0;
        if at > self.now {
            return Some(None);
        }
        self.earliest = Some(self.earliest.map_or(at, |earliest| earliest.min(at)));
        self.latest = self.latest.max(Some(at));
        Some(Some(at))
    }

    fn mark(&mut self, at: f64, mark: JobMark) -> Option<()> {
        if let Some(at) = self.instant(at)? {
            self.marks.push((at, mark));
        }
        Some(())
    }

    fn boundary(&mut self, kind: SpanKind, boundary: Boundary, at: f64) -> Option<()> {
        if let Some(at) = self.instant(at)? {
            // An end sorts before a start of equal time.
            self.boundaries.entry(kind).or_default().push((at, boundary == Boundary::Start));
        }
        Some(())
    }

    /// Adds a checkpoint. One without a length is ignored; one without a start ended when it was logged.
    fn checkpoint(&mut self, entry: &LogEntry, checkpoint: &Checkpoint) -> Option<()> {
        let Some(length) = checkpoint.seconds.filter(|seconds| *seconds > 0.0) else { return Some(()) };
        let length = Micros::from_seconds(length).ok()?.0;
        let start = match checkpoint.start {
            Some(start) => Micros::from_seconds(start).ok()?.0,
            None => entry.time.micros().0.saturating_sub(length),
        };
        if start <= self.now {
            self.latest = self.latest.max(Some(start.saturating_add(length).min(self.now)));
            let (operation, group) = (checkpoint.operation, checkpoint.group.clone());
            self.checkpoints.push(LoggedCheckpoint { operation, group, start, length });
        }
        Some(())
    }

    /// Sorts the events and drops repetitions.
    fn sort(&mut self, repairs: &mut Repairs) {
        let mut dropped = sort_once(&mut self.marks);
        for boundaries in self.boundaries.values_mut() {
            dropped += sort_once(boundaries);
        }
        // Several hosts may log one checkpoint: that is not a repair.
        self.checkpoints.sort_unstable();
        repairs.add(Repair::DuplicateEntries, dropped);
        let customs = self.boundaries.keys().filter_map(|kind| match kind {
            SpanKind::Custom(name) => Some(Arc::clone(name)),
            _ => None,
        });
        self.customs = customs.collect::<BTreeSet<_>>().into_iter().collect();
    }

    /// The start of the job: its first job start, or its first event.
    pub(super) fn origin(&self, repairs: &mut Repairs) -> Option<i64> {
        let start = self.marks.iter().find(|(_, mark)| *mark == JobMark::Start).map(|(at, _)| *at);
        if start.is_none() && self.earliest.is_some() {
            repairs.add(Repair::NoJobStart, 1);
        }
        start.or(self.earliest)
    }

    /// The latest event until now.
    pub(super) fn latest(&self) -> Option<i64> {
        self.latest
    }

    /// Pairs every start with the next end of its kind. No span crosses one of `breaks`, the starts of attempts: a
    /// span that a crash interrupted has no end.
    pub(super) fn paired(&self, breaks: &[i64], repairs: &mut Repairs) -> Vec<(SpanKind, i64, i64)> {
        let mut paired = Vec::new();
        for (kind, boundaries) in &self.boundaries {
            let mut open: Option<i64> = None;
            let mut boundaries = boundaries.iter().copied().peekable();
            while let Some((at, starts)) = boundaries.next() {
                if !starts && open.is_none() && boundaries.next_if_eq(&(at, true)).is_some() {
                    // The span has no length.
                    continue;
                }
                let broken = open.is_some_and(|start| {
                    let next = breaks.partition_point(|instant| *instant <= start);
                    breaks.get(next).is_some_and(|instant| *instant < at)
                });
                let before = if broken { None } else { open };
                repairs.add(Repair::UnpairedEvent, u64::from(broken));
                open = match (starts, before) {
                    (true, before) => {
                        repairs.add(Repair::UnpairedEvent, u64::from(before.is_some()));
                        Some(at)
                    }
                    (false, Some(start)) => {
                        paired.push((kind.clone(), start, at));
                        None
                    }
                    (false, None) => {
                        repairs.add(Repair::UnpairedEvent, 1);
                        None
                    }
                };
            }
        }
        paired
    }

    /// The bucket of an elastic wait.
    pub(super) fn wait_bucket(kind: &str) -> BadputType {
        let scale_up = kind.to_lowercase().contains("scale_up");
        if scale_up { BadputType::ElasticScaleUp } else { BadputType::ElasticSliceDown }
    }

    /// The number of a custom type, in the order of the names.
    pub(super) fn custom_number(&self, name: &Arc<str>) -> u32 {
        let at = self.customs.partition_point(|other| other < name);
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    /// The name of a custom type.
    pub(super) fn custom_name(&self, number: u32) -> &str {
        self.customs.get(number as usize).map_or("", |name| name)
    }
}

fn sort_once<T: Ord>(list: &mut Vec<T>) -> u64 {
    let before = list.len();
    list.sort_unstable();
    list.dedup();
    (before - list.len()) as u64
}
