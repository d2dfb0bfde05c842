//! The state directory of an agent over its lives: what an older version left, what was damaged, what a disk refuses, and
//! what the limits let go.

mod broken_disk;
mod disks;
mod import;
mod limits;
mod lives;

use std::{
    fs::{self, File, Permissions},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use fakes::{
    command::{self, Ended, run},
    fake_profiler::{FakeProfiler, Mode, trace},
    harness::{copy_program, tpuscope},
    wait::{eventually, until},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use tempfile::TempDir;

/// A user without rights.
const NOBODY: u32 = 65534;

/// A host with one profiler, and an agent that starts and ends over one state directory.
struct StatefulHost {
    home: TempDir,
    state: PathBuf,
    profiler: FakeProfiler,
    environment: Vec<(&'static str, String)>,
    agent: Option<Child>,
}

impl StatefulHost {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let state = home.path().join("state");
        Self::with_state(home, state)
    }

    /// One whose state lies at `state`.
    fn with_state(home: TempDir, state: PathBuf) -> Self {
        fs::set_permissions(home.path(), Permissions::from_mode(0o755)).unwrap();
        // A procfs of nothing: processes of this machine are no workloads of the test.
        fs::create_dir_all(home.path().join("proc")).unwrap();
        let profiler = FakeProfiler::start(Mode::Trace(trace()));
        Self { home, state, profiler, environment: Vec::new(), agent: None }
    }

    /// Starts an agent and waits until it answers.
    fn start(&mut self, settings: &str) {
        self.spawn(settings);
        until("the agent", || {
            let ended = self.agent.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "the agent ended: {}", self.log());
            self.ask(&["status"]).code == Some(0)
        });
    }

    /// Starts an agent that does not stay, and gives its exit code.
    fn start_in_vain(&mut self, settings: &str) -> i32 {
        self.spawn(settings);
        self.wait().expect("it ends by itself")
    }

    fn spawn(&mut self, settings: &str) {
        assert!(self.agent.is_none(), "one at a time");
        let home = self.home.path();
        let text = format!(
            "[agent]\nstate_dir = '{}'\nhost = 'h'\n[api]\nhttp = 'off'\ngrpc = 'off'\nsocket = '{1}/agent.sock'\n\
             [paths]\nprocfs = '{1}/proc'\n[[workload.endpoints]]\nkind = 'profiler'\naddress = '{2}'\n{settings}",
            self.state.display(),
            home.display(),
            self.profiler.target(),
        );
        fs::write(home.join("agent.toml"), text).unwrap();
        let log = File::options().create(true).append(true).open(home.join("log")).unwrap();
        let mut command = Command::new(tpuscope());
        command.arg("agent").arg("--config").arg(home.join("agent.toml"));
        command.envs(self.environment.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.agent = Some(command.spawn().unwrap());
    }

    fn signal(&self, signal: Signal) {
        let pid = self.agent.as_ref().unwrap().id();
        kill(Pid::from_raw(pid.try_into().unwrap()), signal).unwrap();
    }

    fn wait(&mut self) -> Option<i32> {
        let mut agent = self.agent.take().unwrap();
        eventually("the end of the agent", || agent.try_wait().unwrap()).code()
    }

    fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        assert_eq!(self.wait(), Some(0), "{}", self.log());
    }

    fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        assert_eq!(self.wait(), None);
    }

    fn log(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }

    fn arguments(&self, arguments: &[&str]) -> Vec<String> {
        let socket = self.home.path().join("agent.sock").display().to_string();
        arguments.iter().map(ToString::to_string).chain(["--socket".to_owned(), socket]).collect()
    }

    fn ask(&self, arguments: &[&str]) -> Ended {
        run(self.home.path(), &self.arguments(arguments))
    }

    fn done(&self, arguments: &[&str]) -> Ended {
        let ended = self.ask(arguments);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}\n{}", self.log());
        ended
    }

    /// The same as a user without rights.
    fn ask_as_nobody(&self, arguments: &[&str]) -> Ended {
        assert!(nix::unistd::geteuid().is_root(), "only root can become somebody else");
        let binary = self.home.path().join("tpuscope");
        if !binary.exists() {
            copy_program(&tpuscope(), &binary);
        }
        fs::set_permissions(self.home.path().join("agent.sock"), Permissions::from_mode(0o666)).unwrap();
        let mut command = Command::new(&binary);
        command.uid(NOBODY).gid(NOBODY).current_dir("/").args(self.arguments(arguments));
        command::start_as(command).end()
    }

    fn capture(&self, session: &str) {
        self.done(&["capture", "--duration", "10ms", "--session", session]);
    }

    /// What `sessions list --json` shows.
    fn listed(&self) -> Vec<Value> {
        self.done(&["sessions", "list", "--json"]).json()["sessions"].as_array().unwrap().clone()
    }

    fn sessions(&self) -> Vec<String> {
        self.listed().iter().map(|session| session["session"].as_str().unwrap().to_owned()).collect()
    }

    fn database(&self) -> PathBuf {
        self.state.join("state.db")
    }

    fn folder(&self, session: &str) -> PathBuf {
        self.state.join("sessions/plugins/profile").join(session)
    }

    /// The databases that were moved aside.
    fn moved(&self) -> Vec<PathBuf> {
        let paths = fs::read_dir(&self.state).unwrap().map(|entry| entry.unwrap().path());
        paths.filter(|path| path.to_string_lossy().contains("state.db.damaged-")).collect()
    }
}

impl Drop for StatefulHost {
    fn drop(&mut self) {
        if let Some(agent) = &mut self.agent {
            // Already over is as good.
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

/// Copies the files of a folder.
fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}
