//! The JSON holds every event of the trace, where and when the trace has it.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    io::{self, Cursor, Read, Seek, SeekFrom},
    rc::Rc,
};

use prost::Message;
use proto::tensorflow::profiler::{
    XEvent, XEventMetadata, XLine, XPlane, XSpace, XStat, XStatMetadata, x_event, x_stat,
};
use serde_json::Value;

use super::*;
use crate::input::{FileInput, Input, ReadSeek};

struct Bytes(Vec<u8>);

impl Input for Bytes {
    fn name(&self) -> String {
        "bytes".to_owned()
    }

    fn open(&self) -> io::Result<Box<dyn ReadSeek>> {
        Ok(Box::new(Cursor::new(self.0.clone())))
    }
}

fn exported(hosts: &[ExportedHost<'_>]) -> (Value, TraceEvents) {
    let mut out = Vec::new();
    let done = trace_events(hosts, &mut out, &mut |done, all| assert!(done <= all)).unwrap();
    (serde_json::from_slice(&out).unwrap(), done)
}

fn events<'v>(json: &'v Value, phase: &str) -> Vec<&'v Value> {
    json["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == phase).collect()
}

fn vector(case: &str, host: &str) -> FileInput {
    FileInput::new(format!(
        "{}/../tests/data/golden/xplane/{case}/{host}.xplane.pb",
        env!("CARGO_MANIFEST_DIR")
    ))
}

fn whole_ns(micros: &Value) -> i64 {
    (micros.as_f64().unwrap() * 1000.0).round() as i64
}

/// Process name, event name, start and end in whole ns of every event, as a plain decoder sees them.
fn truth(bytes: &[u8], host: &str) -> BTreeMap<(String, String, i64, i64), usize> {
    let mut truth = BTreeMap::new();
    for plane in XSpace::decode(bytes).unwrap().planes {
        for line in &plane.lines {
            for event in &line.events {
                let offset = match event.data {
                    Some(x_event::Data::OffsetPs(offset)) => offset,
                    _ => 0,
                };
                let start = line.timestamp_ns * 1000 + offset;
                let entry = &plane.event_metadata[&event.metadata_id];
                let name = if entry.display_name.is_empty() { &entry.name } else { &entry.display_name };
                let name: String = name.chars().take(256).collect();
                let key = (
                    format!("{host} {}", plane.name),
                    name,
                    start / 1000,
                    (start + event.duration_ps) / 1000,
                );
                *truth.entry(key).or_default() += 1;
            }
        }
    }
    truth
}

#[test]
fn every_event_of_every_vector_is_there() {
    let vectors = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/golden/xplane");
    for case in std::fs::read_dir(vectors).unwrap() {
        for file in std::fs::read_dir(case.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            if !path.to_string_lossy().ends_with(".xplane.pb") {
                continue;
            }
            let bytes = std::fs::read(&path).unwrap();
            let (json, done) =
                exported(&[ExportedHost { host: "h", input: &FileInput::new(&path), offset_ps: 0 }]);
            let processes: BTreeMap<_, _> = events(&json, "M")
                .into_iter()
                .filter(|event| event["name"] == "process_name")
                .map(|event| (event["pid"].as_u64(), event["args"]["name"].as_str().unwrap().to_owned()))
                .collect();
            let mut found = BTreeMap::new();
            for event in events(&json, "X") {
                let (start, length) = (whole_ns(&event["ts"]), whole_ns(&event["dur"]));
                let process = processes[&event["pid"].as_u64()].clone();
                let name = event["name"].as_str().unwrap().to_owned();
                *found.entry((process, name, start, start + length)).or_default() += 1;
            }
            assert_eq!(found, truth(&bytes, "h"), "{}", path.display());
            assert_eq!(done.events, found.values().sum::<usize>() as u64);
        }
    }
}

