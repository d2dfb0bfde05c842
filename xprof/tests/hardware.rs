//! The analysis on traces as real hardware writes them: the line's clock jumps, and each core counts its own ids.
//!
//! The made vectors are tested everywhere. The traces of others are not part of the repository: their figures are tested
//! where a folder `shared/real` lies beside it, and these tests do nothing elsewhere. The trace of v6e is as it was recorded. That
//! of v7x was rebuilt from a trace viewer's JSON: names, times and statistics of events are those of the hardware;
//! program and symbol ids, FLOPS, core details, peaks and the task environment were made up.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "figures of tests are small"
)]
#![allow(clippy::panic, reason = "test code fails loudly")]

mod truth;

use std::{collections::BTreeMap, io::Cursor, path::Path};

use prost::Message;
use proto::tensorflow::profiler::{XEventMetadata, XPlane, XSpace};
use serde_json::Value;
use truth::{check_host, int, list, text, warned};
use xprof::{
    analysis::{self, AlignedBy, MeasuredBy, OffsetBy, OpReport, Report, Rules},
    reader::Reader,
};

/// How much faster the line's clock runs than the device's in the vectors with two clocks.
const DRIFT: f64 = 14e-6;

fn report(kind: &str, case: &str) -> (Value, Report) {
    let truth = truth::json(kind, case, "truth.json");
    (truth, truth::report_of(&truth::vectors(kind).join(case), Rules::True))
}

fn by_line(device_ps: i64) -> i64 {
    (device_ps as f64 * (1.0 + DRIFT)).round() as i64
}

#[test]
fn durations_come_from_the_clock_that_does_not_jump() {
    for case in ["clock_jumps", "clock_jumps_slow", "clock_jumps_steps"] {
        let (truth, report) = report("xplane_clock", case);
        check_clock(case, &truth, &report, |device_ps| device_ps, 0);
        assert!(report.hosts[0].cores.iter().all(|core| core.clock == MeasuredBy::Device), "{case}");
        for core in &report.hosts[0].cores {
            assert!(warned(&report.hosts[0], &format!("{}: the line's clock jumped ", core.plane)), "{case}");
        }
    }
}

#[test]
fn a_line_that_only_drifts_keeps_its_own_values() {
    let (truth, report) = report("xplane_clock", "clock_drift");
    check_clock("clock_drift", &truth, &report, by_line, 1);
    let host = &report.hosts[0];
    assert!(host.cores.iter().all(|core| core.clock == MeasuredBy::Line));
    assert!(!warned(host, "jumped") && warned(host, "drifts by -14 ppm"), "{:?}", host.warnings);
}

/// Compares everything that the truth says. It is by the device's clock: `time` says what that is by the one that
/// measured, and `rounded` how much each event may be off.
fn check_clock(case: &str, truth: &Value, report: &Report, time: fn(i64) -> i64, rounded: i64) {
    let near = |found: i64, device_ps: i64, events: i64| {
        let wanted = time(device_ps);
        assert!((found - wanted).abs() <= rounded * events, "{case}: {found} instead of {wanted}");
    };
    for (host, expected) in report.hosts.iter().zip(list(truth, "hosts")) {
        assert_eq!(
            (host.host.as_str(), host.file.as_str()),
            (text(expected, "hostname"), text(expected, "file"))
        );
        assert_eq!(host.cores.len(), list(expected, "cores").len());
        for (core, expected) in host.cores.iter().zip(list(expected, "cores")) {
            let runs = list(expected, "runs");
            assert_eq!((core.plane.as_str(), core.modules.len()), (text(expected, "plane"), runs.len()));
            for ((module, step), run) in core.modules.iter().zip(&core.steps).zip(runs) {
                assert_eq!(module.run_id, run["run_id"].as_u64(), "{case}");
                near(module.duration_ps, int(run, "duration_ps"), 1);
                near(step.duration_ps, int(run, "duration_ps"), 1);
                // Where they lie: on the line, in whose time the device's clock runs slow.
                let apart = |ps: i64, first: i64| ps - first;
                let found = apart(module.start_ps, core.modules[0].start_ps);
                let wanted = by_line(apart(int(run, "device_start_ps"), int(&runs[0], "device_start_ps")));
                assert!((found - wanted).abs() < 1_000, "{case}: {found} instead of {wanted}");
            }
        }
        let ops = truth["ops"].as_object().expect("ops");
        assert_eq!(host.top_ops.len(), ops.len(), "{case}");
        for op in &host.top_ops {
            let wanted = &ops[&op.name];
            assert_eq!(op.occurrences as i64, int(wanted, "occurrences"), "{case}");
            near(op.self_time_ps, int(wanted, "self_time_ps"), int(wanted, "occurrences"));
        }
    }
    let (found, wanted) = (report.step_time, &truth["step_time"]);
    assert_eq!(found.count as i64, int(wanted, "count"), "{case}");
    // The truth's mean is rounded down.
    assert!((found.mean_ps - time(int(wanted, "mean_ps"))).abs() <= 1, "{case}: {}", found.mean_ps);
    near(found.median_ps, int(wanted, "median_ps"), 1);
    near(found.max_ps, int(wanted, "max_ps"), 1);
    let straggler = report.straggler.as_ref().and_then(|slow| slow.plane.as_deref());
    assert_eq!(straggler, truth["straggler"].as_str(), "{case}: {:?}", report.straggler);
}

