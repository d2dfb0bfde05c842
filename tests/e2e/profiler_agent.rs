//! An agent that captures from given profilers, for the tests of captures and of stored sessions.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use fakes::{
    command::{self, Ended, run},
    harness::tpuscope,
    profiler_probe::capture_in_window,
    wait::until,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

/// An agent whose only workloads are the profilers that its file names; killed on drop.
pub(super) struct Agent {
    pub(super) child: Child,
    pub(super) home: TempDir,
    /// The words that start tpuscope.
    program: Vec<String>,
}

impl Agent {
    pub(super) fn start(profilers: &[String]) -> Self {
        Self::start_with(profilers, "")
    }

    pub(super) fn start_with(profilers: &[String], settings: &str) -> Self {
        Self::start_as("", profilers, settings)
    }

    /// One whose host has this name; empty: that of the machine.
    pub(super) fn start_as(host: &str, profilers: &[String], settings: &str) -> Self {
        Self::start_by(&[tpuscope().display().to_string()], host, profilers, settings)
    }

    /// One that these words start: another tpuscope, or one in other namespaces.
    pub(super) fn start_by(program: &[String], host: &str, profilers: &[String], settings: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let child = Self::spawn(program, home.path(), host, profilers, settings);
        let mut agent = Self { child, home, program: program.to_vec() };
        agent.is_up();
        agent
    }

    /// One whose settings its home has already.
    pub(super) fn start_in(home: TempDir) -> Self {
        let program = vec![tpuscope().display().to_string()];
        let mut agent = Self { child: Self::run(&program, home.path()), home, program };
        agent.is_up();
        agent
    }

    /// The same home, a new agent: after a kill.
    pub(super) fn again(mut self, profilers: &[String]) -> Self {
        self.child = Self::spawn(&self.program, self.home.path(), "", profilers, "");
        self.is_up();
        self
    }

    fn spawn(program: &[String], home: &Path, host: &str, profilers: &[String], settings: &str) -> Child {
        let endpoint = |at: &String| format!("[[workload.endpoints]]\nkind = 'profiler'\naddress = '{at}'\n");
        // A procfs of nothing: processes of this machine are no workloads of the test.
        fs::create_dir_all(home.join("proc")).unwrap();
        let text = format!(
            "[agent]\nhost = '{host}'\nstate_dir = '{0}/state'\n[api]\nhttp = 'off'\ngrpc = 'off'\nsocket = '{0}/agent.sock'\n\
             [paths]\nprocfs = '{0}/proc'\n{settings}{1}",
            home.display(),
            profilers.iter().map(endpoint).collect::<String>()
        );
        fs::write(home.join("agent.toml"), text).unwrap();
        Self::run(program, home)
    }

    /// The same home and settings, a new agent.
    pub(super) fn restart(&mut self) {
        self.child = Self::run(&self.program, self.home.path());
        self.is_up();
    }

    fn run(program: &[String], home: &Path) -> Child {
        let log = File::options().create(true).append(true).open(home.join("log")).unwrap();
        let mut command = Command::new(&program[0]);
        command.args(&program[1..]).arg("agent").arg("--config").arg(home.join("agent.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    pub(super) fn is_up(&mut self) {
        until("the agent", || {
            assert!(matches!(self.child.try_wait(), Ok(None)), "the agent ended: {}", self.log());
            self.ask(&["sessions", "list"]).code == Some(0)
        });
    }

    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }

    pub(super) fn arguments(&self, arguments: &[&str]) -> Vec<String> {
        let socket = self.home.path().join("agent.sock").display().to_string();
        arguments.iter().map(ToString::to_string).chain(["--socket".to_owned(), socket]).collect()
    }

    pub(super) fn ask(&self, arguments: &[&str]) -> Ended {
        run(self.home.path(), &self.arguments(arguments))
    }

    pub(super) fn sessions(&self) -> Vec<String> {
        let listed = self.ask(&["sessions", "list", "--json"]).json();
        let names = listed["sessions"].as_array().unwrap().iter();
        names.map(|session| session["session"].as_str().unwrap().to_owned()).collect()
    }

    /// A capture that is in its window.
    pub(super) fn in_mid_window(&self, job: &str) -> command::RunningCommand {
        let arguments = self.arguments(&["capture", "--duration", "60s"]);
        capture_in_window(&[job.to_owned()], || command::start(self.home.path(), &arguments))
    }

    /// How many sockets it has open.
    pub(super) fn sockets(&self) -> usize {
        let open = fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().flatten();
        let targets = open.filter_map(|entry| fs::read_link(entry.path()).ok());
        targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    pub(super) fn end(&mut self) -> Option<i32> {
        let mut status = None;
        until("the end of the agent", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }

    pub(super) fn staged(&self) -> Vec<PathBuf> {
        let staging = self.home.path().join("state/sessions/plugins/.tpuscope");
        fs::read_dir(staging)
            .map(|entries| entries.map(|entry| entry.unwrap().path()).collect())
            .unwrap_or_default()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Already over is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
