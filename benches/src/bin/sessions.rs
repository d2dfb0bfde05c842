//! A store of 10,000 sessions beside an empty one and one of 20: the start of the agent until it is ready, the list of
//! the newest 20, and one more session. In turns.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench fails loudly")]
#![expect(clippy::disallowed_methods, reason = "a bench measures real time")]

use std::{
    fs,
    path::Path,
    process::{Command, ExitCode, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use benches::{
    daemon::{Daemon, free_address},
    promise, tpuscope,
};
use fakes::{fake_host::FakeHost, fake_profiler::trace};
use prost::Message;
use tempfile::TempDir;

const MANY: usize = 10_000;
const FEW: usize = 20;
const ROUNDS: usize = 15;
/// What is promised, as ratios.
const READY: f64 = 1.2;
const LIST: f64 = 1.5;
const FINISH: f64 = 2.0;

/// A state directory and the agents that use it, one after the other.
struct Store {
    home: TempDir,
    session: usize,
}

impl Store {
    /// One with `count` sessions that an agent has put into its catalog.
    fn with(host: &FakeHost, count: usize) -> Self {
        let store = Self { home: TempDir::new().unwrap(), session: 0 };
        let logdir = store.home.path().join("state/sessions");
        fs::create_dir_all(logdir.join("owners")).unwrap();
        let part = trace().encode_to_vec();
        for n in 0..count {
            let folder = logdir.join(format!("plugins/profile/s{n:05}"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("h.xplane.pb"), &part).unwrap();
            fs::write(folder.join("manifest.json"), manifest(n, part.len())).unwrap();
            fs::write(logdir.join(format!("owners/s{n:05}.json")), r#"{"uids":[0]}"#).unwrap();
        }
        let (agent, _) = store.start(host);
        let begin = Instant::now();
        // The first list waits until all folders are read, which may take longer than a command waits.
        while store.try_list(count.max(1)) != Some(count) {
            assert!(begin.elapsed() < Duration::from_secs(120), "the catalog is not filled");
            sleep(Duration::from_millis(100));
        }
        drop(agent);
        store
    }

    /// Starts an agent, and says how long it took to be ready.
    fn start(&self, host: &FakeHost) -> (Daemon, Duration) {
        let (home, address) = (self.home.path(), free_address());
        let mut command = Command::new(tpuscope());
        command
            .arg("agent")
            .arg("--config")
            .arg(host.config(""))
            .arg("--socket")
            .arg(home.join("agent.sock"));
        command.args(["--set", &format!("agent.state_dir={}", home.join("state").display())]);
        command.args(["--set", &format!("api.http={address}"), "--set", "api.grpc=off"]);
        Daemon::start_until(&mut command, address, "/readyz", |page| page.starts_with("HTTP/1.1 200"))
    }

    /// What a command prints, if it succeeds.
    fn command(&self, arguments: &[&str]) -> Option<String> {
        let mut command = Command::new(tpuscope());
        command.args(arguments).arg("--socket").arg(self.home.path().join("agent.sock"));
        let output = command.stderr(Stdio::inherit()).output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    /// The number of sessions among the newest `limit`.
    fn try_list(&self, limit: usize) -> Option<usize> {
        let text = self.command(&["sessions", "list", "--limit", &limit.to_string()])?;
        Some(text.lines().filter(|line| line.starts_with('s')).count())
    }

    fn time_of_list(&self) -> Duration {
        let begin = Instant::now();
        assert_eq!(self.try_list(FEW), Some(FEW));
        begin.elapsed()
    }

    /// The time to take in one more session.
    fn time_of_one_more(&mut self, file: &Path) -> Duration {
        self.session += 1;
        let name = format!("s_{}", self.session);
        let begin = Instant::now();
        self.command(&["sessions", "import", file.to_str().unwrap(), "--name", &name]).unwrap();
        begin.elapsed()
    }
}

fn manifest(n: usize, size: usize) -> String {
    format!(
        r#"{{"version": 1, "session": "s{n:05}", "id": "{n:032x}", "tool": {{"name": "tpuscope", "version": "0.1.0"}},
        "created": "2026-03-04T{:02}:{:02}:{:02}Z", "window": {{"start": "2026-03-04T00:00:00Z", "stop": "2026-03-04T00:00:02Z"}},
        "tracer_levels": {{"host": 2, "device": 1, "python": 0}}, "hosts": [{{"host": "h", "parts": [{{"file": "h.xplane.pb",
        "size": {size}, "sha256": "{:064x}", "pid": 17, "command": "python", "uid": 0, "user": "root", "planes": 1, "lines": 1,
        "events": 1, "versions": {{"jaxlib": "0.10.2"}}, "job": {{"kind": "slurm", "id": "{n}"}}}}]}}]}}"#,
        n / 3600,
        n / 60 % 60,
        n % 60,
        0
    )
}

fn main() -> ExitCode {
    let host = FakeHost::new();
    println!("making {MANY} sessions");
    let (empty, mut few, mut many) =
        (Store::with(&host, 0), Store::with(&host, FEW), Store::with(&host, MANY));
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        first.push(empty.start(&host).1);
        second.push(many.start(&host).1);
    }
    let ready = compare(&format!("start until ready, none and {MANY} sessions"), first, second);
    let _agents = [few.start(&host), many.start(&host)];
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        first.push(few.time_of_list());
        second.push(many.time_of_list());
    }
    let list = compare(&format!("list --limit {FEW}, {FEW} and {MANY} sessions"), first, second);
    let file = host.root().join("one.xplane.pb");
    fs::write(&file, trace().encode_to_vec()).unwrap();
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        first.push(few.time_of_one_more(&file));
        second.push(many.time_of_one_more(&file));
    }
    let finish = compare(&format!("one more session, {FEW} and {MANY} sessions"), first, second);
    let kept = [
        promise::at_most("start until ready, ratio", ready, READY),
        promise::at_most("list of the newest, ratio", list, LIST),
        promise::at_most("one more session, ratio", finish, FINISH),
    ];
    if kept.iter().all(|kept| *kept) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The ratio of the medians.
fn compare(what: &str, first: Vec<Duration>, second: Vec<Duration>) -> f64 {
    let (first, second) = (median(first), median(second));
    println!("{what}, medians of {ROUNDS}: {first:.1?}, {second:.1?}");
    second.as_secs_f64() / first.as_secs_f64()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