#[test]
fn cores_that_count_their_own_ids_are_paired_all_the_same() {
    let cases = truth::cases("xplane_ids");
    assert_eq!(cases.len(), 4);
    for case in cases {
        let (truth, report) = report("xplane_ids", &case);
        for expected in list(&truth, "hosts") {
            let host = report.hosts.iter().find(|host| host.host == text(expected, "hostname"));
            check_host(&case, host.expect("the host is there"), expected, false);
        }
        let found = report.straggler.as_ref();
        let core = truth["straggler_core"].as_i64().map(|core| format!("/device:TPU:{core}"));
        let host = truth["straggler_host"].as_str();
        assert_eq!(found.and_then(|slow| slow.plane.clone()), core, "{case}");
        assert_eq!(found.is_some(), core.is_some() || host.is_some(), "{case}: {found:?}");
        assert!(host.is_none_or(|host| found.is_some_and(|slow| slow.host == host)), "{case}");
        let numbered = report.hosts.iter().all(|host| !host.host_steps.is_empty());
        assert_eq!(report.alignment.by, if numbered { AlignedBy::StepNum } else { AlignedBy::Runs });
    }
}

#[test]
fn runs_without_step_markers_count_once_for_all_cores() {
    let (truth, report) = report("xplane_ids", "inference_modules_only_ids");
    let cores = || list(&truth["hosts"][0], "cores").iter();
    let mut longest: Vec<i64> = (0..15)
        .map(|run| {
            let time =
                |core: &Value| int(&core["modules"][run], "end_ps") - int(&core["modules"][run], "start_ps");
            cores().map(time).max().expect("cores")
        })
        .collect();
    longest.sort_unstable();
    assert_eq!((report.step_time.count, report.step_time.median_ps), (15, longest[7]));
    assert_eq!(report.step_program.as_deref(), Some("jit_decode"));
    assert_eq!(report.programs.len(), 1);
}

#[test]
fn hosts_whose_ids_differ_are_aligned_by_number_and_collectives() {
    let (truth, report) = report("xplane_ids", "two_hosts_skew_ids");
    let offset = &report.alignment.offsets[1];
    assert_eq!(offset.by, OffsetBy::Collectives);
    assert_eq!(offset.offset_ps, int(&truth, "true_start_delta_ps"));
    assert_eq!(offset.clock_skew_ps, Some(int(&truth, "clock_skew_ns") * 1000));
}

/// A made vector after `change`.
fn changed(kind: &str, case: &str, change: impl Fn(&mut XPlane)) -> Report {
    let folder = truth::vectors(kind).join(case);
    let file =
        list(&truth::json(kind, case, "truth.json"), "hosts")[0]["file"].as_str().expect("file").to_owned();
    let mut space = XSpace::decode(&*std::fs::read(folder.join(&file)).expect("vector")).expect("sound");
    space.planes.iter_mut().for_each(change);
    let mut reader = Reader::open(Cursor::new(space.encode_to_vec())).expect("sound");
    let trace = analysis::read(&mut reader, "h", true, &file, Rules::True).expect("sound");
    analysis::session("s".into(), vec![trace], vec![], Rules::True, None)
}

#[test]
fn the_order_of_events_in_a_file_changes_nothing() {
    let plain = changed("xplane_clock", "clock_jumps", |_| ());
    let reversed = changed("xplane_clock", "clock_jumps", |plane| {
        plane.lines.iter_mut().for_each(|line| line.events.reverse());
    });
    assert_eq!(reversed.hosts[0].warnings, plain.hosts[0].warnings);
    assert_eq!(reversed.step_time, plain.step_time);
}

#[test]
fn programs_of_one_name_are_told_apart_by_their_ids() {
    let report = changed("xplane_ids", "inference_modules_only_ids", |plane| {
        for line in plane.lines.iter_mut().filter(|line| line.name == "XLA Modules") {
            line.events.iter_mut().skip(9).for_each(|event| event.metadata_id = 900);
        }
        let retraced = XEventMetadata { id: 900, name: "jit_decode(123456789)".into(), ..Default::default() };
        plane.event_metadata.insert(900, retraced);
    });
    let counts: Vec<(&str, u64)> =
        report.programs.iter().map(|program| (&*program.name, program.run_time.count)).collect();
    assert_eq!(counts.len(), 2, "{counts:?}");
    assert!(counts.contains(&("jit_decode(1234…)", 6)), "{counts:?}");
    assert_eq!(report.step_program.as_deref(), Some(counts[0].0));
    let step = report.hosts[0].cores[0].steps.last().expect("steps");
    let of_step = (step.program.as_deref(), step.program_id.as_deref());
    assert_eq!(of_step, (Some("jit_decode(1234…)"), Some("123456789")));
}

