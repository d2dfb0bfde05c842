//! The events that a job records, as the ledgers read them. Every number is an `f64`, as in the library.

use std::sync::Arc;

use super::checkpoint::Checkpoint;
use crate::error::Error;

/// One recorded event.
#[derive(Debug, Clone, PartialEq)]
pub enum JobEvent {
    /// The job started, or started again.
    JobStart(f64),
    /// A step started.
    Step {
        /// Its number.
        step: i64,
        /// When it started.
        start: f64,
    },
    /// The job ended.
    JobEnd(f64),
    /// A start-up phase started or ended.
    Phase(StartupPhase, Boundary, f64),
    /// A custom event started or ended, with its type as written.
    Custom(Arc<str>, Boundary, f64),
    /// An elastic wait started or ended, with its type as written.
    Wait(Arc<str>, Boundary, f64),
    /// An elastic re-initialisation started or ended.
    Reinit(Boundary, f64),
    /// The slice counts changed.
    Slices(Box<SliceCounts>),
    /// A checkpoint was saved or restored.
    Checkpoint(Box<Checkpoint>),
    /// A key whose value cannot be used.
    Damaged(Box<Error>),
}

impl JobEvent {
    /// The time of the event in epoch seconds; `None` for what cannot be used and for checkpoint entries
    /// without a start time.
    pub fn at(&self) -> Option<f64> {
        match self {
            JobEvent::JobStart(at)
            | JobEvent::Step { start: at, .. }
            | JobEvent::JobEnd(at)
            | JobEvent::Phase(_, _, at)
            | JobEvent::Custom(_, _, at)
            | JobEvent::Wait(_, _, at)
            | JobEvent::Reinit(_, at) => Some(*at),
            JobEvent::Slices(counts) => Some(counts.at),
            JobEvent::Checkpoint(checkpoint) => {
                checkpoint.start.map(|start| start + checkpoint.seconds.unwrap_or(0.0))
            }
            JobEvent::Damaged(_) => None,
        }
    }
}

impl JobEvent {
    /// Moves its times by so many seconds.
    fn move_by(&mut self, seconds: f64) {
        match self {
            JobEvent::JobStart(at)
            | JobEvent::Step { start: at, .. }
            | JobEvent::JobEnd(at)
            | JobEvent::Phase(_, _, at)
            | JobEvent::Custom(_, _, at)
            | JobEvent::Wait(_, _, at)
            | JobEvent::Reinit(_, at) => *at += seconds,
            JobEvent::Slices(counts) => counts.at += seconds,
            JobEvent::Checkpoint(checkpoint) => {
                checkpoint.start = checkpoint.start.map(|start| start + seconds);
            }
            JobEvent::Damaged(_) => {}
        }
    }
}

/// The phases of a job that are not training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StartupPhase {
    /// Devices starting up.
    TpuInit,
    /// Preparing to train.
    TrainingPrep,
    /// Loading data.
    DataLoading,
}

/// Whether an event is the start or the end of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Boundary {
    /// The span starts.
    Start,
    /// The span ends.
    End,
}

/// Slice counts of an elastic job at one time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SliceCounts {
    /// Epoch seconds.
    pub at: f64,
    /// Slices that step.
    pub active: f64,
    /// Slices that could step.
    pub available: f64,
    /// Requested slices, at least 1.
    pub total: f64,
}

/// The events of one entry: nearly always exactly one.
#[derive(Debug, Clone, PartialEq)]
pub enum EntryEvents {
    /// One event.
    One(JobEvent),
    /// None, or several.
    Many(Box<[JobEvent]>),
}

impl EntryEvents {
    /// The events in the order the library reads them.
    pub fn as_slice(&self) -> &[JobEvent] {
        match self {
            EntryEvents::One(event) => std::slice::from_ref(event),
            EntryEvents::Many(events) => events,
        }
    }
}

impl EntryEvents {
    /// Moves the times of the events by so many seconds.
    pub(super) fn move_by(&mut self, seconds: f64) {
        match self {
            EntryEvents::One(event) => event.move_by(seconds),
            EntryEvents::Many(events) => events.iter_mut().for_each(|event| event.move_by(seconds)),
        }
    }
}

impl From<Vec<JobEvent>> for EntryEvents {
    fn from(mut events: Vec<JobEvent>) -> Self {
        match (events.len(), events.pop()) {
            (1, Some(event)) => EntryEvents::One(event),
            (_, Some(last)) => {
                events.push(last);
                EntryEvents::Many(events.into_boxed_slice())
            }
            (_, None) => EntryEvents::Many(Box::default()),
        }
    }
}

/// Adds an event, or [`JobEvent::Damaged`] with the reason why it cannot be used.
pub(super) fn keep(events: &mut Vec<JobEvent>, event: Result<JobEvent, Error>) {
    events.push(event.unwrap_or_else(|error| JobEvent::Damaged(Box::new(error))));
}
