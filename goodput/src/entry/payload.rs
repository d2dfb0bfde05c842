//! The payload of an entry: known keys to events, in the order in which the library looks at them.

use std::{fmt, sync::Arc};

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{Checkpoint, Edge, Event, Events, PayloadTime, Phase, Slices, newer, scalar::Scalar};
use crate::error::Error;

/// The keys and values of one payload in the order of the text. A repeated key has the place of its first
/// value and counts with its last, as in Python: what looks for a value begins at the end.
#[derive(Debug, Default)]
pub(super) struct Fields(Vec<(Box<str>, Scalar)>);

impl Fields {
    pub(super) fn get(&self, key: &str) -> Option<&Scalar> {
        self.0.iter().rfind(|(k, _)| &**k == key).map(|(_, value)| value)
    }

    /// The first of `keys` that is there.
    pub(super) fn any(&self, keys: &[&'static str]) -> Option<(&'static str, &Scalar)> {
        keys.iter().find_map(|key| self.get(key).map(|value| (*key, value)))
    }

    /// Whether the payload belongs to `job`.
    pub(super) fn is_of(&self, job: &str) -> bool {
        matches!(self.get("job_name"), Some(Scalar::Text(name)) if &**name == job)
    }

    pub(super) fn payload_time(&self) -> PayloadTime {
        let first = self.0.iter().find(|(key, _)| key.contains("time"));
        match first.and_then(|(key, _)| self.get(key)) {
            None => PayloadTime::None,
            Some(value) => match value.instant() {
                Ok(at) => PayloadTime::At(at),
                Err(error) => PayloadTime::Damaged(Box::new(error)),
            },
        }
    }

    pub(super) fn events(&self) -> Events {
        let mut events = Vec::with_capacity(1);
        self.instant(&mut events, "job_start_time", Event::JobStart);
        self.step(&mut events);
        self.instant(&mut events, "job_end_time", Event::JobEnd);
        self.phases(&mut events);
        self.custom(&mut events);
        self.elastic(&mut events);
        if let Some(checkpoint) = Checkpoint::read(self) {
            events.push(Event::Checkpoint(Box::new(checkpoint)));
        }
        newer::read(self, &mut events);
        events.into()
    }

    fn instant(&self, events: &mut Vec<Event>, key: &str, event: impl FnOnce(f64) -> Event) {
        if let Some(value) = self.get(key) {
            push(events, value.number(key).map(event));
        }
    }

    fn step(&self, events: &mut Vec<Event>) {
        let Some(start) = self.get("step_start_time") else { return };
        let step = self.get("step_count").ok_or_else(|| Error::key("step_count")).and_then(Scalar::int);
        push(events, step.and_then(|step| Ok(Event::Step { step, start: start.number("step_start_time")? })));
    }

    fn phases(&self, events: &mut Vec<Event>) {
        for (key, phase, edge) in [
            ("tpu_init_start_time", Phase::TpuInit, Edge::Start),
            ("tpu_init_end_time", Phase::TpuInit, Edge::End),
            ("training_prep_start_time", Phase::TrainingPrep, Edge::Start),
            ("training_prep_end_time", Phase::TrainingPrep, Edge::End),
            ("data_loading_start_time", Phase::DataLoading, Edge::Start),
            ("data_loading_end_time", Phase::DataLoading, Edge::End),
        ] {
            self.instant(events, key, |at| Event::Phase(phase, edge, at));
        }
    }

    /// A start hides an end in the same entry.
    fn custom(&self, events: &mut Vec<Event>) {
        let (start, end) = ("custom_badput_event_start_time", "custom_badput_event_end_time");
        let Some((key, at)) = self.any(&[start, end]) else { return };
        let edge = if key == start { Edge::Start } else { Edge::End };
        let kind = match self.get("custom_badput_event_type") {
            Some(Scalar::Text(kind)) => Ok(Arc::from(kind.to_uppercase())),
            Some(_) => Err(Error::type_("custom_badput_event_type is not a string")),
            None => Err(Error::key("custom_badput_event_type")),
        };
        push(events, kind.and_then(|kind| Ok(Event::Custom(kind, edge, at.number(key)?))));
    }

    fn elastic(&self, events: &mut Vec<Event>) {
        let (start, end) = ("elastic_wait_start_time", "elastic_wait_end_time");
        if let Some((key, at)) = self.any(&[start, end]) {
            let edge = if key == start { Edge::Start } else { Edge::End };
            let kind = match self.get("elastic_wait_event_type") {
                Some(Scalar::Text(kind)) => Ok(Arc::from(&**kind)),
                Some(_) => Err(Error::type_("elastic_wait_event_type is not a string")),
                None => Ok(Arc::from("unknown")),
            };
            push(events, kind.and_then(|kind| Ok(Event::Wait(kind, edge, at.number(key)?))));
        }
        let (start, end) = ("elastic_reinit_start_time", "elastic_reinit_end_time");
        if let Some((key, at)) = self.any(&[start, end]) {
            let edge = if key == start { Edge::Start } else { Edge::End };
            push(events, at.number(key).map(|at| Event::Reinit(edge, at)));
        }
        if let Some(at) = self.get("elastic_slice_counts_timestamp") {
            push(events, self.slices(at).map(|slices| Event::Slices(Box::new(slices))));
        }
    }

    fn slices(&self, at: &Scalar) -> Result<Slices, Error> {
        let count =
            |key: &str, absent: f64| self.get(key).map_or(Ok(absent), |value: &Scalar| value.number(key));
        Ok(Slices {
            at: at.number("elastic_slice_counts_timestamp")?,
            active: count("active_slices", 0.0)?,
            available: count("available_slices", 0.0)?,
            total: count("total_slices", 1.0)?.max(1.0),
        })
    }
}

/// Keeps an event, or the reason why it cannot be used.
pub(super) fn push(events: &mut Vec<Event>, event: Result<Event, Error>) {
    events.push(event.unwrap_or_else(|error| Event::Damaged(Box::new(error))));
}

/// A payload that may be of any JSON type; only an object can be an entry.
#[derive(Debug)]
pub(super) enum Payload {
    Fields(Fields),
    Other,
}

struct PayloadVisitor;

impl<'de> Visitor<'de> for PayloadVisitor {
    type Value = Payload;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a payload")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Payload, A::Error> {
        let mut fields = Fields::default();
        while let Some((key, value)) = map.next_entry::<String, Scalar>()? {
            fields.0.push((key.into_boxed_str(), value));
        }
        Ok(Payload::Fields(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Payload, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Payload::Other)
    }

    fn visit_unit<E>(self) -> Result<Payload, E> {
        Ok(Payload::Other)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Payload, E> {
        Ok(Payload::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Payload, E> {
        Ok(Payload::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Payload, E> {
        Ok(Payload::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Payload, E> {
        Ok(Payload::Other)
    }

    fn visit_str<E>(self, _: &str) -> Result<Payload, E> {
        Ok(Payload::Other)
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PayloadVisitor)
    }
}
