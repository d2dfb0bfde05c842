//! Merge and export of a real trace by the shipped program, in bytes of input per second of one core, beside a plain copy and a gzip of
//! the same bytes, and xprof's own conversion for its trace viewer, all in one run.
//!
//! `MERGE_BENCH_SECONDS` is how long each of the four segments is recorded (default 4).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench fails loudly")]
#![expect(clippy::cast_precision_loss, reason = "figures of a bench are rounded")]

use std::{
    env,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use benches::{best_of, enter, promise, python, tpuscope, workspace};
use flate2::{Compression, write::GzEncoder};

const SEGMENTS: usize = 4;
/// What is promised: CPU time of a merge, as a multiple of a plain copy's, and of xprof's conversion, as one of an export's.
const MOST_OF_COPY: f64 = 10.0;
const LEAST_OF_EXPORT: f64 = 12.0;

/// The recorded segments, recorded once and kept.
fn segments() -> Vec<PathBuf> {
    let seconds = env::var("MERGE_BENCH_SECONDS").unwrap_or_else(|_| "4".to_owned());
    let folder = workspace().join(format!("target/bench-data/segments-{seconds}s"));
    let files: Vec<_> = (0..SEGMENTS).map(|i| folder.join(format!("{i}.xplane.pb"))).collect();
    if files.iter().any(|file| !file.exists()) {
        let script = workspace().join("benches/scripts/jax_segments.py");
        let recorded = Command::new(python("xprof"))
            .arg(script)
            .arg(&folder)
            .args([&seconds, &SEGMENTS.to_string()])
            .status();
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

/// Prints MB/s of a core.
fn row(what: &str, bytes: u64, took: Duration) {
    let rate = bytes as f64 / 1e6 / took.as_secs_f64();
    println!("{what:<34} {:>8.2} s {rate:>9.1} MB/s", took.as_secs_f64());
}

/// CPU seconds that xprof takes to convert `file` for its trace viewer, start of the interpreter apart.
fn xprof_trace_viewer(file: &Path) -> Duration {
    let script = "import sys, time\n\
        from xprof.convert import raw_to_tool_data\n\
        t = time.process_time()\n\
        data, _ = raw_to_tool_data.xspace_to_tool_data([sys.argv[1]], 'trace_viewer', {})\n\
        assert len(data) > 1000\n\
        print(time.process_time() - t)\n";
    let output = Command::new(python("xprof")).args(["-c", script]).arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    Duration::from_secs_f64(text.trim().lines().last().unwrap().parse().unwrap())
}

fn main() {
    enter();
    let files = segments();
    let scratch = workspace().join("target/bench-data/merge-scratch");
    fs::create_dir_all(&scratch).unwrap();
    let bytes: u64 = files.iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    println!("{SEGMENTS} segments of one JAX process, {:.1} MB", bytes as f64 / 1e6);

    let copy = || {
        let mut out = File::create(scratch.join("copy")).unwrap();
        files.iter().for_each(|file| {
            io::copy(&mut File::open(file).unwrap(), &mut out).unwrap();
        });
    };
    copy();
    let (copied, ()) = timed(copy);
    row("copy", bytes, copied);

    let merged = scratch.join("merged.xplane.pb");
    let mut arguments = vec!["sessions", "merge", "-o", merged.to_str().unwrap()];
    arguments.extend(files.iter().map(|file| file.to_str().unwrap()));
    let merging = best_of(3, &tpuscope(), &arguments).cpu;
    row("merge", bytes, merging);

    let gzip = || {
        let mut out = GzEncoder::new(File::create(scratch.join("gz")).unwrap(), Compression::fast());
        files.iter().for_each(|file| {
            io::copy(&mut File::open(file).unwrap(), &mut out).unwrap();
        });
        out.finish().unwrap();
    };
    let (zipped, ()) = timed(gzip);
    row("gzip -1 of the same bytes", bytes, zipped);

    let first = fs::metadata(&files[0]).unwrap().len();
    let (file, out) = (files[0].to_str().unwrap(), scratch.join("trace.json.gz"));
    let arguments = ["sessions", "export", file, "--format", "perfetto", "-o", out.to_str().unwrap()];
    let exporting = best_of(3, &tpuscope(), &arguments).cpu;
    row("export to trace.json.gz", first, exporting);
    let theirs = xprof_trace_viewer(&files[0]);
    row("xprof's trace_viewer", first, theirs);
    fs::remove_dir_all(&scratch).unwrap();

    let of_copy = merging.as_secs_f64() / copied.as_secs_f64();
    let of_export = theirs.as_secs_f64() / exporting.as_secs_f64();
    let merged = promise::at_most("CPU of a merge, as a multiple of a copy's", of_copy, MOST_OF_COPY);
    let exported =
        promise::at_least("CPU of xprof, as a multiple of an export's", of_export, LEAST_OF_EXPORT);
    if !(merged && exported) {
        std::process::exit(1);
    }
}
