//! Marks: programs of Python and of shells, the agent that stores them, and what it says of their jobs.

mod bad_input;
mod commands;
mod library;
mod lives;

use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use fakes::{
    command::{Ended, start_as},
    fake_host::FakeHost,
    harness::{peer, peers, tpuscope, workspace},
    running_agent::{Home, RunningAgent},
};
use nix::sys::signal::Signal;
use serde_json::Value;

/// An agent that takes marks, on a host without chips.
struct MarkedHost {
    host: FakeHost,
    settings: &'static str,
    agent: Option<RunningAgent>,
}

impl MarkedHost {
    fn new(settings: &'static str) -> Self {
        let host = FakeHost::new();
        let agent = Some(RunningAgent::start(&host, settings));
        Self { host, settings, agent }
    }

    fn agent(&self) -> &RunningAgent {
        self.agent.as_ref().unwrap()
    }

    fn home(&self) -> &Home {
        self.agent().home()
    }

    fn socket(&self) -> PathBuf {
        self.home().path().join("marks.sock")
    }

    /// Kills the agent and starts another one with its state.
    fn kill_and_restart(&mut self) {
        let agent = self.agent.take().unwrap();
        agent.signal(Signal::SIGKILL);
        let (_, home) = agent.end();
        let command = home.command(&self.host.config(self.settings));
        self.agent = Some(RunningAgent::ready(home, command));
    }

    /// Runs `tpuscope` with the agent's socket, outside of any job.
    fn ask(&self, arguments: &[&str]) -> Ended {
        let mut command = Command::new(tpuscope());
        command.args(arguments).arg("--socket").arg(self.home().socket()).env_remove("SLURM_JOB_ID");
        start_as(command).end()
    }

    fn goodput(&self, job: &str, more: &[&str]) -> Value {
        let ended = self.ask(&[&["goodput", "--job", job, "--json"], more].concat());
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.json()
    }

    /// Stored, lost and refused marks of a job.
    fn counts(&self, job: &str) -> (u64, u64, u64) {
        let marks = &self.goodput(job, &["--strict"])["marks"];
        let count = |key: &str| marks[key].as_u64().unwrap();
        (count("stored"), count("lost"), count("refused"))
    }

    /// The program of the peers for this agent.
    fn program(&self, what: &str, arguments: &[&str]) -> Program {
        Program::start(self.socket(), what, arguments, None)
    }
}

/// A program of Python that marks.
struct Program {
    child: Child,
    input: Option<ChildStdin>,
    lines: BufReader<ChildStdout>,
}

impl Program {
    /// Starts it, with another version of the library if one is named.
    fn start(socket: PathBuf, what: &str, arguments: &[&str], version: Option<&str>) -> Self {
        let other = version.map(|version| peers().join("goodput-versions").join(version));
        let path: Vec<_> = other.into_iter().chain([workspace().join("python")]).collect();
        let mut command = Command::new(peer("goodput/bin/python"));
        command.arg(workspace().join("tests/peers/marks_peer.py")).arg(what).arg(socket).args(arguments);
        command.env("PYTHONPATH", std::env::join_paths(path).unwrap());
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("TZ", "UTC").env_remove("SLURM_JOB_ID");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, lines) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, lines }
    }

    /// The next line that it says.
    fn says(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// Lets it go on.
    fn go_on(&mut self) {
        writeln!(self.input.as_mut().unwrap()).unwrap();
    }

    /// Its last line, once it has ended well.
    fn last(mut self) -> Value {
        let last = self.says();
        assert!(self.child.wait().unwrap().success());
        last
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
