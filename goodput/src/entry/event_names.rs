//! The event names of the newer API: JOB, ACCELERATOR_INIT, TRAINING_PREP, DATA_LOADING, STEP and CUSTOM.
//!
//! Such an entry names its event in `event` (or `event_type`) and has `start_time`, `end_time` or both, as
//! epoch seconds or RFC 3339. A step has its number in `step`, `step_number` or `step_count`; its end is not
//! used, since a step ends when the next one starts. A custom event has its name in `name` or `event_name`.

use std::sync::Arc;

use super::{
    event::{Boundary, JobEvent, StartupPhase, keep},
    fields::PayloadFields,
    scalar::JsonScalar,
};
use crate::{
    error::Error,
    time::{Micros, parse_instant},
};

/// Adds the events that the payload records under these names.
pub(super) fn read(fields: &PayloadFields, events: &mut Vec<JobEvent>) {
    let Some((_, JsonScalar::Text(name))) = fields.any(&["event", "event_type"]) else { return };
    let phase = |phase| move |boundary, at| Ok(JobEvent::Phase(phase, boundary, at));
    match name.to_ascii_uppercase().as_str() {
        "JOB" => boundaries(fields, events, |boundary, at| {
            Ok(if boundary == Boundary::Start { JobEvent::JobStart(at) } else { JobEvent::JobEnd(at) })
        }),
        "ACCELERATOR_INIT" => boundaries(fields, events, phase(StartupPhase::TpuInit)),
        "TRAINING_PREP" => boundaries(fields, events, phase(StartupPhase::TrainingPrep)),
        "DATA_LOADING" => boundaries(fields, events, phase(StartupPhase::DataLoading)),
        "CUSTOM" => {
            let kind = match fields.any(&["name", "event_name"]) {
                Some((_, JsonScalar::Text(kind))) => kind.to_uppercase(),
                _ => "UNKNOWN".to_owned(),
            };
            let kind: Arc<str> = kind.into();
            boundaries(fields, events, |boundary, at| Ok(JobEvent::Custom(Arc::clone(&kind), boundary, at)));
        }
        "STEP" => {
            let Some(start) = fields.get("start_time") else { return };
            let step = fields
                .any(&["step", "step_number", "step_count"])
                .ok_or_else(|| Error::key("step"))
                .and_then(|(_, value)| value.int());
            keep(events, step.and_then(|step| Ok(JobEvent::Step { step, start: instant(start)? })));
        }
        _ => {}
    }
}

fn boundaries(
    fields: &PayloadFields,
    events: &mut Vec<JobEvent>,
    event: impl Fn(Boundary, f64) -> Result<JobEvent, Error>,
) {
    for (key, boundary) in [("start_time", Boundary::Start), ("end_time", Boundary::End)] {
        if let Some(value) = fields.get(key) {
            keep(events, instant(value).and_then(|at| event(boundary, at)));
        }
    }
}

fn instant(value: &JsonScalar) -> Result<f64, Error> {
    match value {
        JsonScalar::Text(text) => parse_instant(text)
            .map(Micros::seconds)
            .ok_or_else(|| Error::value(format!("'{text}' is not a time"))),
        other => other.instant(),
    }
}
