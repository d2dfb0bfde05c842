//! What a hook of Slurm costs a job: prolog and epilog with a running agent on a host with 8 chips and 500 other processes, beside
//! `tpuscope version` in the same script, started in turns.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench fails loudly")]
#![expect(clippy::disallowed_methods, reason = "a bench measures real time")]

use std::{
    path::Path,
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use benches::{other_processes::OtherProcesses, promise};
use fakes::{
    fake_host::FakeHost,
    harness::tpuscope,
    running_agent::{Home, RunningAgent},
    slurm_cluster::write_hook,
};
use model::device::Generation;

const ROUNDS: usize = 101;
/// Times of `tpuscope version`.
const PROMISED: f64 = 3.0;

fn main() -> ExitCode {
    let _others = OtherProcesses::start(500, 26, 50);
    let host = FakeHost::with(Generation::V6e, 8);
    let agent = RunningAgent::start(&host, "");
    let home = Home::new();
    let script = |name: &str, words: &str| {
        let (hook, of) = (home.path().join(name), if name == "epilog" { "epilog" } else { "prolog" });
        write_hook(of, &tpuscope(), &hook);
        let text = std::fs::read_to_string(&hook).unwrap();
        std::fs::write(&hook, text.replace(&format!("slurm {of}"), words)).unwrap();
        hook
    };
    let scripts = [
        script("version", "version"),
        script("prolog", "slurm prolog --strict"),
        script("epilog", "slurm epilog --strict"),
    ];
    let mut times = scripts.each_ref().map(|_| Vec::new());
    for round in 0..ROUNDS {
        for (script, times) in scripts.iter().zip(&mut times) {
            times.push(run(script, &agent.home().socket(), &host, round));
        }
    }
    let [version, prolog, epilog] = times.map(median);
    println!("median of {ROUNDS}: version {version:.2?}, prolog {prolog:.2?}, epilog {epilog:.2?}");
    let ratio = |hook: Duration| hook.as_secs_f64() / version.as_secs_f64();
    let kept = [("prolog", prolog), ("epilog", epilog)].map(|(name, hook)| {
        promise::at_most(&format!("{name} in times of `tpuscope version`"), ratio(hook), PROMISED)
    });
    if kept.iter().all(|kept| *kept) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a script for one of many jobs.
fn run(script: &Path, socket: &Path, host: &FakeHost, job: usize) -> Duration {
    let mut command = Command::new(script);
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null());
    command.env("SLURM_JOB_ID", (job + 1).to_string()).env("SLURM_JOB_UID", "20001");
    command.env("SLURM_JOB_RESTART_COUNT", "0").env("SLURM_NODELIST", "tpu-[001-256]");
    command.env("TPUSCOPE_SOCKET", socket).env("TPUSCOPE_CONFIG", host.config(""));
    let start = Instant::now();
    let status = command.status().unwrap();
    let time = start.elapsed();
    assert!(status.success(), "{} failed: {status}", script.display());
    time
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
