//! Operations within operations: what is busy, and whose time it is.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "figures of tests are small"
)]

use std::io::Cursor;

use prost::Message;
use proto::tensorflow::profiler::{
    XEvent, XEventMetadata, XLine, XPlane, XSpace, XStat, XStatMetadata, x_event, x_stat,
};
use xprof::{
    analysis::{self, HostReport, Rules},
    reader::Reader,
};

/// What is said of a core that ran `ops`: start, end, category.
fn host(ops: &[(i64, i64, &str)], rules: Rules) -> HostReport {
    report(core(ops), rules)
}

fn core(ops: &[(i64, i64, &str)]) -> XPlane {
    let stat = |metadata_id, value| XStat { metadata_id, value: Some(value) };
    let mut plane = XPlane { name: "/device:TPU:0".to_owned(), ..XPlane::default() };
    for (id, name) in (1i64..).zip(["hlo_category", "program_id", "symbol_id"]) {
        plane
            .stat_metadata
            .insert(id, XStatMetadata { id, name: name.to_owned(), ..XStatMetadata::default() });
    }
    let mut line = XLine { id: 3, name: "XLA Ops".to_owned(), ..XLine::default() };
    for (id, &(start, end, category)) in (1i64..).zip(ops) {
        let stats = vec![
            stat(1, x_stat::Value::StrValue(category.to_owned())),
            stat(2, x_stat::Value::Uint64Value(7)),
            stat(3, x_stat::Value::Uint64Value(id as u64)),
        ];
        let name = format!("op.{id}");
        plane.event_metadata.insert(id, XEventMetadata { id, name, stats, ..XEventMetadata::default() });
        line.events.push(XEvent {
            metadata_id: id,
            data: Some(x_event::Data::OffsetPs(start)),
            duration_ps: end - start,
            ..XEvent::default()
        });
    }
    plane.lines.push(line);
    plane
}

/// What is said of a host without a core, one of whose threads ran `ops`.
fn cpu(ops: &[(i64, i64)]) -> HostReport {
    let mut plane = XPlane { name: "/host:CPU".to_owned(), ..XPlane::default() };
    plane.stat_metadata.insert(1, XStatMetadata { id: 1, name: "hlo_op".to_owned(), ..Default::default() });
    let mut line = XLine { id: 3, name: "thread".to_owned(), ..XLine::default() };
    for (at, &(start, end)) in (1..).zip(ops) {
        let value = Some(x_stat::Value::StrValue(format!("op.{at}")));
        line.events.push(XEvent {
            data: Some(x_event::Data::OffsetPs(start)),
            duration_ps: end - start,
            stats: vec![XStat { metadata_id: 1, value }],
            ..XEvent::default()
        });
    }
    plane.lines.push(line);
    report(plane, Rules::True)
}

fn report(plane: XPlane, rules: Rules) -> HostReport {
    let bytes = XSpace { planes: vec![plane], ..XSpace::default() }.encode_to_vec();
    let mut reader = Reader::open(Cursor::new(bytes)).expect("a trace");
    let host = analysis::read(&mut reader, "h", true, "f", rules).expect("a trace");
    analysis::session("s".to_owned(), vec![host], Vec::new(), rules, None).hosts.remove(0)
}

fn self_time(host: &HostReport, name: &str) -> i64 {
    host.top_ops.iter().find(|op| op.name == name).expect("the operation").self_time_ps
}

#[test]
fn a_loop_is_not_busy_while_it_waits_in_its_infeed() {
    for rules in [Rules::True, Rules::Xprof] {
        for ops in [[(0, 100, "while"), (20, 40, "infeed")], [(20, 40, "infeed"), (0, 100, "while")]] {
            let core = &host(&ops, rules).cores[0];
            assert_eq!((core.busy_ps, core.idle_ps), (80, 20), "{rules:?} {ops:?}");
        }
    }
}

#[test]
fn only_xprof_takes_a_kernel_of_unknown_work_for_idle() {
    let ops = [(0, 100, "copy"), (20, 40, "custom-call")];
    assert_eq!(host(&ops, Rules::True).cores[0].busy_ps, 100);
    assert_eq!(host(&ops, Rules::Xprof).cores[0].busy_ps, 80);
}

#[test]
fn only_xprof_has_self_times_below_zero() {
    let ops = [(0, 100, "while"), (10, 98, "copy"), (11, 99, "loop fusion")];
    let found = host(&ops, Rules::True);
    assert_eq!(self_time(&found, "op.1"), 0);
    assert!(found.categories.iter().all(|category| (0.0..=1.0).contains(&category.share)));
    assert_eq!(self_time(&host(&ops, Rules::Xprof), "op.1"), -76);
    assert_eq!(self_time(&cpu(&[(0, 100), (10, 98), (11, 99)]), "op.1"), 0);
}

#[test]
fn two_lines_of_one_name_are_read_together_and_other_lines_not_at_all() {
    for rules in [Rules::True, Rules::Xprof] {
        let mut plane = core(&[(0, 100, "copy"), (200, 300, "copy")]);
        let second = plane.lines[0].events.pop().expect("two operations");
        let line = |name: &str, events| XLine { name: name.to_owned(), events, ..XLine::default() };
        let mut overlapping = plane.lines[0].events[0].clone();
        overlapping.data = Some(x_event::Data::OffsetPs(50));
        // The second line begins before the first one ends.
        plane.lines.push(line("XLA Ops", vec![overlapping.clone(), second]));
        for name in ["Overlay", "TC Overlay", "_counters_", "MXU0 Instructions", "MXU0 Instructions", ""] {
            plane.lines.push(line(name, vec![overlapping.clone(); 3]));
        }
        let found = report(plane, rules);
        let core = &found.cores[0];
        assert_eq!((core.busy_ps, core.idle_ps), (150 + 100, 50), "{rules:?}");
        let runs: Vec<_> = found.top_ops.iter().map(|op| (op.name.as_str(), op.occurrences)).collect();
        assert_eq!(runs, [("op.1", 2), ("op.2", 1)]);
    }
}
