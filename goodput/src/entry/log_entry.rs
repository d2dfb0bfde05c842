//! One log entry after reading: the log's own time and id, and the events of its payload.

use super::{
    checkpoint::Checkpoint,
    event::{EntryEvents, JobEvent, SliceCounts},
    fields::PayloadFields,
};
use crate::{
    error::Error,
    time::{Micros, Nanos},
};

/// The value of the first key whose name contains `time`. The library selects the entries of a window by it.
#[derive(Debug, Clone, PartialEq)]
pub enum PayloadTime {
    /// No such key.
    None,
    /// Epoch seconds.
    At(f64),
    /// A value that is not a time.
    Damaged(Box<Error>),
}

impl PayloadTime {
    pub(super) fn read(fields: &PayloadFields) -> Self {
        match fields.first_containing("time").map(|value| value.instant()) {
            None => PayloadTime::None,
            Some(Ok(at)) => PayloadTime::At(at),
            Some(Err(error)) => PayloadTime::Damaged(Box::new(error)),
        }
    }

    /// The time, rounded to microseconds.
    ///
    /// # Errors
    /// The library's, for a value that is not a time.
    pub fn instant(&self) -> Result<Option<Micros>, Error> {
        match self {
            PayloadTime::None => Ok(None),
            PayloadTime::At(seconds) => Micros::from_seconds(*seconds).map(Some),
            PayloadTime::Damaged(error) => Err((**error).clone()),
        }
    }
}

/// One entry of the log.
#[derive(Debug, Clone, PartialEq)]
pub struct LogEntry {
    /// The log's own time.
    pub time: Nanos,
    /// The log's own id of the entry. It orders entries of equal time; empty if the log gives none.
    pub id: Box<str>,
    /// What the library selects the entries of a window by.
    pub payload_time: PayloadTime,
    /// The recorded events.
    pub events: EntryEvents,
}

impl LogEntry {
    /// Moves the times of its payload by so many nanoseconds, such as those of a program whose clock was set back.
    #[expect(clippy::cast_precision_loss, reason = "the payload has its times as f64")]
    pub fn move_payload_by(&mut self, nanos: i64) {
        let seconds = nanos as f64 / 1e9;
        if let PayloadTime::At(at) = &mut self.payload_time {
            *at += seconds;
        }
        self.events.move_by(seconds);
    }

    /// The job start in the entry, if there is one.
    pub fn job_start(&self) -> Option<f64> {
        self.events.as_slice().iter().find_map(|event| match event {
            JobEvent::JobStart(at) => Some(*at),
            _ => None,
        })
    }

    /// The approximate size of the entry in memory, in bytes.
    pub fn bytes(&self) -> usize {
        let text = |error: &Error| size_of::<Error>() + error.message.len();
        let time = match &self.payload_time {
            PayloadTime::Damaged(error) => text(error),
            PayloadTime::None | PayloadTime::At(_) => 0,
        };
        let events = self.events.as_slice().iter().map(|event| match event {
            JobEvent::Custom(name, ..) | JobEvent::Wait(name, ..) => size_of::<JobEvent>() + name.len(),
            JobEvent::Slices(_) => size_of::<JobEvent>() + size_of::<SliceCounts>(),
            JobEvent::Checkpoint(checkpoint) => {
                let fault = checkpoint.fault.as_ref().map_or(0, text);
                size_of::<JobEvent>() + size_of::<Checkpoint>() + checkpoint.group.len() + fault
            }
            JobEvent::Damaged(error) => size_of::<JobEvent>() + text(error),
            _ => size_of::<JobEvent>(),
        });
        size_of::<Self>() + self.id.len() + time + events.sum::<usize>()
    }

    /// Whether only the elastic calculator reads something in it.
    pub fn is_elastic(&self) -> bool {
        self.events
            .as_slice()
            .iter()
            .any(|event| matches!(event, JobEvent::Wait(..) | JobEvent::Reinit(..) | JobEvent::Slices(_)))
    }
}
