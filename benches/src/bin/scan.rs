//! The cost of a look at every process of a busy host: our discovery against the same walk in Python, in one run. After
//! the first look, discovery looks only into some of the processes that did not change.
//!
//! `scan [PROCESSES] [DESCRIPTORS]`: 500 processes with 26 descriptors each by default.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench fails loudly")]
use std::{
    env,
    fs::{self, File},
    path::Path,
    process::Command,
    time::Duration,
};

use benches::other_processes::OtherProcesses;
use host::{
    settings::{
        paths::Paths,
        workload::{Discover, Settings},
    },
    workloads::OwnerScanner,
};
use model::{
    device::{Chip, ChipIndex},
    time::Timestamp,
};
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike,
};

const ROUNDS: usize = 15;

fn cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(micros.unsigned_abs())
}

/// The median CPU time of a look, after the first. One of the other processes holds the chip of `dev`.
fn ours(dev: &Path, discover: Discover, interval: Duration) -> Duration {
    let chips = vec![Chip { index: ChipIndex(0), nodes: vec![dev.join("accel0")], ..Chip::default() }];
    let settings = Settings { discover, ..Settings::default() };
    let paths = Paths { dev: dev.to_owned(), ..Paths::default() };
    let mut discovery = OwnerScanner::new(paths, settings, chips.into());
    // Others on this machine may run JAX, but none holds this chip.
    assert!(discovery.tick(Timestamp(0)).owners.iter().any(|owner| owner.chips == [ChipIndex(0)]));
    let mut now = Timestamp(0);
    let times = (0..ROUNDS).map(|_| {
        now = now.plus(interval);
        let before = cpu();
        discovery.tick(now);
        cpu() - before
    });
    median(times.collect())
}

/// The median CPU time of the same walk in Python, the interpreter's start apart.
fn python() -> Duration {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/proc_walk.py");
    let output = Command::new("python3").arg(script).arg(ROUNDS.to_string()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    median(lines.lines().map(|line| Duration::from_secs_f64(line.parse().unwrap())).collect())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn main() {
    let mut numbers = env::args().skip(1).map(|word| word.parse().expect("a number"));
    let processes = numbers.next().unwrap_or(500);
    let descriptors = numbers.next().unwrap_or(26);
    let mut others = OtherProcesses::start(processes, descriptors, 0);
    let dev = tempfile::tempdir().unwrap();
    fs::write(dev.path().join("accel0"), "").unwrap();
    let node = File::open(dev.path().join("accel0")).unwrap();
    others.add(Command::new("sleep").arg("600").stdin(node).spawn().unwrap());
    let full = Duration::from_secs(10);
    let peer = python();
    let look = ours(dev.path(), Discover::Chips, full);
    let any = ours(dev.path(), Discover::Any, full);
    let tick = ours(dev.path(), Discover::Chips, Duration::ZERO);
    println!(
        "one look at {processes} processes with {descriptors} descriptors each, CPU time, median of {ROUNDS}:"
    );
    for (name, time) in
        [("python walk", peer), ("look after the first", look), ("the same, discover = any", any)]
    {
        let ratio = peer.as_secs_f64() / time.as_secs_f64();
        println!(
            "  {name:26} {:8.2} ms   {ratio:5.1} times faster than the walk in Python",
            time.as_secs_f64() * 1e3
        );
    }
    println!("  {:26} {:8.3} ms", "tick between two looks", tick.as_secs_f64() * 1e3);
    let share = look.as_secs_f64() / full.as_secs_f64() * 100.0;
    println!("every 10 s, a look is {share:.3} % of one core");
}
