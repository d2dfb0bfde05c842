//! How fast a snapshot is made of what several processes recorded, beside a bare `gunzip` of the same segments.

use std::{
    fs::File,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use fakes::{jax_job::RunningJaxJob, wait::until};

use super::{BenchAgent, job, peak_mib, scaled};
use crate::promise;

/// What is promised: the speed, as a share of gunzip's.
const LEAST_OF_GUNZIP: f64 = 0.5;
/// How often each is measured.
const ROUNDS: usize = 3;

/// A minute of eight processes.
///
/// # Panics
/// If a job or the agent fails.
pub fn snapshot() -> bool {
    let (count, seconds) = (scaled(8, 2), scaled(60, 15));
    let id = format!("bench-snapshot-{}", std::process::id());
    let jobs: Vec<RunningJaxJob> = thread::scope(|scope| {
        let start = |_| {
            let job = job(&id, Duration::from_millis(50)).argument("--annotations").argument("200");
            scope.spawn(|| job.start())
        };
        let starting: Vec<_> = (0..count).map(start).collect();
        starting.into_iter().map(|job| job.join().unwrap()).collect()
    });
    let agent = BenchAgent::start("max_write_rate = '0B'\nmax_growth = '4GiB'\nmax_slowdown = '100%'\n");
    until("all jobs to be found", || agent.processes(&id).len() == count as usize);
    agent.on(&id, "drain");
    thread::sleep(Duration::from_secs(u64::from(seconds)));
    agent.off(&id);
    drop(jobs);
    let bytes: u64 = agent.segments(&id).iter().map(|segment| segment["trace_bytes"].as_u64().unwrap()).sum();
    let files = agent.files();
    let folder = tempfile::tempdir().unwrap();
    let memory_before = peak_mib(agent.agent.pid());
    let mut best = [Duration::MAX; 2];
    for round in 0..ROUNDS {
        let out = File::create(folder.path().join("unpacked")).unwrap();
        let begin = Instant::now();
        let unpacked = Command::new("gunzip").arg("--stdout").args(&files).stdout(out).status().unwrap();
        best[0] = best[0].min(begin.elapsed());
        assert!(unpacked.success());
        let begin = Instant::now();
        let ended = agent.ask(&["snapshot", "--last", "1h", "--job", &id, "--session", &format!("s{round}")]);
        best[1] = best[1].min(begin.elapsed());
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    let rate = |took: Duration| bytes as f64 / 1e6 / took.as_secs_f64();
    println!(
        "snapshot of {seconds} s of {count} processes, {} segments, {:.1} MB: {:.0} MB/s; gunzip of the same {:.0} MB/s",
        files.len(),
        bytes as f64 / 1e6,
        rate(best[1]),
        rate(best[0])
    );
    // What is kept of a trace meanwhile are the names in it.
    println!("  the agent needed {:.1} MiB more for it", peak_mib(agent.agent.pid()) - memory_before);
    promise::at_least(
        "speed of a snapshot, of that of gunzip",
        rate(best[1]) / rate(best[0]),
        LEAST_OF_GUNZIP,
    )
}
