//! Planes whose times cannot be true are named and left out: the figures of the others stay as they are.

use std::io::Cursor;

use prost::Message;
use proto::tensorflow::profiler::{
    XEvent, XEventMetadata, XLine, XPlane, XSpace, XStat, XStatMetadata, x_event::Data, x_stat::Value,
};
use xprof::{
    analysis::{self, HostTrace, Rules},
    export::{ExportedHost, trace_events},
    input::FileInput,
    reader::Reader,
};

const MS: i64 = 1_000_000_000;
fn line(name: &str, at_ns: i64, duration_ps: i64, step: i64, n: i64) -> XLine {
    let event = |at: i64| XEvent {
        metadata_id: 1,
        data: Some(Data::OffsetPs(at * step)),
        duration_ps,
        ..Default::default()
    };
    XLine {
        name: name.into(),
        timestamp_ns: at_ns,
        events: (0..n).map(event).collect(),
        ..Default::default()
    }
}
fn core(ordinal: i64, at_ns: i64, dur: i64) -> XPlane {
    let named = |id: i64, name: &str| (id, XEventMetadata { id, name: name.into(), ..Default::default() });
    XPlane {
        id: ordinal,
        name: format!("/device:TPU:{ordinal}"),
        lines: vec![line("XLA Modules", at_ns, dur, 10 * MS, 50), line("XLA Ops", at_ns, dur, 10 * MS, 50)],
        event_metadata: [named(1, "jit_f(1)")].into(),
        ..Default::default()
    }
}
fn environment(start: u64, stop: u64) -> XPlane {
    let mut plane = XPlane { name: "Task Environment".into(), ..Default::default() };
    for (id, name, ns) in [(1, "profile_start_time", start), (2, "profile_stop_time", stop)] {
        plane.stats.push(XStat { metadata_id: id, value: Some(Value::Uint64Value(ns)) });
        plane.stat_metadata.insert(id, XStatMetadata { id, name: name.into(), ..Default::default() });
    }
    plane
}
fn read(planes: Vec<XPlane>) -> HostTrace {
    let bytes = XSpace { planes, ..Default::default() }.encode_to_vec();
    let mut reader = Reader::open(Cursor::new(bytes)).expect("sound");
    analysis::read(&mut reader, "h", true, "h.xplane.pb", Rules::True).expect("sound")
}

const START: i64 = 1_700_000_000_000_000_000;
/// The begin of the year 2200.
const FAR: i64 = 7_258_118_400_000_000_000;
const FAR_WARNING: &str = "/device:TPU:1: 100 events of 2 lines far outside the session (the first at \
                           2200-01-01T00:00:00Z): left out; the file may be damaged, or a clock is wrong";

fn session() -> XPlane {
    environment(START.cast_unsigned(), START.cast_unsigned() + 1_000_000_000)
}

/// The only core that is left has its own figures.
fn sound_core_is_left(trace: &HostTrace) {
    let cores: Vec<_> = trace.cores.iter().map(|core| (core.plane.as_str(), core.busy_ps)).collect();
    assert_eq!(cores, [("/device:TPU:0", 450 * MS)], "{:?}", trace.warnings);
    assert_eq!(trace.cores[0].steps.len(), 50);
    assert_eq!((trace.cores[0].steps[49].start_ps, trace.cores[0].span_ps), (490 * MS, 499 * MS));
    assert!(
        trace.losses.iter().all(|loss| loss.plane.as_deref() != Some("/device:TPU:1")),
        "{:?}",
        trace.losses
    );
}

#[test]
fn a_plane_of_another_century_is_left_out() {
    for rest in [vec![session()], Vec::new(), {
        let mut start_only = session();
        start_only.stats.truncate(1);
        vec![start_only]
    }] {
        let planes = [core(0, START, 9 * MS), core(1, FAR, 9 * MS)].into_iter().chain(rest).collect();
        let trace = read(planes);
        sound_core_is_left(&trace);
        assert_eq!(trace.left_out, [FAR_WARNING]);
        assert!(trace.warnings.contains(&FAR_WARNING.to_owned()));
    }
    let trace = read(vec![core(1, FAR, 9 * MS), session()]);
    assert_eq!((trace.cores.len(), &trace.left_out[..]), (0, &[FAR_WARNING.to_owned()][..]));
}

#[test]
fn one_line_of_another_century_leaves_the_others() {
    let mut mixed = core(0, START, 9 * MS);
    mixed.lines.push(XLine { id: 9, ..line("XLA TraceMe", FAR, MS, 10 * MS, 50) });
    let trace = read(vec![mixed, session()]);
    sound_core_is_left(&trace);
    assert!(trace.left_out[0].starts_with("/device:TPU:0: 50 events of 1 line far outside"));
}

#[test]
fn programs_that_last_no_time_are_left_out() {
    let trace = read(vec![core(0, START, 9 * MS), core(1, START, 1), session()]);
    let cores: Vec<_> = trace.cores.iter().map(|core| core.plane.as_str()).collect();
    assert_eq!(cores, ["/device:TPU:0"]);
    assert!(
        trace.left_out[0].starts_with("/device:TPU:1: its program runs all last less than a clock cycle")
    );
}

#[test]
fn what_is_only_late_stays() {
    let late = START + 50_000_000_000;
    let trace = read(vec![core(0, START, 9 * MS), core(1, late, 9 * MS), session()]);
    assert_eq!((trace.cores.len(), trace.left_out.len()), (2, 0));
    // Where no line lies within the session its own times may be wrong.
    let shifted =
        environment(START.cast_unsigned() + 3_600_000_000_000, START.cast_unsigned() + 3_601_000_000_000);
    let trace = read(vec![core(0, START, 9 * MS), shifted]);
    assert_eq!((trace.cores.len(), trace.cores[0].busy_ps, trace.left_out.len()), (1, 450 * MS, 0));
}

#[test]
fn an_export_counts_what_it_leaves_out() {
    let bytes = XSpace {
        planes: vec![core(0, START, 9 * MS), core(1, FAR, 9 * MS), session()],
        ..Default::default()
    };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("h.xplane.pb");
    std::fs::write(&path, bytes.encode_to_vec()).expect("space");
    let input = FileInput::new(path);
    let host = ExportedHost { host: "h", input: &input, offset_ps: 0 };
    let mut out = Vec::new();
    let done = trace_events(&[host], &mut out, &mut |_, _| {}).expect("sound");
    assert_eq!((done.events, done.far, done.processes), (100, 100, 1));
    let text = String::from_utf8(out).expect("text");
    assert!(!text.contains("TPU:1"), "the plane is not shown at all");
}