/// Where the line's clock jumps, operations, programs and steps lie by the device's clock.
#[test]
fn events_of_a_core_whose_line_jumps_are_moved() {
    for case in ["clock_jumps", "clock_jumps_steps"] {
        let folder = format!("{}/../tests/data/golden/xplane_clock/{case}", env!("CARGO_MANIFEST_DIR"));
        let truth: Value =
            serde_json::from_slice(&std::fs::read(format!("{folder}/truth.json")).unwrap()).unwrap();
        let input = FileInput::new(format!("{folder}/t1v-n-jjjj-w-0.xplane.pb"));
        let (json, _) = exported(&[ExportedHost { host: "h", input: &input, offset_ps: 0 }]);
        let mut runs: Vec<i64> = events(&json, "X")
            .into_iter()
            .filter(|event| event["name"].as_str().is_some_and(|name| name.starts_with("jit_train_step")))
            .map(|event| whole_ns(&event["dur"]))
            .collect();
        let mut wanted: Vec<i64> = truth["hosts"][0]["cores"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|core| core["runs"].as_array().unwrap())
            // On the time line of the host, whose clock runs 14 ppm faster.
            .map(|run| (run["duration_ps"].as_f64().unwrap() * (1.0 + 14e-6) / 1000.0) as i64)
            .collect();
        runs.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(runs.len(), wanted.len());
        assert!(runs.iter().zip(&wanted).all(|(run, wanted)| (run - wanted).abs() <= 2), "{case}");
        let ops: i64 = events(&json, "X")
            .into_iter()
            .filter(|event| {
                ["copy-done.1", "fusion.1", "convolution.2"].iter().any(|op| event["name"] == *op)
            })
            .map(|event| whole_ns(&event["dur"]))
            .sum();
        assert!((ops - wanted.iter().sum::<i64>()).abs() < 3 * wanted.len() as i64, "{case}");
    }
}

/// A viewer drops a slice that overlaps another one of its track without nesting.
#[test]
fn slices_of_a_track_nest() {
    for case in ["async_overlap", "collective_heavy", "straggler_4core"] {
        let host =
            std::fs::read_dir(format!("{}/../tests/data/golden/xplane/{case}", env!("CARGO_MANIFEST_DIR")))
                .unwrap()
                .find_map(|file| {
                    Some(file.unwrap().file_name().to_str()?.strip_suffix(".xplane.pb")?.to_owned())
                })
                .unwrap();
        let (json, done) = exported(&[ExportedHost { host: "h", input: &vector(case, &host), offset_ps: 0 }]);
        let mut tracks = BTreeMap::<_, Vec<(i64, i64)>>::new();
        for event in events(&json, "X") {
            let (start, length) = (whole_ns(&event["ts"]), whole_ns(&event["dur"]));
            tracks.entry(event["tid"].as_u64()).or_default().push((start, start + length));
        }
        assert_eq!(done.overfull, 0);
        for (tid, mut slices) in tracks {
            slices.sort_by_key(|&(start, end)| (start, -end));
            let mut open: Vec<i64> = Vec::new();
            for (start, end) in slices {
                open.retain(|&last| last > start);
                assert!(open.iter().all(|&last| end <= last), "{case}: thread {tid:?} at {start} ns");
                open.push(end);
            }
        }
    }
}

/// Nor does it matter in which order the line has them.
#[test]
fn slices_out_of_order_nest_all_the_same() {
    let at = |(start, end): (i64, i64)| XEvent {
        metadata_id: 1,
        data: Some(x_event::Data::OffsetPs(start * 1000)),
        duration_ps: (end - start) * 1000,
        ..XEvent::default()
    };
    let line = XLine { events: [(40, 100), (0, 60), (45, 50)].map(at).into(), ..XLine::default() };
    let plane = XPlane { name: "/device:TPU:0".to_owned(), lines: vec![line], ..XPlane::default() };
    let space = XSpace { planes: vec![plane], ..XSpace::default() };
    let (json, done) =
        exported(&[ExportedHost { host: "h", input: &Bytes(space.encode_to_vec()), offset_ps: 0 }]);
    let threads: Vec<_> = events(&json, "X").into_iter().map(|event| event["tid"].as_u64()).collect();
    assert_ne!(threads[0], threads[1]);
    assert_eq!(threads[1], threads[2], "nested in the first that began");
    assert_eq!((done.threads, done.overfull), (2, 0));
}

