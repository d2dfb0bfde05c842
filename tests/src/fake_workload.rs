//! The `fake-workload` process, seen from a test: started, asked for its counts, killed on drop.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use crate::harness::artifact;

/// How to start it.
#[derive(Debug)]
pub struct FakeWorkload {
    command: Command,
}

/// What reached its listeners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Connections.
    pub connections: u64,
    /// Bytes in them.
    pub bytes: u64,
}

impl Default for FakeWorkload {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeWorkload {
    /// One that holds and listens on nothing.
    pub fn new() -> Self {
        Self { command: Command::new(artifact("fake-workload")) }
    }

    /// One that is started by `prefix`, such as `unshare -n`.
    pub fn below(prefix: &[&str]) -> Self {
        let mut command = Command::new(prefix[0]);
        command.args(&prefix[1..]).arg(artifact("fake-workload"));
        Self { command }
    }

    /// One that is started by these words, which name the program themselves.
    pub fn command(words: &[&str]) -> Self {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        Self { command }
    }

    /// Holds a device node.
    #[must_use]
    pub fn hold(mut self, node: &Path) -> Self {
        self.command.arg("--hold").arg(node);
        self
    }

    /// Listens; port 0 takes a free one.
    #[must_use]
    pub fn listen(mut self, address: &str) -> Self {
        self.command.args(["--listen", address]);
        self
    }

    /// Shares its ports with others that do.
    #[must_use]
    pub fn reuse_port(mut self) -> Self {
        self.command.arg("--reuse-port");
        self
    }

    /// Has a child that listens.
    #[must_use]
    pub fn child_listens(mut self, address: &str) -> Self {
        self.command.args(["--child", "--listen", address]);
        self
    }

    /// A variable of its environment.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Starts it and waits until it listens.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn start(mut self) -> RunningWorkload {
        let mut child = self
            .command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the fake workload starts");
        let stdin = child.stdin.take().expect("piped");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut running = RunningWorkload { child, stdin, stdout, ports: Vec::new() };
        let ready = running.line();
        running.ports = ready["ports"].as_array().expect("ports").iter().map(port).collect();
        running
    }
}

fn port(value: &serde_json::Value) -> u16 {
    value.as_u64().and_then(|port| u16::try_from(port).ok()).expect("a port")
}

/// A workload that runs.
#[derive(Debug)]
pub struct RunningWorkload {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    ports: Vec<u16>,
}

impl RunningWorkload {
    /// Its pid (of the outermost command that it was started by).
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its ports, in the order of `listen`.
    pub fn ports(&self) -> &[u16] {
        &self.ports
    }

    /// What reached it so far.
    ///
    /// # Panics
    /// If it has died.
    pub fn counts(&mut self) -> Counts {
        writeln!(self.stdin).expect("the fake workload lives");
        let line = self.line();
        let number = |name: &str| line[name].as_u64().expect("a count");
        Counts { connections: number("connections"), bytes: number("bytes") }
    }

    fn line(&mut self) -> serde_json::Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("the fake workload lives");
        serde_json::from_str(&line).expect("a line of JSON")
    }
}

impl Drop for RunningWorkload {
    fn drop(&mut self) {
        // Already dead is as good. What it was started by may have it as a child: it ends as its input closes.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
