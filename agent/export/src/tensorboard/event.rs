//! The messages of an event file, with the fields that scalars need (`tensorboard/compat/proto/event.proto`).

use prost::Message;

use super::{record, scalars::ScalarGroup};

/// The version of the format, in the first event of each file.
const FILE_VERSION: &str = "brain.Event:2";

/// What `file_version` and `summary` are a choice of has no other members here.
#[derive(Clone, PartialEq, Message)]
struct BoardEvent {
    /// Seconds since the epoch.
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<ScalarSummary>,
}

#[derive(Clone, PartialEq, Message)]
struct ScalarSummary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<SummaryValue>,
}

#[derive(Clone, PartialEq, Message)]
struct SummaryValue {
    #[prost(string, tag = "1")]
    tag: String,
    /// Present also where it is 0.
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

/// The record that begins a file at `wall_time`, in seconds since the epoch.
pub(super) fn first_record(wall_time: f64) -> Vec<u8> {
    let file_version = Some(FILE_VERSION.to_owned());
    let mut records = Vec::new();
    record::push(
        &BoardEvent { wall_time, file_version, ..BoardEvent::default() }.encode_to_vec(),
        &mut records,
    );
    records
}

/// The records of scalars that were computed at `wall_time`. A group without a finite value has none.
pub(super) fn records(groups: &[ScalarGroup], wall_time: f64) -> Vec<u8> {
    let mut records = Vec::new();
    for group in groups {
        let finite = group.values.iter().filter(|(_, value)| value.is_finite());
        let value: Vec<SummaryValue> = finite.map(|(tag, value)| scalar(tag, *value)).collect();
        if !value.is_empty() {
            let event = BoardEvent {
                wall_time,
                step: group.step,
                summary: Some(ScalarSummary { value }),
                ..BoardEvent::default()
            };
            record::push(&event.encode_to_vec(), &mut records);
        }
    }
    records
}

#[expect(clippy::cast_possible_truncation, reason = "TensorBoard keeps scalars as f32")]
fn scalar(tag: &str, value: f64) -> SummaryValue {
    SummaryValue { tag: clean(tag), simple_value: Some(value as f32) }
}

/// A tag as TensorBoard's writers make it: other characters than letters, digits, `-`, `_`, `.` and `/` are `_`.
fn clean(tag: &str) -> String {
    let allowed = |c: char| c.is_alphanumeric() || "-_./".contains(c);
    let clean: String = tag.chars().map(|c| if allowed(c) { c } else { '_' }).collect();
    clean.trim_start_matches('/').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The data of each record.
    fn events(mut records: &[u8]) -> Vec<BoardEvent> {
        let mut events = Vec::new();
        while !records.is_empty() {
            let length = usize::try_from(u64::from_le_bytes(records[..8].try_into().unwrap())).unwrap();
            events.push(BoardEvent::decode(&records[12..12 + length]).unwrap());
            records = &records[12 + length + 4..];
        }
        events
    }

    #[test]
    fn a_file_begins_with_its_version() {
        let first = events(&first_record(1.5e9));
        assert_eq!((first[0].wall_time, first[0].step), (1.5e9, 0));
        assert_eq!(first[0].file_version.as_deref(), Some("brain.Event:2"));
    }

    #[test]
    fn zero_is_a_value_and_what_is_not_finite_is_none() {
        let group = |step, values: &[(&str, f64)]| ScalarGroup {
            step,
            values: values.iter().map(|(tag, value)| ((*tag).to_owned(), *value)).collect(),
        };
        let groups = [
            group(7, &[("goodput/goodput", 0.0), ("badput/other", f64::NAN)]),
            group(8, &[("x", f64::INFINITY)]),
            group(-1, &[("/badput/custom_badput_events/a b\u{1b}é", 2.5)]),
        ];
        let events = events(&records(&groups, 3.0));
        assert_eq!(events.len(), 2);
        let values = |event: &BoardEvent| event.summary.clone().unwrap().value;
        assert_eq!(events[0].step, 7);
        assert_eq!(
            values(&events[0]),
            [SummaryValue { tag: "goodput/goodput".into(), simple_value: Some(0.0) }]
        );
        assert_eq!(events[1].step, -1);
        assert_eq!(values(&events[1])[0].tag, "badput/custom_badput_events/a_b_é");
    }
}
