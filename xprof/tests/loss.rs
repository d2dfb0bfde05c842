//! What a trace lost is told alike while it arrives and when it is read.

use std::io::Cursor;

use prost::Message;
use proto::tensorflow::profiler::{
    XEvent, XEventMetadata, XLine, XPlane, XSpace, XStat, XStatMetadata, x_event::Data, x_stat::Value,
};
use xprof::{
    analysis::{self, HostTrace, Rules},
    check::Checker,
    loss::{Loss, LossKind},
    reader::Reader,
};

const MS: i64 = 1_000_000_000;

fn line(name: &str, duration_ps: i64, events: impl Iterator<Item = (i64, i64)>) -> XLine {
    let event = |(metadata_id, offset)| XEvent {
        metadata_id,
        data: Some(Data::OffsetPs(offset)),
        duration_ps,
        ..Default::default()
    };
    XLine { name: name.into(), events: events.map(event).collect(), ..Default::default() }
}

/// A core that runs a program of four operations each 10 ms, until `last` of them.
fn core(ordinal: i64, last: i64) -> XPlane {
    let named = |id: i64, name: &str| (id, XEventMetadata { id, name: name.into(), ..Default::default() });
    XPlane {
        id: ordinal,
        name: format!("/device:TPU:{ordinal}"),
        lines: vec![
            line("XLA Modules", 10 * MS, (0..last).map(|at| (1, at * 10 * MS))),
            line("XLA Ops", MS / 2, (0..4 * last).map(|at| (2, at * 10 * MS / 4))),
        ],
        event_metadata: [named(1, "jit_f(1)"), named(2, "fusion.1")].into(),
        ..Default::default()
    }
}

/// A session of one second.
fn environment() -> XPlane {
    let mut plane = XPlane { name: "Task Environment".into(), ..Default::default() };
    for (id, name, ns) in [
        (1, "profile_start_time", 1_700_000_000_000_000_000_u64),
        (2, "profile_stop_time", 1_700_000_001_000_000_000),
    ] {
        plane.stats.push(XStat { metadata_id: id, value: Some(Value::Uint64Value(ns)) });
        plane.stat_metadata.insert(id, XStatMetadata { id, name: name.into(), ..Default::default() });
    }
    plane
}

fn both(planes: Vec<XPlane>) -> (Vec<Loss>, HostTrace) {
    let bytes = XSpace { planes, ..Default::default() }.encode_to_vec();
    let mut checker = Checker::new(bytes.len() as u64);
    bytes.chunks(1000).for_each(|piece| checker.push(piece).expect("sound"));
    let mut reader = Reader::open(Cursor::new(bytes)).expect("sound");
    let trace = analysis::read(&mut reader, "h", true, "h.xplane.pb", Rules::True).expect("sound");
    (checker.finish().expect("sound").losses(), trace)
}

fn kinds(trace: &HostTrace) -> Vec<(LossKind, &str)> {
    trace.losses.iter().map(|loss| (loss.kind, loss.plane.as_deref().unwrap_or_default())).collect()
}

#[test]
fn both_say_the_same() {
    let mut dropped = core(1, 99);
    let mark = XEventMetadata { id: 9, name: "Trace Buffers Dropped".into(), ..Default::default() };
    dropped.event_metadata.insert(9, mark);
    dropped.lines.push(line("XLA TraceMe", 0, [(9, 400 * MS), (9, 300 * MS)].into_iter()));
    dropped.stats.push(XStat { metadata_id: 3, value: Some(Value::Uint64Value(4)) });
    let name = XStatMetadata { id: 3, name: "dropped_traces".into(), ..Default::default() };
    dropped.stat_metadata.insert(3, name);
    let (arrived, trace) = both(vec![core(0, 100), dropped, core(2, 30), environment()]);
    assert_eq!(
        kinds(&trace),
        [
            (LossKind::DroppedBuffers, "/device:TPU:1"),
            (LossKind::DroppedTraces, "/device:TPU:1"),
            (LossKind::FewEvents, "/device:TPU:2"),
            (LossKind::EndsEarly, "/device:TPU:2"),
        ]
    );
    assert_eq!((trace.losses[0].count, trace.losses[0].first_ps), (Some(2), Some(300 * MS)));
    let messages = |losses: &[Loss]| losses.iter().map(|loss| loss.message.clone()).collect::<Vec<_>>();
    assert_eq!(messages(&arrived), messages(&trace.losses));
    assert_eq!(trace.warnings[..4], messages(&arrived), "and among the warnings they come first");
}

#[test]
fn a_whole_trace_lost_nothing() {
    let (arrived, trace) = both(vec![core(0, 100), core(1, 99), environment()]);
    assert_eq!((arrived, trace.losses), (vec![], vec![]));
}

