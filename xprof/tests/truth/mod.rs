//! Vectors with `truth.json`, and the checks against it.

#![allow(dead_code, reason = "each test program uses a part")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    path::{Path, PathBuf},
};

use serde_json::Value;
use xprof::{
    analysis::{self, CoreReport, HostReport, Report, Rules},
    reader::Reader,
    session,
};

/// The vendored vectors of a kind, `xplane` for one.
pub(crate) fn vectors(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/golden").join(kind)
}

/// The names of all vectors of a kind.
pub(crate) fn cases(kind: &str) -> Vec<String> {
    let mut cases: Vec<String> = fs::read_dir(vectors(kind))
        .expect("vendored vectors")
        .map(|case| case.expect("case").file_name().into_string().expect("plain name"))
        .collect();
    cases.sort();
    cases
}

/// What is said of the session, or the one file, at `path`.
pub(crate) fn report_of(path: &Path, rules: Rules) -> Report {
    let session = session::resolve(path).expect("a session").remove(0);
    let hosts = session.parts.iter().map(|part| {
        let mut reader = Reader::open(File::open(&part.path).expect("part")).expect("valid part");
        let file = part.path.file_name().expect("file").to_string_lossy().into_owned();
        analysis::read(&mut reader, &part.host, false, &file, rules).expect("valid part")
    });
    let hosts = hosts.collect();
    analysis::session(session.name, hosts, Vec::new(), rules, None)
}

pub(crate) fn json(kind: &str, case: &str, file: &str) -> Value {
    serde_json::from_slice(&fs::read(vectors(kind).join(case).join(file)).expect("vector")).expect("JSON")
}

pub(crate) fn int(value: &Value, key: &str) -> i64 {
    value[key].as_i64().unwrap_or_else(|| panic!("{key} of {value}"))
}

pub(crate) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} of {value}"))
}

pub(crate) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

pub(crate) fn warned(host: &HostReport, of: &str) -> bool {
    host.warnings.iter().any(|warning| warning.contains(of))
}

/// Compares a host with its part of `truth.json`. The truth knows one id per run; `ids` tells that the cores of the
/// file have the same.
pub(crate) fn check_host(case: &str, host: &HostReport, expected: &Value, ids: bool) {
    assert_eq!(host.file, text(expected, "file"), "{case}");
    assert_eq!(host.profile_start_ns, Some(int(expected, "profile_start_time_ns")), "{case}");
    assert_eq!(host.window_ps, int(expected, "window_ps"), "{case}");
    let markers: Vec<_> = host
        .host_steps
        .iter()
        .map(|step| (step.step_num.expect("numbered"), step.start_ps, step.end_ps))
        .collect();
    let wanted: Vec<_> = list(expected, "host_steps")
        .iter()
        .map(|step| (int(step, "step_num"), int(step, "start_ps"), int(step, "end_ps")))
        .collect();
    assert_eq!(markers, wanted, "{case}");
    let mut ops: BTreeMap<&str, [i64; 3]> = BTreeMap::new();
    let mut runs = BTreeMap::new();
    for expected in list(expected, "cores") {
        let core = host.cores.iter().find(|core| core.plane == text(expected, "plane"));
        let core = core.expect("the core is there");
        check_core(case, core, expected, !wanted.is_empty());
        for (module, expected) in core.modules.iter().zip(list(expected, "modules")) {
            let run = module.run.expect("every execution is part of a run");
            // The truth has one id for all executions of a run.
            assert_eq!(*runs.entry(run).or_insert(&expected["run_id"]), &expected["run_id"], "{case}");
            assert!(!ids || module.run_id == expected["run_id"].as_u64(), "{case} {}", core.plane);
        }
        for (name, op) in expected["ops"].as_object().expect("ops") {
            let sums = ops.entry(name).or_default();
            for (sum, key) in sums.iter_mut().zip(["occurrences", "time_ps", "self_time_ps"]) {
                *sum += int(op, key);
            }
        }
    }
    let ids_of_runs: BTreeSet<Option<u64>> = runs.values().map(|id| id.as_u64()).collect();
    assert_eq!(ids_of_runs.len(), runs.len(), "{case}: two runs are taken for one, or one for two");
    if !list(expected, "cores").is_empty() {
        // The truth sums up operations of one name; ours are told apart by their program.
        let mut found: BTreeMap<&str, [i64; 3]> = BTreeMap::new();
        for op in &host.top_ops {
            let sums = found.entry(&op.name).or_default();
            for (sum, more) in sums.iter_mut().zip([op.occurrences as i64, op.time_ps, op.self_time_ps]) {
                *sum += more;
            }
        }
        assert_eq!(found, ops, "{case}");
        let rows: BTreeSet<_> = host.top_ops.iter().map(|op| (&op.name, &op.program_id)).collect();
        assert_eq!(rows.len(), host.top_ops.len(), "{case}: one row per operation of a program");
        assert!(host.top_ops.iter().all(|op| op.program.is_some()), "{case}");
    }
}

fn check_core(case: &str, core: &CoreReport, expected: &Value, numbered: bool) {
    let steps: Vec<_> = core
        .steps
        .iter()
        .map(|step| (step.step_num, step.start_ps, step.start_ps + step.duration_ps))
        .collect();
    let wanted: Vec<_> = list(expected, "steps")
        .iter()
        // Where no marker numbers the steps, the vector's numbers are but a count.
        .map(|step| (numbered.then(|| int(step, "step_num")), int(step, "start_ps"), int(step, "end_ps")))
        .collect();
    assert_eq!(steps, wanted, "{case} {}", core.plane);
    let modules: Vec<_> = core
        .modules
        .iter()
        .map(|module| {
            let end = module.start_ps + module.duration_ps;
            (module.name.as_str(), module.program_id.as_deref(), module.start_ps, end)
        })
        .collect();
    let wanted: Vec<_> = list(expected, "modules")
        .iter()
        .map(|module| {
            let (name, program) = (text(module, "name"), module["program_id"].as_str());
            (name, program, int(module, "start_ps"), int(module, "end_ps"))
        })
        .collect();
    assert_eq!(modules, wanted, "{case} {}", core.plane);
    let extent = &expected["extent"]["ops_and_modules"];
    let (busy, idle) = (int(expected, "on_duty_busy_ps"), int(expected, "idle_in_ops_and_modules_extent_ps"));
    assert_eq!(core.span_ps, int(extent, "end_ps") - int(extent, "start_ps"), "{case} {}", core.plane);
    assert_eq!((core.busy_ps, core.idle_ps), (busy, idle), "{case} {}", core.plane);
    assert!((core.duty_cycle - busy as f64 / (busy + idle) as f64).abs() < 1e-12, "{case}");
}
