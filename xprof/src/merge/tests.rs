//! Merging a split trace gives back the whole: same events, names, stats and times.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    io::{self, Cursor},
    path::Path,
};

use proptest::prelude::*;
use prost::Message;
use proto::tensorflow::profiler::{
    XEvent, XEventMetadata, XLine, XPlane, XSpace, XStat, XStatMetadata, x_event, x_stat,
};

use super::*;
use crate::{input::ReadSeek, reader::SEARCHES};

/// Some instant in 2026, beyond what counts as time within a session.
const START_NS: i64 = 1_790_000_000_000_000_000;

struct Bytes(&'static str, Vec<u8>);

impl Input for Bytes {
    fn name(&self) -> String {
        self.0.to_owned()
    }

    fn open(&self) -> io::Result<Box<dyn ReadSeek>> {
        Ok(Box::new(Cursor::new(self.1.clone())))
    }
}

fn merge_bytes(segments: Vec<Vec<u8>>) -> Result<(XSpace, MergeReport), MergeError> {
    let names = ["a", "b", "c", "d", "e"];
    let inputs: Vec<_> = segments.into_iter().zip(names).map(|(bytes, name)| Bytes(name, bytes)).collect();
    let inputs: Vec<_> = inputs.iter().map(|input| input as &dyn Input).collect();
    let mut out = Cursor::new(Vec::new());
    let report = merge(&inputs, &mut out, &mut |done, all| assert!(done <= all))?;
    let bytes = out.into_inner();
    assert_eq!(report.bytes, bytes.len() as u64);
    crate::reader::Reader::open(Cursor::new(&bytes)).expect("our reader opens it");
    Ok((XSpace::decode(&bytes[..]).expect("protobuf opens it"), report))
}

fn merge_all(segments: &[XSpace]) -> Result<(XSpace, MergeReport), MergeError> {
    merge_bytes(segments.iter().map(Message::encode_to_vec).collect())
}

/// A stat with its ids resolved.
fn resolved(plane: &XPlane, stat: &XStat) -> String {
    let name = |id: i64| plane.stat_metadata.get(&id).map_or("?", |metadata| &metadata.name);
    let value = match &stat.value {
        Some(x_stat::Value::RefValue(id)) => format!("ref {}", name(*id as i64)),
        other => format!("{other:?}"),
    };
    format!("{}={value}", name(stat.metadata_id))
}

fn resolved_all(plane: &XPlane, stats: &[XStat]) -> Vec<String> {
    stats.iter().map(|stat| resolved(plane, stat)).collect()
}

/// Everything that an event metadata entry says, children by name.
fn described(plane: &XPlane, id: i64) -> String {
    let Some(entry) = plane.event_metadata.get(&id) else { return "?".to_owned() };
    let child = |id: &i64| plane.event_metadata.get(id).map_or("?", |child| &child.name);
    format!(
        "{} {} {:?} {:?} {:?}",
        entry.name,
        entry.display_name,
        entry.metadata,
        resolved_all(plane, &entry.stats),
        entry.child_id.iter().map(child).collect::<Vec<_>>()
    )
}

type Events = Vec<(i64, i64, Option<i64>, String, Vec<String>)>;

/// A trace by what it means: per plane its stats, metadata and lines; events by absolute time.
type Meaning = BTreeMap<String, (BTreeSet<String>, BTreeSet<String>, BTreeMap<(i64, String), Events>)>;

fn environment(space: &XSpace, name: &str) -> Option<i64> {
    let plane = space.planes.iter().find(|plane| plane.name == "Task Environment")?;
    let stat = plane
        .stats
        .iter()
        .find(|stat| plane.stat_metadata.get(&stat.metadata_id).is_some_and(|m| m.name == name))?;
    match stat.value {
        Some(x_stat::Value::Uint64Value(ns)) => Some(ns as i64),
        Some(x_stat::Value::Int64Value(ns)) => Some(ns),
        _ => None,
    }
}

fn meaning(space: &XSpace) -> Meaning {
    let start_ns = environment(space, "profile_start_time").unwrap_or(0);
    let mut meaning = Meaning::new();
    for plane in &space.planes {
        let stats = resolved_all(plane, &plane.stats).into_iter().collect();
        let metadata = plane.event_metadata.keys().map(|&id| described(plane, id)).collect();
        let mut lines = BTreeMap::<_, Events>::new();
        for line in &plane.lines {
            let relative = if line.timestamp_ns > START_NS / 2 {
                line.timestamp_ns - start_ns
            } else {
                line.timestamp_ns
            };
            let events = lines
                .entry((line.id, format!("{}/{}/{}", line.name, line.display_id, line.display_name)))
                .or_default();
            for event in &line.events {
                let (offset, occurrences) = match event.data {
                    Some(x_event::Data::OffsetPs(offset)) => (offset, None),
                    Some(x_event::Data::NumOccurrences(count)) => (0, Some(count)),
                    None => (0, None),
                };
                let at = if occurrences.is_some() { 0 } else { relative * 1000 + offset };
                let what = described(plane, event.metadata_id);
                events.push((at, event.duration_ps, occurrences, what, resolved_all(plane, &event.stats)));
            }
        }
        assert!(
            meaning.insert(plane.name.clone(), (stats, metadata, lines)).is_none(),
            "one plane of a name"
        );
    }
    meaning
}

/// How one segment of a split differs from the whole, besides what it holds.
#[derive(Debug, Clone)]
struct Dress {
    /// Added to every metadata id.
    renumber: i64,
    /// Whether its lines count from the epoch.
    absolute: bool,
}

/// The part of `whole` that begins in `[from_ns, to_ns)` after its start, as a segment of its own.
fn segment_of(whole: &XSpace, from_ns: i64, to_ns: i64, first: bool, dress: &Dress) -> XSpace {
    let start_ns = environment(whole, "profile_start_time").unwrap();
    let mut space = whole.clone();
    for plane in &mut space.planes {
        let device_offset = plane.stat_metadata.values().find(|m| m.name == "device_offset_ps").map(|m| m.id);
        for stat in &mut plane.stats {
            let name = plane.stat_metadata.get(&stat.metadata_id).map_or("", |m| &m.name);
            match (plane.name.as_str(), name) {
                ("Task Environment", "profile_start_time") => {
                    stat.value = Some(x_stat::Value::Uint64Value((start_ns + from_ns) as u64));
                }
                ("Task Environment", "profile_stop_time") if to_ns != i64::MAX => {
                    stat.value = Some(x_stat::Value::Uint64Value((start_ns + to_ns) as u64));
                }
                _ => {}
            }
        }
        for line in &mut plane.lines {
            let relative = if line.timestamp_ns > START_NS / 2 {
                line.timestamp_ns - start_ns
            } else {
                line.timestamp_ns
            };
            line.timestamp_ns = relative - from_ns + if dress.absolute { start_ns + from_ns } else { 0 };
            line.events.retain(|event| match event.data {
                Some(x_event::Data::NumOccurrences(_)) => first,
                Some(x_event::Data::OffsetPs(offset)) => {
                    (from_ns..to_ns).contains(&(relative + offset.div_euclid(1000)))
                        || (first && relative + offset.div_euclid(1000) < 0)
                }
                None => (from_ns..to_ns).contains(&relative),
            });
            for stat in line.events.iter_mut().flat_map(|event| &mut event.stats) {
                if Some(stat.metadata_id) == device_offset {
                    let Some(x_stat::Value::Uint64Value(at)) = &mut stat.value else { continue };
                    *at = at.wrapping_sub((from_ns * 1000) as u64);
                }
            }
        }
        if !first {
            plane.lines.retain(|line| !line.events.is_empty());
        }
        renumbered(plane, dress.renumber);
    }
    space
}

/// Gives every metadata entry another id, and every reference with it.
fn renumbered(plane: &mut XPlane, by: i64) {
    let stat = |stat: &mut XStat| {
        stat.metadata_id += by;
        if let Some(x_stat::Value::RefValue(id)) = &mut stat.value {
            *id = id.wrapping_add_signed(by);
        }
    };
    plane.stat_metadata = std::mem::take(&mut plane.stat_metadata)
        .into_values()
        .map(|entry| (entry.id + by, XStatMetadata { id: entry.id + by, ..entry }))
        .collect();
    plane.event_metadata = std::mem::take(&mut plane.event_metadata)
        .into_iter()
        .map(|(id, mut entry)| {
            entry.id = id + by;
            entry.child_id.iter_mut().for_each(|child| *child += by);
            entry.stats.iter_mut().for_each(stat);
            (id + by, entry)
        })
        .collect();
    plane.stats.iter_mut().for_each(stat);
    for event in plane.lines.iter_mut().flat_map(|line| &mut line.events) {
        event.metadata_id += by;
        event.stats.iter_mut().for_each(stat);
    }
}

fn split(whole: &XSpace, cuts: &[i64], dresses: &[Dress]) -> Vec<XSpace> {
    let edges: Vec<_> = [0].into_iter().chain(cuts.iter().copied()).chain([i64::MAX]).collect();
    let bounds = edges.windows(2).zip(dresses.iter().cycle());
    bounds.enumerate().map(|(i, (edge, dress))| segment_of(whole, edge[0], edge[1], i == 0, dress)).collect()
}

fn stat_strategy() -> impl Strategy<Value = XStat> {
    let value = prop_oneof![
        any::<f64>()
            .prop_filter("NaN is not equal to itself", |v| !v.is_nan())
            .prop_map(x_stat::Value::DoubleValue),
        any::<u64>().prop_map(x_stat::Value::Uint64Value),
        any::<i64>().prop_map(x_stat::Value::Int64Value),
        "[a-z]{0,200}".prop_map(x_stat::Value::StrValue),
        proptest::collection::vec(any::<u8>(), 0..9).prop_map(x_stat::Value::BytesValue),
        (1u64..6).prop_map(x_stat::Value::RefValue),
    ];
    (1i64..5, proptest::option::of(value)).prop_map(|(metadata_id, value)| XStat { metadata_id, value })
}

fn event_strategy() -> impl Strategy<Value = XEvent> {
    let data = prop_oneof![
        20 => (0i64..9_000_000_000).prop_map(|at| Some(x_event::Data::OffsetPs(at))),
        1 => Just(None),
        1 => (0i64..9).prop_map(|count| Some(x_event::Data::NumOccurrences(count))),
    ];
    let device = (0u64..9_000_000_000)
        .prop_map(|at| XStat { metadata_id: 5, value: Some(x_stat::Value::Uint64Value(at)) });
    (
        1i64..6,
        data,
        any::<i64>(),
        proptest::collection::vec(stat_strategy(), 0..3),
        proptest::option::of(device),
    )
        .prop_map(|(metadata_id, data, duration_ps, mut stats, device)| {
            stats.extend(device);
            XEvent { metadata_id, data, duration_ps, stats }
        })
}

fn line_strategy(id: i64) -> impl Strategy<Value = XLine> {
    (0i64..5_000_000, proptest::collection::vec(event_strategy(), 0..20), any::<bool>(), 0i64..3).prop_map(
        move |(timestamp_ns, mut events, absolute, display_id)| {
            let offset = |event: &XEvent| match event.data {
                Some(x_event::Data::OffsetPs(at)) => at,
                _ => 0,
            };
            // The segments hold events in this order, so the whole must too.
            events.sort_by_key(|event| {
                (!matches!(event.data, Some(x_event::Data::NumOccurrences(_))), offset(event))
            });
            XLine {
                id: id - 2,
                name: format!("line {}", id / 2),
                timestamp_ns: timestamp_ns + if absolute { START_NS } else { 0 },
                events,
                display_id,
                display_name: "shown".to_owned(),
                ..XLine::default()
            }
        },
    )
}

fn plane_strategy(name: &'static str) -> impl Strategy<Value = XPlane> {
    let lines: Vec<_> = (0..5).map(line_strategy).collect();
    let stats = proptest::collection::vec(stat_strategy(), 1..4);
    (lines, stats, proptest::collection::vec((".{0,9}", "[a-z]{0,3}", stat_strategy()), 5)).prop_map(
        move |(lines, stats, entries)| {
            let names = ["one", "two", "text", "step_num", "device_offset_ps"];
            let stat_metadata = (1i64..).zip(names).map(|(id, name)| {
                (id, XStatMetadata { id, name: name.to_owned(), description: String::new() })
            });
            let event_metadata = (1i64..).zip(entries).map(|(id, (name, display_name, stat))| {
                let child_id = if id == 3 { vec![1, 2] } else { vec![] };
                let name = format!("{id} {name}");
                (
                    id,
                    XEventMetadata {
                        id,
                        name,
                        display_name,
                        stats: vec![stat],
                        child_id,
                        metadata: vec![1, 2],
                    },
                )
            });
            let mut stats = stats;
            stats.sort_by_key(|stat| stat.metadata_id);
            stats.dedup_by_key(|stat| stat.metadata_id);
            XPlane {
                id: 3,
                name: name.to_owned(),
                lines,
                event_metadata: event_metadata.collect(),
                stat_metadata: stat_metadata.collect(),
                stats,
            }
        },
    )
}

fn task_environment() -> XPlane {
    let stat =
        |metadata_id, ns: i64| XStat { metadata_id, value: Some(x_stat::Value::Uint64Value(ns as u64)) };
    let names = ["profile_start_time", "profile_stop_time"];
    XPlane {
        name: "Task Environment".to_owned(),
        stat_metadata: (1i64..)
            .zip(names)
            .map(|(id, name)| (id, XStatMetadata { id, name: name.to_owned(), description: String::new() }))
            .collect(),
        stats: vec![stat(1, START_NS), stat(2, START_NS + 20_000_000)],
        ..XPlane::default()
    }
}

/// A segment with one event at its start, which lies `days` after the first one's.
fn later_by(days: i64) -> XSpace {
    let mut environment = task_environment();
    for stat in &mut environment.stats {
        let Some(x_stat::Value::Uint64Value(ns)) = &mut stat.value else { continue };
        *ns += (days * 86_400_000_000_000) as u64;
    }
    let event = XEvent { metadata_id: 1, data: Some(x_event::Data::OffsetPs(7)), ..XEvent::default() };
    let line = XLine { id: 1, events: vec![event], ..XLine::default() };
    let plane = XPlane { name: "/host:CPU".to_owned(), lines: vec![line], ..XPlane::default() };
    XSpace { planes: vec![plane, environment], ..XSpace::default() }
}

#[test]
fn segments_too_far_apart_for_picoseconds_are_refused() {
    let (merged, _) = merge_all(&[later_by(0), later_by(106)]).unwrap();
    let offsets = merged.planes[0].lines[0].events.iter().map(|event| event.data);
    let far = 106 * 86_400_000_000_000_000 + 7;
    assert_eq!(
        offsets.collect::<Vec<_>>(),
        [Some(x_event::Data::OffsetPs(7)), Some(x_event::Data::OffsetPs(far))]
    );
    let error = merge_all(&[later_by(107), later_by(50), later_by(0)]).unwrap_err();
    assert!(
        matches!(&error, MergeError::NotOneProcess { first, second, .. } if first == "c" && second == "a")
    );
    assert!(
        error
            .to_string()
            .ends_with("107.0 days beyond the start of the other, and a trace holds 106.5 at most")
    );
}

fn space_strategy() -> impl Strategy<Value = XSpace> {
    (plane_strategy("/host:CPU"), plane_strategy("/device:TPU:0")).prop_map(|(host, device)| XSpace {
        planes: vec![host, device, task_environment()],
        errors: vec!["e".to_owned()],
        warnings: vec![],
        hostnames: vec!["h".to_owned()],
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn merging_a_split_trace_gives_back_the_whole(
        whole in space_strategy(),
        mut cuts in proptest::collection::btree_set(1i64..13_000_000, 0..5).prop_map(Vec::from_iter),
        dresses in proptest::collection::vec((0i64..100, any::<bool>()), 5),
        rotate in 0usize..5,
    ) {
        cuts.truncate(4);
        let dresses: Vec<_> = dresses.into_iter().map(|(renumber, absolute)| Dress { renumber, absolute }).collect();
        let mut segments = split(&whole, &cuts, &dresses);
        let count = segments.len();
        segments.rotate_left(rotate % count);
        let (mut merged, report) = merge_all(&segments).unwrap();
        merged.warnings.retain(|warning| !warning.starts_with(MERGED));
        prop_assert_eq!(meaning(&merged), meaning(&whole));
        prop_assert_eq!((&merged.errors, &merged.warnings, &merged.hostnames), (&whole.errors, &whole.warnings, &whole.hostnames));
        prop_assert_eq!(report.gaps.len(), cuts.len());
        prop_assert_eq!(report.events, whole.planes.iter().flat_map(|p| &p.lines).map(|l| l.events.len() as u64).sum::<u64>());
    }

    #[test]
    fn no_bytes_make_it_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..400, whole in space_strategy()) {
        let whole = whole.encode_to_vec();
        bytes.extend_from_slice(&whole[..cut.min(whole.len())]);
        if let Err(error) = merge_bytes(vec![whole, bytes]) {
            let foreseen = matches!(
                error,
                MergeError::Input { .. } | MergeError::NoTrace { .. } | MergeError::NoStart(_) | MergeError::NotOneProcess { .. }
            );
            prop_assert!(foreseen, "{}", error);
        }
    }
}

fn golden(path: &Path) -> Vec<Vec<u8>> {
    let mut files: Vec<_> = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.to_string_lossy().ends_with(".xplane.pb"));
    files.sort();
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

#[test]
fn every_vector_survives_a_split_and_a_merge() {
    let vectors = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/golden/xplane");
    let mut checked = 0;
    for case in std::fs::read_dir(vectors).unwrap() {
        for bytes in golden(&case.unwrap().path()) {
            let whole = XSpace::decode(&bytes[..]).unwrap();
            let window = environment(&whole, "profile_stop_time").unwrap()
                - environment(&whole, "profile_start_time").unwrap();
            let dresses = [(0, false), (1000, true), (1, false)]
                .map(|(renumber, absolute)| Dress { renumber, absolute });
            let segments = split(&whole, &[window / 3, window / 2], &dresses);
            let (merged, report) = merge_all(&segments).unwrap();
            let steps: u64 = report.steps.iter().map(|steps| steps.count).sum();
            assert_eq!(meaning(&merged), meaning(&whole));
            assert!(
                report.steps.iter().all(|steps| steps.repeated == 0 && steps.missing.is_empty()),
                "{steps}"
            );
            checked += 1;
        }
    }
    assert!(checked >= 19, "{checked}");
}

#[test]
fn what_is_not_one_process_is_refused() {
    let host = |name: &str, from: i64, to: i64| {
        let mut space = XSpace {
            planes: vec![task_environment()],
            hostnames: vec![name.to_owned()],
            ..XSpace::default()
        };
        for (stat, ns) in space.planes[0].stats.iter_mut().zip([from, to]) {
            stat.value = Some(x_stat::Value::Uint64Value((START_NS + ns) as u64));
        }
        space
    };
    let why = |segments: &[XSpace]| merge_all(segments).unwrap_err().to_string();
    assert_eq!(
        why(&[host("x", 0, 9), host("y", 9, 18)]),
        "a and b are not segments of one process: the hosts are x and y"
    );
    assert_eq!(
        why(&[host("x", 0, 1_000_000_000), host("x", 0, 1_000_000_000)]),
        "a and b are not segments of one process: both cover the same 1.000 s"
    );
    let mut nowhere = host("x", 0, 1);
    nowhere.planes[0].name = "other".to_owned();
    assert!(why(&[host("x", 0, 9), nowhere]).starts_with("b does not say when its session began"));
    assert_eq!(why(&[]), "there is nothing to merge");
    assert_eq!(merge_bytes(vec![vec![]]).unwrap_err().to_string(), "a is empty (0 bytes)");
    let damaged = merge_bytes(vec![host("x", 0, 9).encode_to_vec(), vec![0x0a, 0xff, 0x7f]]).unwrap_err();
    assert!(damaged.to_string().starts_with("b: damaged at byte 0: "), "{damaged}");
}

#[test]
fn gaps_and_overlaps_are_told() {
    let segment = |from: i64, to: i64| {
        let mut plane = task_environment();
        for (stat, ns) in plane.stats.iter_mut().zip([from, to]) {
            stat.value = Some(x_stat::Value::Uint64Value((START_NS + ns) as u64));
        }
        XSpace { planes: vec![plane], ..XSpace::default() }
    };
    let (merged, report) = merge_all(&[segment(120, 300), segment(0, 100), segment(290, 400)]).unwrap();
    assert_eq!(environment(&merged, "profile_start_time"), Some(START_NS));
    assert_eq!(environment(&merged, "profile_stop_time"), Some(START_NS + 400));
    let files: Vec<_> = report.segments.iter().map(|segment| segment.file.as_str()).collect();
    assert_eq!(files, ["b", "a", "c"]);
    let gap =
        |after_segment, from, to| Gap { after_segment, start_ns: START_NS + from, stop_ns: START_NS + to };
    assert_eq!(report.gaps, [gap(0, 100, 120), gap(1, 300, 300)]);
    assert_eq!(report.warnings, ["c begins 10 ns before a ends"]);
}

#[test]
fn a_merged_trace_says_how_long_nothing_was_recorded() {
    let segment = |from: i64, to: i64| {
        let mut plane = task_environment();
        for (stat, ms) in plane.stats.iter_mut().zip([from, to]) {
            stat.value = Some(x_stat::Value::Uint64Value((START_NS + ms * 1_000_000) as u64));
        }
        XSpace { planes: vec![plane], ..XSpace::default() }
    };
    let (merged, _) =
        merge_all(&[segment(0, 100), segment(57_100, 57_200), segment(57_250, 57_300)]).unwrap();
    let wanted = "merged by tpuscope: 3 segments with 2 gaps between them, 57.050 s together, in which nothing was \
                  recorded: idle time, time outside the steps and time without a program include them";
    assert_eq!(merged.warnings, [wanted]);
    let (merged, _) = merge_all(&[segment(0, 100), segment(100, 200)]).unwrap();
    assert!(merged.warnings.is_empty(), "{:?}", merged.warnings);
    // The reader gives it as it is: it is no profiler's.
    let bytes =
        XSpace { warnings: vec![wanted.to_owned(), "w".to_owned()], ..segment(0, 100) }.encode_to_vec();
    let mut reader = crate::reader::Reader::open(Cursor::new(bytes)).unwrap();
    let trace = crate::analysis::read(&mut reader, "h", true, "h", crate::analysis::Rules::True).unwrap();
    let found: Vec<_> =
        trace.warnings.iter().filter(|text| text.contains(MERGED) || text.ends_with("w")).collect();
    assert_eq!(found, [wanted, "the profiler warns: w"]);
}

/// A file that is whole when it is opened first, and half as long the next time.
struct CutOff(Vec<u8>, Cell<bool>);

impl Input for CutOff {
    fn name(&self) -> String {
        "cut off".to_owned()
    }

    fn open(&self) -> io::Result<Box<dyn ReadSeek>> {
        let len = if self.1.replace(true) { self.0.len() / 2 } else { self.0.len() };
        Ok(Box::new(Cursor::new(self.0[..len].to_owned())))
    }
}

#[test]
fn a_file_that_is_cut_off_meanwhile_is_told_from_one_that_cannot_be_read() {
    let line = XLine { events: vec![XEvent::default(); 100], ..XLine::default() };
    let plane = XPlane { name: "/host:CPU".to_owned(), lines: vec![line], ..XPlane::default() };
    let input = CutOff(XSpace { planes: vec![plane], ..XSpace::default() }.encode_to_vec(), Cell::default());
    let error = merge(&[&input], &mut Cursor::new(Vec::new()), &mut |_, _| {}).unwrap_err();
    let MergeError::Input { source: wire::Error::Io { source, .. }, file } = error else { panic!("{error}") };
    assert_eq!((source.kind(), file.as_str()), (io::ErrorKind::UnexpectedEof, "cut off"));
}

#[test]
fn lines_do_not_search_the_names_of_stats() {
    let searches = |lines: i64| {
        let line = |id| XLine { id, events: vec![XEvent::default()], ..XLine::default() };
        let plane = XPlane {
            name: "/host:CPU".to_owned(),
            lines: (0..lines).map(line).collect(),
            ..XPlane::default()
        };
        let before = SEARCHES.get();
        let (_, report) = merge_all(&[XSpace { planes: vec![plane], ..XSpace::default() }]).unwrap();
        assert_eq!(report.lines, lines as u64);
        SEARCHES.get() - before
    };
    assert_eq!(searches(100), searches(1));
}