#[test]
fn a_host_that_launched_programs_has_a_device() {
    let mut host = XPlane { name: "/host:CPU".into(), ..Default::default() };
    let launch = XEventMetadata { id: 1, name: "DoEnqueueProgram".into(), ..Default::default() };
    host.event_metadata.insert(1, launch);
    host.lines.push(line("main", MS, [(1, 0)].into_iter()));
    let (arrived, mut trace) = both(vec![host, environment()]);
    assert_eq!(arrived, trace.losses);
    assert_eq!(trace.losses[0].kind, LossKind::NoDevicePlane);
    // Unless nobody asked for it.
    assert!(trace.warnings.contains(&trace.losses[0].message));
    trace.forget_losses_of_all_devices();
    assert_eq!(trace.losses, []);
    assert!(
        trace.warnings.iter().all(|warning| !warning.contains("launched programs")),
        "{:?}",
        trace.warnings
    );
}

#[test]
fn planes_without_events_are_no_device() {
    let mut host = XPlane { name: "/host:CPU".into(), ..Default::default() };
    let launch = XEventMetadata { id: 1, name: "DoEnqueueProgram".into(), ..Default::default() };
    host.event_metadata.insert(1, launch);
    host.lines.push(line("main", MS, [(1, 0)].into_iter()));
    let (arrived, trace) = both(vec![host.clone(), core(0, 0), core(1, 0), environment()]);
    assert_eq!(arrived, trace.losses);
    assert_eq!(kinds(&trace), [(LossKind::NoDeviceEvents, "")]);
    let (arrived, trace) = both(vec![host, core(0, 100), core(1, 0), environment()]);
    assert_eq!((arrived, trace.losses), (vec![], vec![]));
}

#[test]
fn a_hole_is_seen_by_what_other_cores_ran() {
    let mut holed = core(1, 100);
    for line in &mut holed.lines {
        line.events.retain(
            |event| !matches!(event.data, Some(Data::OffsetPs(at)) if (300 * MS..420 * MS).contains(&at)),
        );
    }
    let (_, trace) = both(vec![core(0, 100), holed, core(2, 100), environment()]);
    assert_eq!(kinds(&trace), [(LossKind::MissingRuns, "/device:TPU:1")]);
    assert_eq!((trace.losses[0].count, trace.losses[0].first_ps), (Some(12), Some(300 * MS)));
}

#[test]
fn programs_without_their_operations_are_told() {
    let mut cut = core(1, 100);
    cut.lines[1].events.truncate(360);
    let (_, trace) = both(vec![core(0, 100), cut, environment()]);
    assert_eq!(kinds(&trace), [(LossKind::MissingOperations, "/device:TPU:1")]);
    assert_eq!((trace.losses[0].count, trace.losses[0].first_ps), (Some(10), Some(900 * MS)));
}

#[test]
fn events_far_outside_the_session_are_left_out() {
    for far in [i64::MAX, i64::MIN + 1, -1_000_000 * MS, 1_000_000 * MS] {
        let mut flipped = core(1, 100);
        flipped.lines[1].events[5].data = Some(Data::OffsetPs(far));
        let (arrived, trace) = both(vec![core(0, 100), flipped, environment()]);
        assert_eq!((arrived, &trace.losses), (vec![], &vec![]), "{far}");
        assert_eq!(trace.cores[1].span_ps, trace.cores[0].span_ps, "{far}");
        let told = |warning: &String| {
            warning.starts_with("/device:TPU:1: events far outside the session are left out (1)")
        };
        assert!(trace.warnings.iter().any(told), "{:?}", trace.warnings);
    }
}

#[test]
fn a_device_that_is_not_read_is_named_and_launches_are_no_operations() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/data/golden/field/gpu_trace_shows_launches/host-g.xplane.pb"
    );
    let mut reader = Reader::open(std::fs::File::open(path).expect("vendored")).expect("sound");
    let trace = analysis::read(&mut reader, "h", true, "h", Rules::True).expect("sound");
    let report = analysis::session("s".into(), vec![trace], vec![], Rules::True, None);
    assert!(report.hosts[0].top_ops.is_empty());
    let named = |warning: &String| warning.contains("/device:GPU:0 is not read");
    assert!(report.hosts[0].warnings.iter().any(named), "{:?}", report.hosts[0].warnings);
}

/// Figures of real hardware; see tests/data/README.md.
#[test]
fn real_traces_lost_nothing() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/real");
    if !folder.exists() {
        eprintln!("SKIPPED: {} is not there", folder.display());
        return;
    }
    for file in ["v6e-4-inference.xplane.pb", "v7x-2core-serving.xplane.pb"] {
        let mut reader = Reader::open(std::fs::File::open(folder.join(file)).expect(file)).expect("sound");
        let trace = analysis::read(&mut reader, "h", true, file, Rules::True).expect("sound");
        assert_eq!(trace.losses, [], "{file}");
    }
}
