//! The event names of the newer API: JOB, ACCELERATOR_INIT, TRAINING_PREP, DATA_LOADING, STEP and CUSTOM.
//!
//! Such an entry names its event in `event` (or `event_type`) and has `start_time`, `end_time` or both, as
//! epoch seconds or RFC 3339. A step has its number in `step`, `step_number` or `step_count`; its end is not
//! used, since a step ends when the next one starts. A custom event has its name in `name` or `event_name`.

use std::sync::Arc;

use super::{
    Edge, Event, Phase,
    payload::{Fields, push},
    scalar::Scalar,
};
use crate::{error::Error, time::parse_instant};

pub(super) fn read(fields: &Fields, events: &mut Vec<Event>) {
    let Some((_, Scalar::Text(name))) = fields.any(&["event", "event_type"]) else { return };
    let phase = |phase| move |edge, at| Ok(Event::Phase(phase, edge, at));
    match name.to_ascii_uppercase().as_str() {
        "JOB" => edges(fields, events, |edge, at| {
            Ok(if edge == Edge::Start { Event::JobStart(at) } else { Event::JobEnd(at) })
        }),
        "ACCELERATOR_INIT" => edges(fields, events, phase(Phase::TpuInit)),
        "TRAINING_PREP" => edges(fields, events, phase(Phase::TrainingPrep)),
        "DATA_LOADING" => edges(fields, events, phase(Phase::DataLoading)),
        "CUSTOM" => {
            let kind = match fields.any(&["name", "event_name"]) {
                Some((_, Scalar::Text(kind))) => kind.to_uppercase(),
                _ => "UNKNOWN".to_owned(),
            };
            let kind: Arc<str> = kind.into();
            edges(fields, events, |edge, at| Ok(Event::Custom(Arc::clone(&kind), edge, at)));
        }
        "STEP" => {
            let Some(start) = fields.get("start_time") else { return };
            let step = fields
                .any(&["step", "step_number", "step_count"])
                .ok_or_else(|| Error::key("step"))
                .and_then(|(_, value)| value.int());
            push(events, step.and_then(|step| Ok(Event::Step { step, start: instant(start)? })));
        }
        _ => {}
    }
}

fn edges(fields: &Fields, events: &mut Vec<Event>, event: impl Fn(Edge, f64) -> Result<Event, Error>) {
    for (key, edge) in [("start_time", Edge::Start), ("end_time", Edge::End)] {
        if let Some(value) = fields.get(key) {
            push(events, instant(value).and_then(|at| event(edge, at)));
        }
    }
}

fn instant(value: &Scalar) -> Result<f64, Error> {
    match value {
        Scalar::Text(text) => parse_instant(text)
            .map(super::super::time::Micros::seconds)
            .ok_or_else(|| Error::value(format!("'{text}' is no instant"))),
        other => other.instant(),
    }
}
