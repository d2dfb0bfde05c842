//! The checker on made traces, cut and changed anywhere.

use proptest::prelude::*;
use prost::Message;
use proto::tensorflow::profiler::{
    XEvent, XEventMetadata, XLine, XPlane, XSpace, XStat, XStatMetadata, x_event, x_stat::Value,
};

use super::*;
use crate::loss::LossKind;

fn check(bytes: &[u8], piece: usize) -> Result<TraceSummary, Damage> {
    let mut checker = Checker::new(bytes.len() as u64);
    for piece in bytes.chunks(piece) {
        checker.push(piece)?;
    }
    checker.finish()
}

fn task_environment() -> XPlane {
    let mut plane = XPlane { name: "Task Environment".into(), ..XPlane::default() };
    for (id, name, value) in [
        (7, "profile_start_time", 1_700_000_000_000_000_000),
        (3, "profile_stop_time", 1_700_000_002_000_000_000),
    ] {
        plane.stats.push(XStat { metadata_id: id, value: Some(Value::Uint64Value(value)) });
        plane.stat_metadata.insert(id, XStatMetadata { id, name: name.into(), ..Default::default() });
    }
    plane
}

fn event(offset: i64, duration: i64) -> XEvent {
    XEvent {
        metadata_id: 1,
        data: Some(x_event::Data::OffsetPs(offset)),
        duration_ps: duration,
        stats: vec![XStat { metadata_id: 9, value: Some(Value::StrValue("x".into())) }],
    }
}

fn sample() -> XSpace {
    let device = XPlane {
        id: 2,
        name: "/device:TPU:0".into(),
        lines: vec![
            XLine { events: vec![event(5, 10), event(1_000, 2)], ..Default::default() },
            XLine {
                timestamp_ns: 1_700_000_001_000_000_000,
                events: vec![event(0, 1)],
                ..Default::default()
            },
        ],
        event_metadata: [(1, XEventMetadata { id: 1, name: "op".into(), ..Default::default() })].into(),
        ..Default::default()
    };
    XSpace {
        planes: vec![device, task_environment()],
        hostnames: vec!["host-a".into()],
        errors: vec!["lost buffer".into()],
        warnings: vec![],
    }
}

#[test]
fn counts_names_ends_and_window_in_pieces_of_any_size() {
    let bytes = sample().encode_to_vec();
    for piece in [1, 2, 3, 7, 64, bytes.len()] {
        let summary = check(&bytes, piece).expect("sound");
        assert_eq!((summary.plane_count, summary.lines, summary.events), (2, 2, 3));
        assert_eq!(summary.window, Some((1_700_000_000_000_000_000, 1_700_000_002_000_000_000)));
        assert_eq!(summary.hostnames, ["host-a"]);
        assert_eq!(summary.errors, ["lost buffer"]);
        assert_eq!(summary.bytes, bytes.len() as u64);
        let plane = &summary.planes[0];
        assert!(plane.is_device() && plane.is_tensor_core());
        // The absolute line ends 1 s after the start.
        assert_eq!(plane.end_ps, Some(1_000_000_000_001));
    }
}

fn core(name: &str, ops: i64, entries: &[(i64, &str)]) -> XPlane {
    let line = |name: &str, events: i64| XLine {
        name: name.into(),
        events: (0..events).map(|at| event(at * 1_000_000_000_000 / events, 5)).collect(),
        ..Default::default()
    };
    XPlane {
        name: name.into(),
        // One core of a real v6e alone has asynchronous operations: no other lost them.
        lines: vec![line("XLA Modules", 20), line("XLA Ops", ops), line("Async XLA Ops", ops % 7 * 100)],
        event_metadata: entries
            .iter()
            .map(|&(id, name)| (id, XEventMetadata { id, name: name.into(), ..Default::default() }))
            .collect(),
        ..Default::default()
    }
}

#[test]
fn what_was_lost_is_told_while_it_arrives() {
    let mut dropped = core("/device:TPU:1", 100, &[(1, "op"), (2, "Trace Buffers Dropped")]);
    dropped.stats.push(XStat { metadata_id: 5, value: Some(Value::Int64Value(17)) });
    let stat = XStatMetadata { id: 5, name: "dropped_traces".into(), ..Default::default() };
    dropped.stat_metadata.insert(5, stat);
    let space = XSpace {
        planes: vec![core("/device:TPU:0", 400, &[(1, "op")]), dropped, core("/device:TPU:2", 401, &[])],
        ..Default::default()
    };
    let bytes = space.encode_to_vec();
    for piece in [1, 64, bytes.len()] {
        let summary = check(&bytes, piece).expect("sound");
        assert_eq!((summary.planes[0].modules, summary.planes[0].ops), (20, 400));
        let losses: Vec<_> =
            summary.losses().into_iter().map(|loss| (loss.kind, loss.plane, loss.count)).collect();
        let plane = Some("/device:TPU:1".to_owned());
        assert_eq!(
            losses,
            [
                (LossKind::DroppedBuffers, plane.clone(), None),
                (LossKind::DroppedTraces, plane.clone(), Some(17)),
                (LossKind::FewEvents, plane, Some(100)),
            ]
        );
    }
}

