//! Many hosts: which ones are meant, how they are reached, and what is said of those that do not answer.

mod bad_peers;
mod certificates;
mod certs_command;
mod lists;
mod reach;
pub(crate) mod remote_agent;
mod ssh;

use std::{os::unix::fs::symlink, path::Path, process::Command};

use fakes::{
    command::{Ended, RunningCommand, start_as},
    fake_host::FakeHost,
    harness::tpuscope,
    running_agent::RunningAgent,
};
use model::device::Generation;
use tempfile::TempDir;

/// Agents of fake hosts, each with a socket that has the host's name.
struct Hosts {
    folder: TempDir,
    running: Vec<(FakeHost, RunningAgent)>,
}

impl Hosts {
    /// Starts one for each name, with so many chips.
    fn start(hosts: &[(&str, u32)]) -> Self {
        let mut started = Self { folder: tempfile::tempdir().unwrap(), running: Vec::new() };
        for (name, chips) in hosts {
            started.add(name, FakeHost::with(Generation::V6e, *chips));
        }
        started
    }

    /// Starts one more, on this host.
    fn add(&mut self, name: &str, host: FakeHost) {
        let agent = RunningAgent::start(&host, "");
        symlink(agent.home().socket(), self.folder().join(name)).unwrap();
        self.running.push((host, agent));
    }

    fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The command that reaches them.
    fn command(&self) -> String {
        format!("{} dial-stdio --socket {}/{{host}}", tpuscope().display(), self.folder().display())
    }

    /// `status` with these arguments, through [`command`](Self::command).
    fn status(&self, arguments: &[&str]) -> Ended {
        let command = self.command();
        run(&[arguments, &["--via-command", &command]].concat())
    }
}

fn status(arguments: &[&str]) -> Command {
    let mut command = Command::new(tpuscope());
    command.arg("status").args(arguments).env_remove("TPUSCOPE_SOCKET");
    command
}

fn start(arguments: &[&str]) -> RunningCommand {
    start_as(status(arguments))
}

fn run(arguments: &[&str]) -> Ended {
    start(arguments).end()
}

/// The row of a host in the table.
fn row<'a>(page: &'a str, host: &str) -> &'a str {
    let found = page.lines().find(|line| line.split_whitespace().next() == Some(host));
    found.unwrap_or_else(|| panic!("{host} has no row in:\n{page}"))
}
