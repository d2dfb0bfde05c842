//! Merge and export of a real trace, in bytes of input per second of one core, beside a plain copy and a gzip of
//! the same bytes, and xprof's own conversion for its trace viewer, all in one run.
//!
//! `MERGE_BENCH_SECONDS` is how long each of the four segments is recorded (default 4).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench fails loudly")]

use std::{
    env,
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use flate2::{Compression, write::GzEncoder};
use xprof::{
    export::{HostTrace, trace_events},
    input::{FileInput, Input},
    merge::merge,
};

const SEGMENTS: usize = 4;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn python() -> PathBuf {
    let peers = env::var_os("TPUSCOPE_PEERS").map_or_else(|| workspace().join("target/peers"), PathBuf::from);
    peers.join("xprof/bin/python")
}

/// The recorded segments, recorded once and kept.
fn segments() -> Vec<PathBuf> {
    let seconds = env::var("MERGE_BENCH_SECONDS").unwrap_or_else(|_| "4".to_owned());
    let folder = workspace().join(format!("target/bench-data/segments-{seconds}s"));
    let files: Vec<_> = (0..SEGMENTS).map(|i| folder.join(format!("{i}.xplane.pb"))).collect();
    if files.iter().any(|file| !file.exists()) {
        let script = workspace().join("benches/scripts/jax_segments.py");
        let recorded =
            Command::new(python()).arg(script).arg(&folder).args([&seconds, &SEGMENTS.to_string()]).status();
        assert!(recorded.unwrap().success(), "recording failed");
    }
    files
}

/// Runs `work` on this thread, and tells how long it kept a core busy: the machine may have other work.
fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let busy = || {
        let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
    };
    let start = busy();
    let result = work();
    (busy() - start, result)
}

fn row(what: &str, bytes: u64, took: Duration, note: &str) {
    let rate = bytes as f64 / 1e6 / took.as_secs_f64();
    println!("{what:<34} {:>8.2} s {rate:>9.1} MB/s  {note}", took.as_secs_f64());
}

/// CPU seconds that xprof takes to convert `file` for its trace viewer, start of the interpreter apart.
fn xprof_trace_viewer(file: &Path) -> Duration {
    let script = "import sys, time\n\
        from xprof.convert import raw_to_tool_data\n\
        t = time.process_time()\n\
        data, _ = raw_to_tool_data.xspace_to_tool_data([sys.argv[1]], 'trace_viewer', {})\n\
        assert len(data) > 1000\n\
        print(time.process_time() - t)\n";
    let output = Command::new(python()).args(["-c", script]).arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    Duration::from_secs_f64(text.trim().lines().last().unwrap().parse().unwrap())
}

fn main() {
    let files = segments();
    let scratch = workspace().join("target/bench-data/merge-scratch");
    fs::create_dir_all(&scratch).unwrap();
    let bytes: u64 = files.iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    let inputs: Vec<_> = files.iter().map(FileInput::new).collect();
    let inputs: Vec<_> = inputs.iter().map(|input| input as &dyn Input).collect();
    println!("{SEGMENTS} segments of one JAX process, {:.1} MB", bytes as f64 / 1e6);

    let copy = || {
        let mut out = File::create(scratch.join("copy")).unwrap();
        files.iter().for_each(|file| {
            io::copy(&mut File::open(file).unwrap(), &mut out).unwrap();
        });
    };
    copy();
    let (copied, ()) = timed(copy);
    row("copy", bytes, copied, "");

    let merged = scratch.join("merged.xplane.pb");
    let (merging, report) = timed(|| merge(&inputs, File::create(&merged).unwrap(), &mut |_, _| {}).unwrap());
    let ratio = merging.as_secs_f64() / copied.as_secs_f64();
    row("merge", bytes, merging, &format!("{} events, {ratio:.1} times the copy", report.events));

    let gzip = || {
        let mut out = GzEncoder::new(File::create(scratch.join("gz")).unwrap(), Compression::fast());
        files.iter().for_each(|file| {
            io::copy(&mut File::open(file).unwrap(), &mut out).unwrap();
        });
        out.finish().unwrap();
    };
    let (zipped, ()) = timed(gzip);
    row("gzip -1 of the same bytes", bytes, zipped, "");

    let host = || [HostTrace { host: "vm", input: inputs[0], offset_ps: 0 }];
    let first = fs::metadata(&files[0]).unwrap().len();
    let (plain, _) = timed(|| trace_events(&host(), io::sink(), &mut |_, _| {}).unwrap());
    row("trace events, not written", first, plain, "");
    let (exporting, exported) = timed(|| {
        let file = BufWriter::new(File::create(scratch.join("trace.json.gz")).unwrap());
        let mut out = GzEncoder::new(file, Compression::fast());
        let exported = trace_events(&host(), &mut out, &mut |_, _| {}).unwrap();
        out.finish().unwrap().flush().unwrap();
        exported
    });
    row("export to trace.json.gz", first, exporting, &format!("{} events", exported.events));

    let theirs = xprof_trace_viewer(&files[0]);
    let ratio = theirs.as_secs_f64() / exporting.as_secs_f64();
    row("xprof's trace_viewer", first, theirs, &format!("we are {ratio:.1} times faster"));
    fs::remove_dir_all(&scratch).unwrap();
}