/// A real trace, if it lies beside the repository.
fn real(file: &str) -> Option<Report> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/real").join(file);
    if !path.exists() {
        println!("SKIPPED: {} is not there", path.display());
        return None;
    }
    Some(truth::report_of(&path, Rules::True))
}

fn ms(ps: i64) -> f64 {
    ps as f64 / 1e9
}

#[test]
fn a_real_v6e_is_measured_by_its_device_clock() {
    let Some(report) = real("v6e-4-inference.xplane.pb") else { return };
    let host = &report.hosts[0];
    assert_eq!(host.cores[0].modules.len(), 105);
    assert_eq!((report.step_program.as_deref(), report.step_time.count), (Some("jit_f"), 100));
    assert!((ms(report.step_time.median_ps) - 784.3).abs() < 0.05, "{}", ms(report.step_time.median_ps));
    assert!((ms(report.step_time.max_ps) - 784.4).abs() < 0.05, "{}", ms(report.step_time.max_ps));
    let runs: Vec<(&str, u64)> =
        report.programs.iter().map(|program| (program.name.as_str(), program.run_time.count)).collect();
    let others = [("jit__psum", 3), ("jit_broadcast_in_dim", 1), ("jit_convert_element_type", 1)];
    assert_eq!(runs, [&[("jit_f", 100)][..], &others].concat());
    let longest: Vec<(&str, f64)> =
        host.top_ops[..2].iter().map(|op| (op.name.as_str(), ms(op.self_time_ps))).collect();
    assert_eq!((longest[0].0, longest[1].0), ("copy-done.4", "copy-done.2"));
    assert!((longest[0].1 - 77_773.0).abs() < 1.0 && (longest[1].1 - 77_643.0).abs() < 1.0, "{longest:?}");
    let duty = host.cores.iter().map(|core| core.duty_cycle).sum::<f64>() / 4.0;
    assert!((duty - 0.865).abs() < 0.002, "{duty}");
    for core in &host.cores {
        assert_eq!(core.clock, MeasuredBy::Device);
        let jumped = format!("{}: the line's clock jumped ", core.plane);
        assert!(host.warnings.iter().any(|warning| warning.starts_with(&jumped)), "{:?}", host.warnings);
        let times = core.modules.iter().filter(|module| module.name == "jit_f").map(|m| ms(m.duration_ps));
        assert!(times.clone().count() == 100 && times.clone().all(|ms| (ms - 784.1).abs() < 0.5));
    }
    assert_eq!(report.straggler, None);
    // The runs of all cores have one distance of ids each.
    let run = |core: usize| -> BTreeMap<u64, u64> {
        host.cores[core].modules.iter().filter_map(|module| Some((module.run?, module.run_id?))).collect()
    };
    let first = run(0);
    for core in 1..4 {
        assert!(run(core).iter().all(|(run, id)| first.get(run) == Some(&(id + 2))), "{core}");
    }
    let fusion = op(&host.top_ops, "broadcast_add_fusion.1");
    assert_eq!(fusion.program.as_deref(), Some("jit_f"));
    assert!(
        fusion.source.as_deref().is_some_and(|source| source.ends_with("host_offload_stress_test.py:29"))
    );
    assert!(fusion.hbm_of_peak.is_some_and(|part| (part - 0.804).abs() < 0.005), "{fusion:?}");
}

fn op<'a>(ops: &'a [OpReport], name: &str) -> &'a OpReport {
    ops.iter().find(|op| op.name == name).expect("the operation")
}

#[test]
fn a_real_v7x_has_one_run_on_two_cores() {
    let Some(report) = real("v7x-2core-serving.xplane.pb") else { return };
    let host = &report.hosts[0];
    let mut runs: BTreeMap<Option<u64>, Vec<(&str, i64)>> = BTreeMap::new();
    for module in host.cores.iter().flat_map(|core| &core.modules) {
        runs.entry(module.run).or_default().push((&module.name, module.duration_ps));
    }
    assert_eq!(runs.len(), 4, "{runs:?}");
    assert!(runs.values().all(|cores| cores.len() == 2 && cores[0].0 == cores[1].0), "{runs:?}");
    let time = |name: &str| {
        let program = report.programs.iter().find(|program| program.name == name).expect("the program");
        assert_eq!(program.run_time.count, 1);
        ms(program.run_time.median_ps)
    };
    assert_eq!(report.step_program.as_deref(), Some("jit_step_fun"));
    assert!((time("jit_step_fun") - 66.9).abs() < 0.1, "{}", time("jit_step_fun"));
    assert!((time("jit_compute_logits_func") - 0.294).abs() < 0.002, "{}", time("jit_compute_logits_func"));
    assert!((ms(report.step_time.median_ps) - 66.9).abs() < 0.1);
    // The offset is constant, with a jitter below 1 ns: the line's values are as good.
    assert!(host.cores.iter().all(|core| core.clock == MeasuredBy::Line));
}
