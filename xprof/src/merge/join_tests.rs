//! Processes of a host in one trace can be told apart, and their devices are counted on.

use std::{
    collections::{BTreeSet, HashMap},
    io::{self, Cursor},
};

use prost::Message;
use proto::tensorflow::profiler::{
    XEvent, XEventMetadata, XLine, XPlane, XSpace, XStat, XStatMetadata, x_event, x_stat::Value,
};

use super::*;
use crate::input::ReadSeek;

struct Bytes(Vec<u8>);

impl Input for Bytes {
    fn name(&self) -> String {
        "trace".to_owned()
    }

    fn open(&self) -> io::Result<Box<dyn ReadSeek>> {
        Ok(Box::new(Cursor::new(self.0.clone())))
    }
}

const START_NS: u64 = 1_790_000_000_000_000_000;

fn stat(id: i64, value: Value) -> XStat {
    XStat { metadata_id: id, value: Some(value) }
}

fn names(names: &[(i64, &str)]) -> HashMap<i64, XStatMetadata> {
    names
        .iter()
        .map(|&(id, name)| (id, XStatMetadata { id, name: name.to_owned(), ..XStatMetadata::default() }))
        .collect()
}

/// The numbers in `core_details` of a core: its ordinal and its chip.
fn details(ordinal: u64, chip: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::string::encode(1, &"host".to_owned(), &mut bytes);
    for (field, value) in [(2, ordinal), (4, chip), (5, chip)] {
        if value > 0 {
            prost::encoding::uint64::encode(field, &value, &mut bytes);
        }
    }
    bytes
}

fn device(ordinal: u64, chip: u64) -> XPlane {
    XPlane {
        id: 2 + 8 * i64::try_from(ordinal).unwrap(),
        name: format!("/device:TPU:{ordinal}"),
        stat_metadata: names(&[(1, "core_details")]),
        stats: vec![stat(1, Value::BytesValue(details(ordinal, chip)))],
        ..XPlane::default()
    }
}

/// A process with the cores 0 and 1 of one chip, whose thread launches on both.
fn process(after_ns: u64, event: &str) -> Vec<u8> {
    let launch = |ordinal: i64| XEvent {
        metadata_id: 5,
        data: Some(x_event::Data::OffsetPs(1000 * ordinal)),
        duration_ps: 10,
        stats: vec![stat(3, Value::Int64Value(ordinal))],
    };
    let line =
        XLine { id: 77, name: "python".to_owned(), events: vec![launch(0), launch(1)], ..XLine::default() };
    let metadata = XEventMetadata { id: 5, name: event.to_owned(), ..XEventMetadata::default() };
    let host = XPlane {
        id: 1,
        name: "/host:CPU".to_owned(),
        lines: vec![line],
        event_metadata: HashMap::from([(5, metadata)]),
        stat_metadata: names(&[(3, "device_ordinal")]),
        ..XPlane::default()
    };
    let times = XPlane {
        name: "Task Environment".to_owned(),
        stat_metadata: names(&[(1, "profile_start_time"), (2, "profile_stop_time")]),
        stats: vec![
            stat(1, Value::Uint64Value(START_NS + after_ns)),
            stat(2, Value::Uint64Value(START_NS + 1_000_000_000)),
        ],
        ..XPlane::default()
    };
    let part = XPlane { name: "#Chip0 TPU HBM".to_owned(), ..XPlane::default() };
    let planes = vec![device(0, 0), device(1, 0), host, part, times];
    XSpace { planes, hostnames: vec![format!("host-{event}")], ..XSpace::default() }.encode_to_vec()
}

fn joined(processes: Vec<(Vec<u8>, Option<u32>)>) -> XSpace {
    let inputs: Vec<_> = processes.into_iter().map(|(bytes, chip)| (Bytes(bytes), chip)).collect();
    let label =
        |(at, chip): (usize, Option<u32>)| ProcessLabel { name: format!("pid {at}"), first_chip: chip };
    let labelled: Vec<(&dyn Input, ProcessLabel)> = inputs
        .iter()
        .enumerate()
        .map(|(at, (input, chip))| (input as &dyn Input, label((at, *chip))))
        .collect();
    let mut out = Cursor::new(Vec::new());
    let bytes = join(&labelled, &mut out, &["pid 9 is missing".to_owned()]).unwrap();
    let out = out.into_inner();
    assert_eq!(bytes, out.len() as u64);
    crate::reader::Reader::open(Cursor::new(&out)).expect("our reader opens it");
    XSpace::decode(&out[..]).expect("protobuf opens it")
}

