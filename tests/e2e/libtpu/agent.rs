//! The whole agent over a libtpu that dies or hangs: it goes on sampling from its other sources, and says why this
//! one is missing.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use fakes::{
    command::{Running, run, start},
    fake_host::FakeHost,
    libtpu::Staged,
};
use model::device::Generation;
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);

struct Agent {
    host: FakeHost,
    socket: PathBuf,
    process: Running,
}

impl Agent {
    fn start(library: &Path) -> Self {
        let host = FakeHost::with(Generation::V5e, 4);
        let socket = host.root().join("agent.sock");
        let state = host.root().join("state");
        std::fs::create_dir(&state).unwrap();
        let config = host.config(&format!(
            "[agent]\nstate_dir = {state:?}\n[api]\nhttp = \"off\"\ngrpc = \"off\"\n[libtpu]\npath = {library:?}\n\
             [sampler]\ninterval = \"250ms\"\nlibtpu_interval = \"250ms\"\nhost_service = false\n"
        ));
        let arguments = ["agent", "--config", config.to_str().unwrap(), "--socket", socket.to_str().unwrap()];
        let process = start(host.root(), &arguments);
        Self { host, socket, process }
    }

    /// The source of this name, as `status` shows it, once it is as wanted.
    fn source_until(&mut self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        let mut last = Value::Null;
        while begun.elapsed() < PATIENCE {
            assert!(self.process.alive(), "the agent ended");
            let arguments = ["status", "--json", "--socket", self.socket.to_str().unwrap()];
            let status = run(self.host.root(), &arguments);
            if status.code == Some(0) {
                let status = status.json();
                let sources = status["sources"].as_array().unwrap();
                last = sources.iter().find(|source| source["source"] == name).cloned().unwrap_or_default();
                if wanted(&last) {
                    return last;
                }
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("source {name} is not as wanted: {last:#}");
    }

    /// Whether the host's own metrics go on being read.
    fn goes_on(&mut self) {
        let reads =
            |source: &Value| source["reads"].to_string().trim_matches('"').parse::<u64>().unwrap_or(0);
        let before = reads(&self.source_until("host", |source| reads(source) > 0));
        self.source_until("host", |source| reads(source) >= before + 3);
    }
}

#[test]
fn the_agent_lives_on_whatever_libtpu_does() {
    for (conduct, words) in [
        ("sdk = segfault", "SIGSEGV"),
        ("duty_cycle_pct = hang", "duty_cycle_pct"),
        ("duty_cycle_pct = abort", "duty_cycle_pct"),
    ] {
        let staged = Staged::new(Some("0.0.52"), conduct);
        let mut agent = Agent::start(&staged.library());
        agent.source_until("libtpu", |source| source["absent"].to_string().contains(words));
        agent.goes_on();
        if conduct.starts_with("duty") {
            // The other metrics of the same library come back by themselves.
            agent.source_until("libtpu", |source| source["series"].to_string().trim_matches('"').len() > 1);
        }
    }
}