#[test]
fn hosts_lie_on_one_time_line() {
    let inputs = ["t1v-n-cccc-w-0", "t1v-n-cccc-w-1"].map(|host| vector("two_hosts_skew", host));
    let start_of = |json: &Value, host: &str| {
        let of_host = |event: &&Value| {
            event["name"] == "process_name" && event["args"]["name"].as_str().unwrap().starts_with(host)
        };
        let pids: BTreeSet<_> =
            events(json, "M").into_iter().filter(of_host).map(|event| event["pid"].as_u64()).collect();
        events(json, "X")
            .into_iter()
            .filter(|event| pids.contains(&event["pid"].as_u64()))
            .map(|event| whole_ns(&event["ts"]))
            .min()
            .unwrap()
    };
    let at = |a: i64, b: i64| {
        let (json, _) = exported(&[
            ExportedHost { host: "w0", input: &inputs[0], offset_ps: a },
            ExportedHost { host: "w1", input: &inputs[1], offset_ps: b },
        ]);
        (start_of(&json, "w0"), start_of(&json, "w1"))
    };
    let (first, second) = at(0, 0);
    assert_eq!(at(-7_000_000, 5_000_000), (first, second + 12_000));
    assert_eq!(at(5_000_000, -7_000_000), (first + 12_000, second));
}

/// How many files are open, and the most that were.
#[derive(Default)]
struct Open(Cell<usize>, Cell<usize>);

struct Counted(Vec<u8>, Rc<Open>);

struct CountedFile(Cursor<Vec<u8>>, Rc<Open>);

impl Input for Counted {
    fn name(&self) -> String {
        "counted".to_owned()
    }

    fn open(&self) -> io::Result<Box<dyn ReadSeek>> {
        let Open(now, most) = &*self.1;
        now.set(now.get() + 1);
        most.set(most.get().max(now.get()));
        Ok(Box::new(CountedFile(Cursor::new(self.0.clone()), self.1.clone())))
    }
}

impl Read for CountedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Seek for CountedFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

impl Drop for CountedFile {
    fn drop(&mut self) {
        self.1.0.set(self.1.0.get() - 1);
    }
}

#[test]
fn many_hosts_need_few_open_files() {
    let bytes = std::fs::read(vector("steady_1core", "t1v-n-aaaa-w-0").path()).unwrap();
    let (_, one) = exported(&[ExportedHost { host: "h", input: &Bytes(bytes.clone()), offset_ps: 0 }]);
    let open = Rc::new(Open::default());
    let input = Counted(bytes, open.clone());
    let (_, done) = exported(&[(); 20].map(|()| ExportedHost { host: "h", input: &input, offset_ps: 0 }));
    assert_eq!((done.processes, done.events), (20 * one.processes, 20 * one.events));
    assert_eq!(open.1.get(), 1);
}

