//! What recording costs the agent: CPU for each megabyte, beside `gzip -1` of the same bytes, and memory.

use std::{
    fs::{self, File},
    io,
    path::Path,
    process::{Command, Stdio},
    thread::sleep,
    time::Duration,
};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use nix::{
    sys::resource::{UsageWho, getrusage},
    time::clock_getcpuclockid,
    unistd::Pid,
};

use super::{BenchAgent, job, peak_mib, scaled};
use crate::promise;

/// What is promised: CPU as a multiple of gzip's, and memory beyond an agent that does not record.
const MOST_OF_GZIP: f64 = 1.5;
const MOST_MIB: f64 = 16.0;
/// Each window has so many annotations in a step of 10 ms.
const ANNOTATIONS: &str = "400";
/// How long it records, and then does not: three windows.
const STRETCH: Duration = Duration::from_secs(15);

/// Windows of a busy job.
///
/// # Panics
/// If the job or the agent fails.
pub fn recording() -> bool {
    let id = format!("bench-recording-{}", std::process::id());
    let busy = job(&id, Duration::from_millis(10)).argument("--annotations").argument(ANNOTATIONS).start();
    let agent = BenchAgent::start("window = '2s'\nmax_window = '2s'\nevery = '5s'\nmax_write_rate = '0B'\n");
    let pid = agent.agent.pid();
    // Found before anything is measured.
    agent.on(&id, "periodic");
    agent.off(&id);
    let so_far = || Duration::from(clock_getcpuclockid(pid_of(pid)).unwrap().now().unwrap());
    let memory_before = peak_mib(pid);
    // In turns with recording and without: what the agent does besides is not the recorder's.
    let mut ours = 0.0;
    for _ in 0..scaled(4, 1) {
        let used = [false, true].map(|is_on| {
            let before = so_far();
            if is_on {
                agent.on(&id, "periodic");
            }
            sleep(STRETCH);
            agent.off(&id);
            // The window that was open is kept.
            sleep(Duration::from_secs(3));
            (so_far() - before).as_secs_f64()
        });
        ours += used[1] - used[0];
    }
    let memory = peak_mib(pid) - memory_before;
    drop(busy);
    let bytes: u64 = agent.segments(&id).iter().map(|segment| segment["trace_bytes"].as_u64().unwrap()).sum();
    let files = agent.files();
    assert!(!files.is_empty(), "{}", agent.agent.log());
    let folder = tempfile::tempdir().unwrap();
    let (program, library) = compressed(&files, folder.path());
    let per_mb = |seconds: f64| seconds * 1e9 / bytes as f64;
    println!(
        "{} windows of a job, {:.1} MB: {:.1} ms of CPU a MB beyond an idle agent's; gzip -1 of the same bytes {:.1} ms, the \
         agent's own compression alone {:.1} ms",
        files.len(),
        bytes as f64 / 1e6,
        per_mb(ours),
        per_mb(program),
        per_mb(library)
    );
    let cpu = promise::at_most("CPU of recording, of that of gzip -1", ours / program, MOST_OF_GZIP);
    promise::at_most("MiB more while it records", memory, MOST_MIB) && cpu
}

fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(pid.try_into().unwrap())
}

/// The seconds of CPU that compressing these segments takes: by the program `gzip -1`, and as the agent does it.
fn compressed(files: &[std::path::PathBuf], folder: &Path) -> (f64, f64) {
    let raw = folder.join("raw");
    let (mut program, mut library) = (0.0, 0.0);
    for path in files {
        let mut unpacked = Vec::new();
        io::copy(&mut GzDecoder::new(File::open(path).unwrap()), &mut unpacked).unwrap();
        fs::write(&raw, &unpacked).unwrap();
        let before = cpu(UsageWho::RUSAGE_CHILDREN);
        let mut gzip = Command::new("gzip");
        gzip.arg("-1")
            .stdin(File::open(&raw).unwrap())
            .stdout(Stdio::from(File::create(folder.join("gz")).unwrap()));
        assert!(gzip.status().unwrap().success());
        program += cpu(UsageWho::RUSAGE_CHILDREN) - before;
        let before = cpu(UsageWho::RUSAGE_SELF);
        let mut out = GzEncoder::new(File::create(folder.join("own")).unwrap(), Compression::fast());
        io::copy(&mut &unpacked[..], &mut out).unwrap();
        out.finish().unwrap().sync_all().unwrap();
        library += cpu(UsageWho::RUSAGE_SELF) - before;
    }
    (program, library)
}

/// The seconds of CPU so far, of this process or of the children that have ended.
fn cpu(whose: UsageWho) -> f64 {
    let usage = getrusage(whose).unwrap();
    [usage.user_time(), usage.system_time()]
        .map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6)
        .iter()
        .sum()
}