#[test]
fn a_host_alone_that_launched_programs_lost_its_device() {
    let host = |names| XPlane { name: "/host:CPU".into(), ..core("", 1, names) };
    let losses = |planes| {
        let bytes = XSpace { planes, ..Default::default() }.encode_to_vec();
        check(&bytes, 100).expect("sound").losses()
    };
    assert_eq!(losses(vec![host(&[(1, "op")])]), []);
    let launched = || host(&[(1, "DoEnqueueProgram")]);
    assert_eq!(losses(vec![launched()])[0].kind, LossKind::NoDevicePlane);
    assert_eq!(losses(vec![launched(), core("/device:TPU:0", 10, &[])]), []);
}

#[test]
fn a_cut_anywhere_is_damage() {
    let bytes = sample().encode_to_vec();
    for cut in 0..bytes.len() {
        let mut checker = Checker::new(bytes.len() as u64);
        assert!(checker.push(&bytes[..cut]).is_ok());
        assert!(checker.finish().is_err(), "cut at {cut}");
    }
}

#[test]
fn garbage_is_refused_at_once() {
    for (bytes, what) in [
        (&[0_u8; 64][..], "no field has number 0"),
        (&[0x0a, 0xef, 0xbf, 0xbd, 0xef, 0xbf, 0xbd, 0x01, 0x00], "ends before"),
        (&[0x0b], "wire type 3"),
        (&[0x08, 0x01], "field 1 of XSpace has wire type 0"),
        (&[0x0a, 0x02, 0x1a, 0x05], "ends before"),
        (b"HTTP/1.1 400 Bad Request", "wire type 4"),
        (&[0xff; 16], "too long"),
    ] {
        let error = check(bytes, 5).expect_err("garbage");
        assert!(error.what.contains(what), "{error} should say {what}");
        assert!(error.offset < 12, "{error}");
    }
}

#[test]
fn unknown_fields_are_carried_past() {
    let mut bytes = sample().encode_to_vec();
    let known = check(&bytes, 16).expect("sound");
    // Field 100 as varint, fixed64, bytes, fixed32.
    bytes.extend([0xa0, 0x06, 0x01, 0xa1, 0x06, 1, 2, 3, 4, 5, 6, 7, 8, 0xa2, 0x06, 0x02, 9, 9]);
    bytes.extend([0xa5, 0x06, 1, 2, 3, 4]);
    let summary = check(&bytes, 16).expect("sound");
    assert_eq!(summary.planes, known.planes);
}

proptest! {
    #[test]
    fn never_panics_and_pieces_do_not_matter(bytes in proptest::collection::vec(any::<u8>(), 0..200), piece in 1..50_usize) {
        prop_assert_eq!(check(&bytes, piece).is_ok(), check(&bytes, 1).is_ok());
    }

    #[test]
    fn one_changed_byte_never_panics(at in 0..400_usize, to in any::<u8>(), piece in 1..80_usize) {
        let mut bytes = sample().encode_to_vec();
        let at = at % bytes.len();
        bytes[at] = to;
        prop_assert_eq!(check(&bytes, piece), check(&bytes, 1));
    }
}

/// A plane with these text stats.
fn texts(plane: &str, stats: &[(&str, &str)]) -> XPlane {
    let mut plane = XPlane { name: plane.into(), ..XPlane::default() };
    for (&(name, text), id) in stats.iter().zip(1..) {
        plane.stats.push(XStat { metadata_id: id, value: Some(Value::StrValue(text.into())) });
        plane.stat_metadata.insert(id, XStatMetadata { id, name: name.into(), ..Default::default() });
    }
    plane
}

#[test]
fn versions_are_those_that_the_metadata_plane_says() {
    let stats = [
        ("jax_version", "0.10.2"),
        ("tpu_version", "PJRT C API\nTFRT TPU v6 lite\nBuilt on Oct 15 2025"),
        ("cpu_version", "cpu"),
        ("_version", "1"),
        ("a b_version", "1"),
        ("process_id", "7"),
    ];
    let space =
        XSpace { planes: vec![texts("/host:metadata", &stats), texts("/host:CPU", &stats)], ..sample() };
    let bytes = space.encode_to_vec();
    for piece in [1, bytes.len()] {
        let versions: Vec<_> = check(&bytes, piece).expect("sound").versions.into_iter().collect();
        let expected = [("jax", "0.10.2"), ("tpu", "PJRT C API, TFRT TPU v6 lite, Built on Oct 15 2025")];
        assert_eq!(versions, expected.map(|(name, version)| (name.to_owned(), version.to_owned())));
    }
    assert_eq!(check(&sample().encode_to_vec(), 64).expect("sound").versions.len(), 0);
}

#[test]
fn versions_are_bounded() {
    let planes = (0..40).map(|n| {
        texts(
            "/host:metadata",
            &[(format!("lib{n}_version").as_str(), "1"), ("long_version", &"9".repeat(9000))],
        )
    });
    let bytes = XSpace { planes: planes.collect(), ..Default::default() }.encode_to_vec();
    let versions = check(&bytes, bytes.len()).expect("sound").versions;
    assert_eq!(versions.len(), crate::versions::MOST);
    assert_eq!(versions["long"].len(), MAX_TEXT_BYTES);
}
