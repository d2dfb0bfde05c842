//! The keys that `GoodputRecorder` and Orbax write, in the order in which the library reads them.

use std::sync::Arc;

use super::{
    checkpoint::Checkpoint,
    event::{Boundary, JobEvent, SliceCounts, StartupPhase, keep},
    fields::PayloadFields,
    scalar::JsonScalar,
};
use crate::error::Error;

impl PayloadFields {
    /// Adds the events that the payload records under the keys of the recorder.
    pub(super) fn recorded(&self, events: &mut Vec<JobEvent>) {
        self.instant(events, "job_start_time", JobEvent::JobStart);
        self.step(events);
        self.instant(events, "job_end_time", JobEvent::JobEnd);
        self.phases(events);
        self.custom(events);
        self.elastic(events);
        if let Some(checkpoint) = Checkpoint::read(self) {
            events.push(JobEvent::Checkpoint(Box::new(checkpoint)));
        }
    }

    fn instant(&self, events: &mut Vec<JobEvent>, key: &str, event: impl FnOnce(f64) -> JobEvent) {
        if let Some(value) = self.get(key) {
            keep(events, value.number(key).map(event));
        }
    }

    fn step(&self, events: &mut Vec<JobEvent>) {
        let Some(start) = self.get("step_start_time") else { return };
        let step = self.get("step_count").ok_or_else(|| Error::key("step_count")).and_then(JsonScalar::int);
        keep(
            events,
            step.and_then(|step| Ok(JobEvent::Step { step, start: start.number("step_start_time")? })),
        );
    }

    fn phases(&self, events: &mut Vec<JobEvent>) {
        for (key, phase, boundary) in [
            ("tpu_init_start_time", StartupPhase::TpuInit, Boundary::Start),
            ("tpu_init_end_time", StartupPhase::TpuInit, Boundary::End),
            ("training_prep_start_time", StartupPhase::TrainingPrep, Boundary::Start),
            ("training_prep_end_time", StartupPhase::TrainingPrep, Boundary::End),
            ("data_loading_start_time", StartupPhase::DataLoading, Boundary::Start),
            ("data_loading_end_time", StartupPhase::DataLoading, Boundary::End),
        ] {
            self.instant(events, key, |at| JobEvent::Phase(phase, boundary, at));
        }
    }

    /// If an entry has a start and an end, only the start counts.
    fn custom(&self, events: &mut Vec<JobEvent>) {
        let (start, end) = ("custom_badput_event_start_time", "custom_badput_event_end_time");
        let Some((key, at)) = self.any(&[start, end]) else { return };
        let boundary = if key == start { Boundary::Start } else { Boundary::End };
        let kind = match self.get("custom_badput_event_type") {
            Some(JsonScalar::Text(kind)) => Ok(Arc::from(kind.to_uppercase())),
            Some(_) => Err(Error::type_("custom_badput_event_type is not a string")),
            None => Err(Error::key("custom_badput_event_type")),
        };
        keep(events, kind.and_then(|kind| Ok(JobEvent::Custom(kind, boundary, at.number(key)?))));
    }

    fn elastic(&self, events: &mut Vec<JobEvent>) {
        let (start, end) = ("elastic_wait_start_time", "elastic_wait_end_time");
        if let Some((key, at)) = self.any(&[start, end]) {
            let boundary = if key == start { Boundary::Start } else { Boundary::End };
            let kind = match self.get("elastic_wait_event_type") {
                Some(JsonScalar::Text(kind)) => Ok(Arc::from(&**kind)),
                Some(_) => Err(Error::type_("elastic_wait_event_type is not a string")),
                None => Ok(Arc::from("unknown")),
            };
            keep(events, kind.and_then(|kind| Ok(JobEvent::Wait(kind, boundary, at.number(key)?))));
        }
        let (start, end) = ("elastic_reinit_start_time", "elastic_reinit_end_time");
        if let Some((key, at)) = self.any(&[start, end]) {
            let boundary = if key == start { Boundary::Start } else { Boundary::End };
            keep(events, at.number(key).map(|at| JobEvent::Reinit(boundary, at)));
        }
        if let Some(at) = self.get("elastic_slice_counts_timestamp") {
            keep(events, self.slices(at).map(|slices| JobEvent::Slices(Box::new(slices))));
        }
    }

    fn slices(&self, at: &JsonScalar) -> Result<SliceCounts, Error> {
        let count =
            |key: &str, absent: f64| self.get(key).map_or(Ok(absent), |value: &JsonScalar| value.number(key));
        Ok(SliceCounts {
            at: at.number("elastic_slice_counts_timestamp")?,
            active: count("active_slices", 0.0)?,
            available: count("available_slices", 0.0)?,
            total: count("total_slices", 1.0)?.max(1.0),
        })
    }
}