#[test]
fn names_and_values_are_shown_as_they_are_or_not_at_all() {
    let mut space =
        XSpace::decode(&std::fs::read(vector("steady_1core", "t1v-n-aaaa-w-0").path()).unwrap()[..]).unwrap();
    let plane = space.planes.iter_mut().find(|plane| plane.name == "/host:CPU").unwrap();
    let nasty = "a\"b\\c\n\u{1b}</script>\u{2028}é";
    plane.lines.truncate(1);
    plane.lines[0].events.truncate(1);
    plane.lines[0].name = nasty.to_owned();
    let event = &mut plane.lines[0].events[0];
    plane.event_metadata.get_mut(&event.metadata_id).unwrap().name = nasty.to_owned();
    let id = *plane.stat_metadata.keys().next().unwrap();
    plane.stat_metadata.get_mut(&id).unwrap().name = nasty.to_owned();
    let values = [
        (x_stat::Value::StrValue("x".repeat(9999)), Value::from("x".repeat(256))),
        (x_stat::Value::Int64Value(i64::MIN), Value::from(i64::MIN.to_string())),
        (x_stat::Value::Int64Value(-5), Value::from(-5)),
        (x_stat::Value::Uint64Value(u64::MAX), Value::from(u64::MAX.to_string())),
        (x_stat::Value::DoubleValue(0.5), Value::from(0.5)),
        (x_stat::Value::DoubleValue(f64::NAN), Value::Null),
        (x_stat::Value::BytesValue(vec![0; 99]), Value::Null),
        (x_stat::Value::RefValue(1 << 60), Value::Null),
    ];
    for (value, shown) in values {
        let plane = space.planes.iter_mut().find(|plane| plane.name == "/host:CPU").unwrap();
        plane.lines[0].events[0].stats =
            vec![proto::tensorflow::profiler::XStat { metadata_id: id, value: Some(value) }];
        let only_host = XSpace { planes: vec![plane.clone()], ..XSpace::default() };
        let (json, _) =
            exported(&[ExportedHost { host: nasty, input: &Bytes(only_host.encode_to_vec()), offset_ps: 0 }]);
        let event = events(&json, "X")[0];
        assert_eq!(event["name"], nasty);
        assert_eq!(event["args"][nasty], shown);
    }
}

#[test]
fn damage_is_an_error_that_names_the_file() {
    let whole = std::fs::read(vector("steady_1core", "t1v-n-aaaa-w-0").path()).unwrap();
    let failed = |bytes: &[u8]| {
        let input = Bytes(bytes.to_owned());
        trace_events(
            &[ExportedHost { host: "h", input: &input, offset_ps: 0 }],
            &mut io::sink(),
            &mut |_, _| {},
        )
        .map_err(|error| error.to_string())
    };
    assert!(failed(&whole[..whole.len() / 2]).unwrap_err().starts_with("bytes: damaged at byte "));
    let missing = FileInput::new("/nowhere/x.xplane.pb");
    let error = trace_events(
        &[ExportedHost { host: "h", input: &missing, offset_ps: 0 }],
        &mut io::sink(),
        &mut |_, _| {},
    )
    .unwrap_err();
    assert!(error.to_string().starts_with("cannot read /nowhere/x.xplane.pb: "), "{error}");
}

#[test]
fn tables_hold_every_step_and_operation() {
    use crate::{analysis, reader::Reader};

    let hosts = ["t1v-n-cccc-w-0", "t1v-n-cccc-w-1"].map(|host| {
        let file = std::fs::File::open(vector("two_hosts_skew", host).path()).unwrap();
        let mut reader = Reader::open(file).unwrap();
        // A name that needs quotes, and one that a spreadsheet would take for a formula, stay what they are.
        let name = if host.ends_with('0') { "w \"0\", the first" } else { "=1+1" };
        analysis::read(&mut reader, name, true, host, analysis::Rules::True).unwrap()
    });
    let report = analysis::session("s".to_owned(), hosts.into(), vec![], analysis::Rules::True, None);
    let table = |write: fn(&analysis::Report, &mut dyn io::Write) -> io::Result<()>| {
        let mut out = Vec::new();
        write(&report, &mut out).unwrap();
        let mut reader = ::csv::Reader::from_reader(&out[..]);
        reader.deserialize().map(|row| row.unwrap()).collect::<Vec<BTreeMap<String, String>>>()
    };
    let (steps, operations) = (table(steps_csv), table(operations_csv));
    let expected: usize = report
        .hosts
        .iter()
        .map(|host| host.host_steps.len() + host.cores.iter().map(|core| core.steps.len()).sum::<usize>())
        .sum();
    assert!(expected > 10);
    assert_eq!(steps.len(), expected);
    assert_eq!(operations.len(), report.hosts.iter().map(|host| host.top_ops.len()).sum::<usize>());
    let core = &report.hosts[1].cores[0];
    let offset = report.alignment.offsets[1].offset_ps;
    assert_ne!(offset, 0, "the vector's clocks differ");
    let found = steps.iter().any(|row| {
        row["host"] == "=1+1"
            && row["plane"] == core.plane
            && row["start_ps"] == core.steps[0].start_ps.to_string()
            && row["duration_ps"] == core.steps[0].duration_ps.to_string()
            && row["aligned_start_ps"] == (core.steps[0].start_ps + offset).to_string()
    });
    assert!(found, "{:?}", core.steps[0]);
    let op = &report.hosts[0].top_ops[0];
    assert!(operations.iter().any(|row| row["host"] == "w \"0\", the first"
        && row["time_ps"] == op.time_ps.to_string()
        && row["program"] == "jit_train_step"
        && Some(&row["program_id"]) == op.program_id.as_ref()
        && Some(&row["source"]) == op.source.as_ref()
        && row["flops"] == op.flops.map(|flops| flops.to_string()).unwrap_or_default()));
    assert!(steps.iter().filter(|row| row["kind"] == "core").all(|row| row["program"] == "jit_train_step"));
}

