//! What recording costs the agent: CPU for each megabyte, beside gzip -1 of the same bytes, and memory.

use std::{fs::File, io, time::Duration};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use nix::{time::clock_getcpuclockid, unistd::Pid};

use super::{BenchAgent, job, peak_mib, scaled};
use crate::promise;

/// What is promised: CPU as a multiple of gzip's, and memory beyond an agent that does not record.
const MOST_OF_GZIP: f64 = 1.5;
const MOST_MIB: f64 = 16.0;
/// Each window has so many annotations in a step of 10 ms.
const ANNOTATIONS: &str = "400";

/// Windows of a busy job.
///
/// # Panics
/// If the job or the agent fails.
pub fn recording() -> bool {
    let windows = scaled(12, 2);
    let id = format!("bench-recording-{}", std::process::id());
    let busy = job(&id, Duration::from_millis(10)).argument("--annotations").argument(ANNOTATIONS).start();
    let agent = BenchAgent::start("window = '2s'\nmax_window = '2s'\nevery = '5s'\nmax_write_rate = '0B'\n");
    let pid = agent.agent.pid();
    // Without recording, for as long: what it does besides is not the recorder's.
    let time = Duration::from_secs(5) * windows;
    let idle = used(pid, || std::thread::sleep(time));
    let memory_before = peak_mib(pid);
    agent.on(&id, "periodic");
    let recording = used(pid, || std::thread::sleep(time));
    agent.off(&id);
    let memory = peak_mib(pid) - memory_before;
    drop(busy);
    let bytes: u64 = agent.segments(&id).iter().map(|segment| segment["trace_bytes"].as_u64().unwrap()).sum();
    let files = agent.files();
    let unpacked: Vec<Vec<u8>> = files
        .iter()
        .map(|path| {
            let mut bytes = Vec::new();
            io::copy(&mut GzDecoder::new(File::open(path).unwrap()), &mut bytes).unwrap();
            bytes
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let gzip = used(std::process::id(), || {
        for (number, bytes) in unpacked.iter().enumerate() {
            let file = File::create(folder.path().join(number.to_string())).unwrap();
            let mut out = GzEncoder::new(file, Compression::fast());
            io::copy(&mut &bytes[..], &mut out).unwrap();
            out.finish().unwrap().sync_all().unwrap();
        }
    });
    let megabytes = bytes as f64 / 1e6;
    let ours = (recording.saturating_sub(idle)).as_secs_f64();
    println!(
        "{} windows of a job, {megabytes:.1} MB: {:.1} ms of CPU a MB beyond an idle agent's; gzip -1 of the same bytes {:.1} ms",
        files.len(),
        ours * 1e3 / megabytes,
        gzip.as_secs_f64() * 1e3 / megabytes
    );
    let cpu =
        promise::at_most("CPU of recording, of that of gzip -1", ours / gzip.as_secs_f64(), MOST_OF_GZIP);
    promise::at_most("MiB more while it records", memory, MOST_MIB) && cpu
}

/// The CPU time that a process uses while something is done.
fn used(pid: u32, work: impl FnOnce()) -> Duration {
    let pid = Pid::from_raw(pid.try_into().unwrap());
    let so_far = || Duration::from(clock_getcpuclockid(pid).unwrap().now().unwrap());
    let before = so_far();
    work();
    so_far() - before
}
