//! `sessions show` beside xprof's overview page on the same files, in one run.
//!
//! A real JAX trace with the Python tracer on (`SHOW_BENCH_BYTES`, default 430 MB), recorded once and kept,
//! and a generated TPU trace of 2.6 million operations. Promise: 20 times faster, 64 MiB.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench fails loudly")]
#![expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "figures of a bench are rounded, and those of its trace are small"
)]

use std::{
    env,
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    process::Command,
};

use benches::{best_of, data, enter, measure, promise, python, row, tpuscope, workspace};
use prost::Message;
use proto::tensorflow::profiler::{
    XEvent, XEventMetadata, XLine, XPlane, XSpace, XStat, XStatMetadata, x_event::Data, x_stat::Value,
};

/// What is promised.
const TIMES_FASTER: f64 = 20.0;
const PEAK_MIB: f64 = 64.0;

const CORES: i64 = 4;
const STEPS: i64 = 1000;
const OPS_PER_STEP: i64 = 650;

fn main() {
    enter();
    let jax = jax_trace();
    let tpu = tpu_trace();
    let mut kept = compare("JAX on CPU, Python tracer", &jax);
    kept &= compare("generated TPU trace", &tpu);
    if !kept {
        std::process::exit(1);
    }
}

fn compare(what: &str, file: &Path) -> bool {
    let path = file.to_str().unwrap();
    println!("\n{what}: {:.1} MB", fs::metadata(file).unwrap().len() as f64 / 1e6);
    let ours = best_of(5, &tpuscope(), &["sessions", "show", path]);
    let script = workspace().join("benches/scripts/xprof_overview.py");
    let theirs = measure(&python("xprof"), &[script.to_str().unwrap(), path]);
    row("tpuscope sessions show", ours);
    row("xprof overview_page", theirs);
    let by_wall = theirs.wall.as_secs_f64() / ours.wall.as_secs_f64();
    let by_cpu = theirs.cpu.as_secs_f64() / ours.cpu.as_secs_f64();
    let memory = theirs.peak_rss as f64 / ours.peak_rss as f64;
    println!("ratio: {by_wall:.1} by wall, {by_cpu:.1} by CPU, {memory:.0} by memory");
    let faster = promise::at_least("times faster than xprof's overview page", by_wall, TIMES_FASTER);
    promise::at_most("MiB peak", ours.peak_rss as f64 / f64::from(1 << 20), PEAK_MIB) && faster
}

/// A trace that JAX really recorded.
fn jax_trace() -> PathBuf {
    let bytes = env::var("SHOW_BENCH_BYTES").unwrap_or_else(|_| "430000000".to_owned());
    let folder = data().join(format!("jax-{bytes}"));
    if !folder.exists() {
        let script = workspace().join("benches/scripts/jax_trace.py");
        let made = Command::new(python("xprof")).arg(script).arg(&folder).arg(&bytes).status().unwrap();
        assert!(made.success(), "recording failed");
    }
    let sessions = folder.join("plugins/profile");
    let session = fs::read_dir(sessions).unwrap().next().unwrap().unwrap().path();
    let is_trace = |path: &PathBuf| path.to_string_lossy().ends_with(".xplane.pb");
    fs::read_dir(session).unwrap().map(|entry| entry.unwrap().path()).find(is_trace).unwrap()
}

/// A trace as four TensorCores would leave it.
fn tpu_trace() -> PathBuf {
    let folder = data().join("tpu");
    let file = folder.join("generated.xplane.pb");
    if !file.exists() {
        fs::create_dir_all(&folder).unwrap();
        let mut out = BufWriter::new(File::create(&file).unwrap());
        for core in 0..CORES {
            let space = XSpace { planes: vec![core_plane(core)], ..XSpace::default() };
            out.write_all(&space.encode_to_vec()).unwrap();
        }
        let rest = XSpace {
            planes: vec![host_plane(), environment()],
            hostnames: vec!["generated".to_owned()],
            ..XSpace::default()
        };
        out.write_all(&rest.encode_to_vec()).unwrap();
        out.flush().unwrap();
    }
    file
}

const NAMES: [&str; 10] = [
    "device_offset_ps",
    "device_duration_ps",
    "run_id",
    "queue_id",
    "hlo_category",
    "program_id",
    "symbol_id",
    "step_num",
    "_r",
    "device_ordinal",
];

fn stat(name: &str, value: Value) -> XStat {
    let id = NAMES.iter().position(|known| *known == name).unwrap() as i64 + 1;
    XStat { metadata_id: id, value: Some(value) }
}

fn with_names(mut plane: XPlane) -> XPlane {
    plane.stat_metadata = (1..)
        .zip(NAMES)
        .map(|(id, name)| (id, XStatMetadata { id, name: name.to_owned(), ..XStatMetadata::default() }))
        .collect();
    plane
}