/// An asynchronous operation has no device time: it starts and ends with operations that have.
#[test]
fn asynchronous_operations_end_with_their_operations() {
    let path = format!(
        "{}/../tests/data/golden/xplane_clock/clock_jumps/t1v-n-jjjj-w-0.xplane.pb",
        env!("CARGO_MANIFEST_DIR")
    );
    let mut space = XSpace::decode(&*std::fs::read(path).unwrap()).unwrap();
    let plane = space.planes.iter_mut().find(|plane| plane.name == "/device:TPU:0").unwrap();
    let stat = XStatMetadata { id: 900, name: "hlo_op".into(), ..XStatMetadata::default() };
    plane.stat_metadata.insert(900, stat);
    let named = XEventMetadata {
        id: 900,
        name: "%copy-done.1 = f32[2] copy-done(%copy-start.1)".into(),
        display_name: "async-copy".into(),
        ..XEventMetadata::default()
    };
    plane.event_metadata.insert(900, named);
    let is_copy = |entry: &XEventMetadata| entry.name.contains("copy-done.1") && entry.id != 900;
    let copies: Vec<i64> =
        plane.event_metadata.values().filter(|entry| is_copy(entry)).map(|entry| entry.id).collect();
    let ops = plane.lines.iter().find(|line| line.name == "XLA Ops").unwrap();
    let asynchronous = |event: &XEvent| XEvent {
        metadata_id: 900,
        stats: vec![XStat { metadata_id: 900, value: Some(x_stat::Value::StrValue("copy-done.1".into())) }],
        ..event.clone()
    };
    let line = XLine {
        id: 99,
        name: "Async XLA Ops".into(),
        events: ops
            .events
            .iter()
            .filter(|event| copies.contains(&event.metadata_id))
            .map(asynchronous)
            .collect(),
        ..ops.clone()
    };
    plane.lines.push(line);
    let (json, _) =
        exported(&[ExportedHost { host: "h", input: &Bytes(space.encode_to_vec()), offset_ps: 0 }]);
    let process =
        events(&json, "M").into_iter().find(|event| event["args"]["name"] == "h /device:TPU:0").unwrap();
    let slices = |name: &str| -> BTreeSet<(i64, i64)> {
        let of_core = |event: &&Value| event["pid"] == process["pid"] && event["name"] == name;
        let slices = events(&json, "X").into_iter().filter(of_core);
        slices.map(|event| (whole_ns(&event["ts"]), whole_ns(&event["dur"]))).collect()
    };
    assert!(!slices("async-copy").is_empty());
    assert_eq!(slices("async-copy"), slices("copy-done.1"));
}
