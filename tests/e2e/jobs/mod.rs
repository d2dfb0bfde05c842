//! The jobs of a host over time: `tpuscope run`, `tpuscope jobs`, and what others tell the agent.

mod registry;
mod rights;
mod run_alone;

use std::path::Path;

use fakes::{
    command::{self, Ended},
    fake_host::FakeHost,
    fake_workload::FakeWorkload,
    harness::{artifact, tpuscope},
    running_agent::RunningAgent,
    wait::eventually,
};
use model::device::Generation;
use serde_json::Value;

/// An agent that looks at its host often.
const SETTINGS: &str = "[workload]\nscan_interval = '250ms'\n[sampler]\ninterval = '250ms'\n";

/// A host with two chips and an agent.
struct JobHost {
    host: FakeHost,
    agent: RunningAgent,
}

impl JobHost {
    fn start() -> Self {
        let host = FakeHost::with(Generation::V5e, 2);
        let agent = RunningAgent::start(&host, SETTINGS);
        Self { host, agent }
    }

    /// The same host and state, a new agent: the one before was killed.
    fn killed_and_started(self) -> Self {
        let Self { host, agent } = self;
        agent.signal(nix::sys::signal::Signal::SIGKILL);
        let (_, home) = agent.end();
        let command = home.command(&host.config(SETTINGS));
        Self { agent: RunningAgent::ready(home, command), host }
    }

    fn ask(&self, arguments: &[&str]) -> Ended {
        ask(&self.agent, arguments)
    }

    /// The jobs that run or ran here, the newest first.
    fn jobs(&self) -> Vec<Value> {
        self.ask(&["jobs", "list", "--json"]).json()["jobs"].as_array().unwrap().clone()
    }

    /// A job that is there and for which `check` holds.
    fn job(&self, id: &str, check: impl Fn(&Value) -> bool) -> Value {
        eventually("the job", || self.jobs().into_iter().find(|job| job["id"] == id && check(job)))
    }

    /// The node of a chip.
    fn node(&self, chip: usize) -> String {
        self.host.chips()[chip].nodes[0].display().to_string()
    }

    /// A command under `tpuscope run` that holds a chip, with further options of `run`.
    fn run(&self, options: &[&str], chip: usize) -> FakeWorkload {
        let (program, socket) = (tpuscope(), self.agent.home().socket());
        let (program, socket) = (path(&program), path(&socket));
        let (workload, node) = (artifact("fake-workload"), self.node(chip));
        let words =
            [&[program, "run", "--socket", socket], options, &["--", path(&workload), "--hold", &node]];
        FakeWorkload::command(&words.concat())
    }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn ask(agent: &RunningAgent, arguments: &[&str]) -> Ended {
    let socket = agent.home().socket().display().to_string();
    command::run(agent.home().path(), &[arguments, &["--socket", &socket]].concat())
}