fn plane<'s>(space: &'s XSpace, name: &str) -> &'s XPlane {
    let mut found = space.planes.iter().filter(|plane| plane.name == name);
    let first = found.next().unwrap_or_else(|| panic!("no {name}"));
    assert!(found.next().is_none(), "two of {name}");
    first
}

#[test]
fn devices_are_counted_on_in_the_order_of_the_chips() {
    // The process of chip 0 is the second one, and began first.
    let space = joined(vec![(process(500, "b"), Some(1)), (process(0, "a"), Some(0))]);
    let ids: BTreeSet<i64> = space.planes.iter().map(|plane| plane.id).collect();
    assert_eq!(ids.len(), space.planes.len(), "ids of planes are distinct");
    for ordinal in 0..4 {
        let plane = plane(&space, &format!("/device:TPU:{ordinal}"));
        let wanted = details(ordinal, ordinal / 2);
        let Some(Value::BytesValue(found)) = &plane.stats[0].value else { panic!("{plane:?}") };
        let numbers = |bytes: &[u8]| {
            let mut fields = wire::Fields::new(bytes, 0);
            let mut numbers = BTreeSet::new();
            while let Some(field) = fields.next_field().unwrap() {
                if let wire::FieldValue::Varint(value) = field.value
                    && field.number != 5
                {
                    numbers.insert((field.number, value));
                }
            }
            numbers
        };
        assert_eq!(numbers(found), numbers(&wanted), "{ordinal}");
    }
    plane(&space, "#Chip0 TPU HBM");
    plane(&space, "#Chip1 TPU HBM");
    let host = plane(&space, "/host:CPU");
    let lines: Vec<&XLine> = host.lines.iter().collect();
    assert_eq!(
        lines.iter().map(|line| line.name.as_str()).collect::<Vec<_>>(),
        ["python [pid 1]", "python [pid 0]"]
    );
    assert_ne!(lines[0].id, lines[1].id);
    let ordinals = |line: &XLine| -> Vec<String> {
        line.events
            .iter()
            .map(|event| {
                let name = &host.event_metadata[&event.metadata_id].name;
                let [XStat { metadata_id, value: Some(Value::Int64Value(ordinal)) }] = &event.stats[..]
                else {
                    panic!("{event:?}")
                };
                assert_eq!(host.stat_metadata[metadata_id].name, "device_ordinal");
                format!("{name} {ordinal}")
            })
            .collect()
    };
    assert_eq!(ordinals(lines[0]), ["a 0", "a 1"]);
    assert_eq!(ordinals(lines[1]), ["b 2", "b 3"]);
    assert_eq!(lines[1].timestamp_ns - lines[0].timestamp_ns, 500, "on one time line");
    assert_eq!((space.hostnames.len(), &space.warnings[..]), (1, &["pid 9 is missing".to_owned()][..]));
    let times = plane(&space, "Task Environment");
    assert!(times.stats.contains(&stat(1, Value::Uint64Value(START_NS))), "{times:?}");
}

#[test]
fn processes_of_unknown_chips_come_last_and_in_order() {
    let space = joined(vec![(process(0, "a"), None), (process(1, "b"), Some(7)), (process(2, "c"), None)]);
    for ordinal in 0..6 {
        plane(&space, &format!("/device:TPU:{ordinal}"));
    }
    let host = plane(&space, "/host:CPU");
    let first = |name: &str| {
        let line = host.lines.iter().find(|line| line.name == format!("python [{name}]")).unwrap();
        line.events[0].stats[0].value.clone()
    };
    assert_eq!(first("pid 1"), Some(Value::Int64Value(0)));
    assert_eq!(first("pid 0"), Some(Value::Int64Value(2)));
    assert_eq!(first("pid 2"), Some(Value::Int64Value(4)));
}
