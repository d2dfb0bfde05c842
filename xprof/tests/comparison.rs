//! Two sessions beside each other: golden traces, and where they lie beside the repository, traces of real hardware.

#![allow(clippy::cast_possible_wrap, clippy::cast_precision_loss, reason = "figures of tests are small")]
#![allow(clippy::panic, reason = "test code fails loudly")]

mod truth;

use std::path::Path;

use xprof::{
    analysis::Rules,
    comparison::{Comparison, FirstChangePlace, NotComparable, Pair, SessionFigures, compare},
    session::SessionContext,
};

fn figures(path: &Path) -> SessionFigures {
    SessionFigures::of(&truth::report_of(path, Rules::True), SessionContext::default())
}

fn golden(case: &str) -> SessionFigures {
    figures(&truth::vectors("xplane").join(case))
}

fn compared(a: SessionFigures, b: SessionFigures) -> Comparison {
    compare(&Pair { a, b }).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_session_does_not_differ_from_itself() {
    for case in truth::cases("xplane") {
        let Ok(same) = compare(&Pair { a: golden(&case), b: golden(&case) }) else {
            panic!("{case} cannot be compared")
        };
        assert_eq!(same.setup, [], "{case}");
        assert!(
            matches!(same.first_change.found, FirstChangePlace::Nowhere | FirstChangePlace::Unknown),
            "{case}"
        );
        assert!(same.step_time.iter().all(|time| time.median_change.abs() < f64::EPSILON), "{case}");
        assert!(same.operations.iter().all(|op| op.change_ps == 0 && op.a.is_some() && op.b.is_some()));
        assert_eq!(same.losses.a, same.losses.b);
    }
}

#[test]
fn operations_are_divided_by_the_runs_of_their_program() {
    let found = compared(golden("steady_1core"), golden("straggler_4core"));
    let op = found.operations.iter().find(|op| op.name == "fusion.1").expect("in both");
    let time = |time: Option<xprof::comparison::OpTime>| time.expect("in both").self_time_ps;
    // 129 ms in ten runs on each of four cores, one of them slower.
    assert_eq!(time(op.b), 129_000_000_000 / 40);
    assert_eq!(op.change_ps, time(op.b) - time(op.a));
    assert!(found.straggler.a.is_none() && found.straggler.b.is_some());
    let collectives: Vec<_> = found.collectives.iter().map(|kind| (kind.opcode, kind.b_ps)).collect();
    assert_eq!(collectives.len(), 1, "{collectives:?}");
    assert_eq!(collectives[0].0, "all-reduce");
}

#[test]
fn a_cut_run_makes_no_operation_slower() {
    let found = compared(golden("steady_1core"), golden("truncated_end"));
    assert!(found.losses.a.is_empty() && found.losses.b.len() == 1, "{:?}", found.losses);
    let slower: Vec<_> = found.operations.iter().filter(|op| op.change_ps.abs() > 1_000_000).collect();
    assert!(slower.is_empty(), "{slower:?}");
}

#[test]
fn traces_of_the_host_and_of_devices_have_nothing_in_common() {
    let error = |a, b| compare(&Pair { a, b }).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(
        error(golden("real_jax_cpu"), golden("steady_1core")).starts_with("A is a trace of the host alone")
    );
    assert!(
        error(golden("steady_1core"), golden("host_cpu_jax")).starts_with("B is a trace of the host alone")
    );
    let bare = || {
        let report = xprof::analysis::session("s".into(), vec![], vec![], Rules::True, None);
        SessionFigures::of(&report, SessionContext::default())
    };
    let empty = compare(&Pair { a: golden("steady_1core"), b: bare() });
    assert_eq!(empty.err(), Some(NotComparable::Empty("B")));
}

/// The two have other programs, other chips and other numbers of cores: all of that is said, and no figure is made of it.
#[test]
fn traces_of_real_hardware_are_compared_as_far_as_they_are_alike() {
    let real = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/real");
    if !real.is_dir() {
        return;
    }
    let [old, new] =
        ["v6e-4-inference", "v7x-2core-serving"].map(|name| figures(&real.join(format!("{name}.xplane.pb"))));
    let found = compared(old, new);
    let chips = found.setup.iter().find(|one| one.what == "chips").expect("they differ");
    assert_eq!((chips.a.as_str(), chips.b.as_str()), ("TPU v6 Lite", "TPU v7x"));
    assert!(found.step_time.is_none() && found.first_change.found == FirstChangePlace::Unknown);
    assert!(found.busy.is_some());
}
