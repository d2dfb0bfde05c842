//! What one entry of an event log says.
//!
//! An [`Entry`] is a log line after reading: the log's own time, the insert id, and the recorded events in
//! the order in which the library looks at their keys. Every number is an `f64`. A value that cannot be
//! used becomes [`Event::Damaged`]: the exact ledger fails on it as the library does, the strict one leaves
//! it out and says so.

mod checkpoint;
mod line;
mod newer;
mod payload;
mod scalar;

use std::sync::Arc;

pub use checkpoint::{Checkpoint, Operation};
pub use line::{Line, LineFault, Reader};

use crate::{
    error::Error,
    time::{Micros, Nanos},
};

/// One recorded event.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
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
    /// A start-up phase began or ended.
    Phase(Phase, Edge, f64),
    /// A custom event began or ended; its type as written.
    Custom(Arc<str>, Edge, f64),
    /// An elastic wait began or ended; its type as written.
    Wait(Arc<str>, Edge, f64),
    /// An elastic re-initialisation began or ended.
    Reinit(Edge, f64),
    /// How many slices take part.
    Slices(Box<Slices>),
    /// A checkpoint was saved or restored.
    Checkpoint(Box<Checkpoint>),
    /// A key whose value cannot be used.
    Damaged(Box<Error>),
}

/// The phases a job goes through before it trains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Devices starting up.
    TpuInit,
    /// Preparing to train.
    TrainingPrep,
    /// Loading data.
    DataLoading,
}

/// Which end of a span an event marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Edge {
    /// It began.
    Start,
    /// It ended.
    End,
}

/// Slice counts of an elastic job at one instant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slices {
    /// When.
    pub at: f64,
    /// Slices that step.
    pub active: f64,
    /// Slices that could.
    pub available: f64,
    /// Slices asked for, at least 1.
    pub total: f64,
}

/// The value of the first key whose name contains `time`: what windows are cut by.
#[derive(Debug, Clone, PartialEq)]
pub enum PayloadTime {
    /// No such key.
    None,
    /// Epoch seconds.
    At(f64),
    /// A value that is no instant.
    Damaged(Box<Error>),
}

impl PayloadTime {
    /// The instant, rounded to microseconds.
    ///
    /// # Errors
    /// The library's, for a value that is no instant.
    pub fn instant(&self) -> Result<Option<Micros>, Error> {
        match self {
            PayloadTime::None => Ok(None),
            PayloadTime::At(seconds) => Micros::from_seconds(*seconds).map(Some),
            PayloadTime::Damaged(error) => Err((**error).clone()),
        }
    }
}

/// The events of one entry: nearly always exactly one.
#[derive(Debug, Clone, PartialEq)]
pub enum Events {
    /// One event.
    One(Event),
    /// None, or several.
    Many(Box<[Event]>),
}

impl Events {
    /// The events in the order the library looks at them.
    pub fn as_slice(&self) -> &[Event] {
        match self {
            Events::One(event) => std::slice::from_ref(event),
            Events::Many(events) => events,
        }
    }
}

impl From<Vec<Event>> for Events {
    fn from(mut events: Vec<Event>) -> Self {
        match (events.len(), events.pop()) {
            (1, Some(event)) => Events::One(event),
            (_, Some(last)) => {
                events.push(last);
                Events::Many(events.into_boxed_slice())
            }
            (_, None) => Events::Many(Box::default()),
        }
    }
}

/// One entry of the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The log's own time.
    pub time: Nanos,
    /// The log's own id of the entry; orders entries of one time.
    pub id: Box<str>,
    /// What windows are cut by.
    pub payload_time: PayloadTime,
    /// What was recorded.
    pub events: Events,
}

impl Entry {
    /// Whether the entry has a job start (readable or not counts the same to the library).
    pub fn job_start(&self) -> Option<f64> {
        self.events.as_slice().iter().find_map(|event| match event {
            Event::JobStart(at) => Some(*at),
            _ => None,
        })
    }

    /// Whether the entry has a step.
    pub fn has_step(&self) -> bool {
        self.events.as_slice().iter().any(|event| matches!(event, Event::Step { .. }))
    }

    /// About how many bytes the entry takes in memory.
    pub fn bytes(&self) -> usize {
        let text = |error: &Error| size_of::<Error>() + error.message.len();
        let time = match &self.payload_time {
            PayloadTime::Damaged(error) => text(error),
            PayloadTime::None | PayloadTime::At(_) => 0,
        };
        let events = self.events.as_slice().iter().map(|event| match event {
            Event::Custom(name, ..) | Event::Wait(name, ..) => size_of::<Event>() + name.len(),
            Event::Slices(_) => size_of::<Event>() + size_of::<Slices>(),
            Event::Checkpoint(noted) => {
                let fault = noted.fault.as_ref().map_or(0, text);
                size_of::<Event>() + size_of::<Checkpoint>() + noted.group.len() + fault
            }
            Event::Damaged(error) => size_of::<Event>() + text(error),
            _ => size_of::<Event>(),
        });
        size_of::<Self>() + self.id.len() + time + events.sum::<usize>()
    }

    /// Whether only the elastic calculator reads something in it.
    pub fn is_elastic(&self) -> bool {
        self.events
            .as_slice()
            .iter()
            .any(|event| matches!(event, Event::Wait(..) | Event::Reinit(..) | Event::Slices(_)))
    }
}
