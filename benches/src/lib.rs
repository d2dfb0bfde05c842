//! What the benches share: commands and daemons whose time and memory are measured, what they run among, and promises.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench fails loudly")]
#![expect(clippy::cast_precision_loss, reason = "figures of a bench are rounded")]
#![expect(clippy::disallowed_methods, reason = "a bench measures real time")]

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use nix::sys::resource::{UsageWho, getrusage};

pub mod bare_http2;
pub mod capture_window;
pub mod daemon;
pub mod goodput_library;
pub mod other_processes;
pub mod owned_host;
pub mod profile_server;
pub mod promise;
pub mod recorder;
pub mod services;

/// What a command cost.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// From its start to its end.
    pub wall: Duration,
    /// Its time on all cores, in user and system mode.
    pub cpu: Duration,
    /// Its peak resident memory in bytes, that of its largest process.
    pub peak_rss: u64,
}

/// The argument that turns a bench into the wrapper that measures one command.
const WRAPPER: &str = "--measure-child";

/// To be called first in every bench that uses [`measure`]: runs the wrapper if this process is one.
pub fn enter() {
    let mut arguments = env::args_os().skip(1);
    if arguments.next().is_none_or(|first| first != WRAPPER) {
        return;
    }
    let program = arguments.next().unwrap();
    let start = Instant::now();
    // What it says on stdout is of no interest; the figures go there.
    let status = Command::new(program).args(arguments).stdout(Stdio::null()).status().unwrap();
    let wall = start.elapsed();
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    let micros = |time: nix::sys::time::TimeVal| time.tv_sec() * 1_000_000 + time.tv_usec();
    let cpu = micros(usage.user_time()) + micros(usage.system_time());
    println!("{} {cpu} {}", wall.as_micros(), usage.max_rss() * 1024);
    std::process::exit(status.code().unwrap_or(1));
}

/// Runs a command to its end, in a process of its own whose only child it is, so that the peak is its own.
pub fn measure(program: &Path, arguments: &[&str]) -> Cost {
    let output = Command::new(env::current_exe().unwrap())
        .arg(WRAPPER)
        .arg(program)
        .args(arguments)
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success(), "{} {arguments:?} failed: {}", program.display(), output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    let figures: Vec<u64> = text.split_whitespace().map(|figure| figure.parse().unwrap()).collect();
    Cost {
        wall: Duration::from_micros(figures[0]),
        cpu: Duration::from_micros(figures[1]),
        peak_rss: figures[2],
    }
}

/// The cheapest of several runs by CPU time: the machine may have other work.
pub fn best_of(runs: usize, program: &Path, arguments: &[&str]) -> Cost {
    (0..runs).map(|_| measure(program, arguments)).min_by_key(|cost| cost.cpu).unwrap()
}

/// The workspace's top folder.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The folder for data that benches make once and keep.
pub fn data() -> PathBuf {
    let folder = workspace().join("target/bench-data");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The `tpuscope` binary beside this bench, of the same profile.
pub fn tpuscope() -> PathBuf {
    let path = env::current_exe().unwrap().with_file_name("tpuscope");
    assert!(path.exists(), "{} is missing: cargo build --release -p tpuscope", path.display());
    path
}

/// The Python that has a peer installed: see tests/setup.sh.
pub fn python(peer: &str) -> PathBuf {
    let peers = env::var_os("TPUSCOPE_PEERS").map_or_else(|| workspace().join("target/peers"), PathBuf::from);
    let path = peers.join(peer).join("bin/python");
    assert!(path.exists(), "{} is missing: run tests/setup.sh", path.display());
    path
}

/// One line of figures.
pub fn row(what: &str, cost: Cost) {
    println!(
        "{what:<34} {:>9.3} s wall {:>9.3} s CPU {:>9.1} MiB peak",
        cost.wall.as_secs_f64(),
        cost.cpu.as_secs_f64(),
        cost.peak_rss as f64 / f64::from(1 << 20)
    );
}