fn event(id: i64, start: i64, duration: i64, mut stats: Vec<XStat>) -> XEvent {
    stats.push(stat("device_offset_ps", Value::Uint64Value(start as u64)));
    stats.push(stat("device_duration_ps", Value::Uint64Value(duration as u64)));
    XEvent { metadata_id: id, data: Some(Data::OffsetPs(start)), duration_ps: duration, stats }
}

/// A step takes 650 operations of 10 to 20 us; every hundredth holds the ten after it.
fn core_plane(core: i64) -> XPlane {
    let step_ps = OPS_PER_STEP * 20_000_000;
    let (mut ops, mut modules, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    for step in 0..STEPS {
        let start = 5_000_000_000 + step * (step_ps + 100_000_000);
        let run = stat("run_id", Value::Uint64Value(500 + step as u64));
        modules.push(event(10_000, start, step_ps, vec![run, stat("queue_id", Value::Uint64Value(0))]));
        steps.push(event(10_001 + step, start, step_ps, Vec::new()));
        for op in 0..OPS_PER_STEP {
            let duration = if op % 100 == 0 { 220_000_000 } else { 10_000_000 + (op * 7_919) % 9_000_000 };
            ops.push(event(op + 1, start + op * 20_000_000, duration, Vec::new()));
        }
    }
    let op = |id: i64| {
        let (kind, category) = if id % 100 == 1 { ("while", "while") } else { ("fusion", "loop fusion") };
        let metadata = XEventMetadata {
            id,
            name: format!("%{kind}.{id} = f32[1024,1024]{{1,0:T(8,128)}} {kind}(%x)"),
            display_name: format!("{kind}.{id}"),
            stats: vec![
                stat("hlo_category", Value::StrValue(category.to_owned())),
                stat("program_id", Value::Uint64Value(42)),
                stat("symbol_id", Value::Uint64Value(id as u64)),
            ],
            ..XEventMetadata::default()
        };
        (id, metadata)
    };
    let named = |(id, name): (i64, String)| (id, XEventMetadata { id, name, ..XEventMetadata::default() });
    let step_names = (0..STEPS).map(|step| (10_001 + step, step.to_string()));
    let module_name = (10_000, "jit_train_step(42)".to_owned());
    let line = |id, name: &str, events| XLine { id, name: name.to_owned(), events, ..XLine::default() };
    with_names(XPlane {
        id: 2 + 8 * core,
        name: format!("/device:TPU:{core}"),
        lines: vec![line(1, "Steps", steps), line(2, "XLA Modules", modules), line(3, "XLA Ops", ops)],
        event_metadata: (1..=OPS_PER_STEP)
            .map(op)
            .chain(step_names.chain([module_name]).map(named))
            .collect(),
        ..XPlane::default()
    })
}

/// The host marks its steps and launches each on every core.
fn host_plane() -> XPlane {
    let mut events = Vec::new();
    for step in 0..STEPS {
        let start = 1_000_000_000 + step * 13_000_000_000;
        let plain = |id, start, stats| XEvent {
            metadata_id: id,
            data: Some(Data::OffsetPs(start)),
            duration_ps: if id == 1 { 2_000_000_000 } else { 100_000_000 },
            stats,
        };
        let root = [("step_num", 100 + step), ("_r", 1)];
        events.push(plain(1, start, root.map(|(name, value)| stat(name, Value::Int64Value(value))).to_vec()));
        for core in 0..CORES {
            let launch = [("device_ordinal", core), ("queue_id", 0), ("run_id", 500 + step)];
            let stats = launch.map(|(name, value)| stat(name, Value::Int64Value(value))).to_vec();
            events.push(plain(2, start + (core + 1) * 200_000_000, stats));
        }
    }
    let names = [(1, "train"), (2, "DoEnqueueProgram")];
    let named = |(id, name): (i64, &str)| {
        (id, XEventMetadata { id, name: name.to_owned(), ..XEventMetadata::default() })
    };
    with_names(XPlane {
        name: "/host:CPU".to_owned(),
        lines: vec![XLine { id: 1, name: "python3".to_owned(), events, ..XLine::default() }],
        event_metadata: names.map(named).into(),
        ..XPlane::default()
    })
}

fn environment() -> XPlane {
    let start = 1_790_000_000_000_000_000;
    let times = [("profile_start_time", start), ("profile_stop_time", start + 14_000_000_000)];
    XPlane {
        name: "Task Environment".to_owned(),
        stats: (1..)
            .zip(times)
            .map(|(id, (_, time))| XStat { metadata_id: id, value: Some(Value::Uint64Value(time)) })
            .collect(),
        stat_metadata: (1..)
            .zip(times)
            .map(|(id, (name, _))| {
                (id, XStatMetadata { id, name: name.to_owned(), ..XStatMetadata::default() })
            })
            .collect(),
        ..XPlane::default()
    }
}
