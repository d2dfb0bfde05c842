//! An agent that uploads every session to a bucket, and what must be in the bucket.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use fakes::{
    command::{Ended, RunningCommand, run, start},
    fake_gcs::FakeGcs,
    harness::tpuscope,
    wait::{until, wait_with},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

/// Long enough for several waits after failures.
pub(super) const UPLOAD_LIMIT: std::time::Duration = std::time::Duration::from_secs(120);

/// What an agent is started with.
#[derive(Default)]
pub(super) struct Setup {
    /// The profilers that it captures.
    pub(super) profilers: Vec<String>,
    /// Further lines of its destination.
    pub(super) destination: String,
    /// Further settings.
    pub(super) settings: String,
    /// Where its state is, if not in its home.
    pub(super) state: Option<PathBuf>,
    /// Further variables.
    pub(super) environment: Vec<(&'static str, String)>,
}

/// The agent; killed when dropped.
pub(super) struct UploadAgent {
    child: Child,
    home: TempDir,
    state: PathBuf,
    environment: Vec<(&'static str, String)>,
}

impl UploadAgent {
    /// Starts one whose destination `bucket` is `gs://traces/runs` at `server`.
    pub(super) fn start(server: &FakeGcs, setup: Setup) -> Self {
        let key = server.credentials_file();
        Self::start_at("gs://traces/runs", &key, setup)
    }

    /// Starts one with another URL and key file.
    pub(super) fn start_at(url: &str, key: &Path, setup: Setup) -> Self {
        let home = tempfile::tempdir().unwrap();
        let state = setup.state.unwrap_or_else(|| home.path().join("state"));
        let endpoint = |at: &String| format!("[[workload.endpoints]]\nkind = 'profiler'\naddress = '{at}'\n");
        // A procfs of nothing: processes of this machine are no workloads of the test.
        fs::create_dir_all(home.path().join("proc")).unwrap();
        let text = format!(
            "[agent]\nstate_dir = '{}'\n[api]\nhttp = 'off'\ngrpc = 'off'\nsocket = '{1}/agent.sock'\n\
             [paths]\nprocfs = '{1}/proc'\n[[destination]]\nname = 'bucket'\nurl = '{url}'\n\
             upload = 'always'\ncredentials = '{2}'\n{3}\n{4}\n{5}",
            state.display(),
            home.path().display(),
            key.display(),
            setup.destination,
            setup.settings,
            setup.profilers.iter().map(endpoint).collect::<String>()
        );
        fs::write(home.path().join("agent.toml"), text).unwrap();
        let environment = setup.environment;
        let child = Self::spawn(home.path(), &environment);
        let mut agent = Self { child, home, state, environment };
        agent.is_up();
        agent
    }

    fn spawn(home: &Path, environment: &[(&'static str, String)]) -> Child {
        let log = File::options().create(true).append(true).open(home.join("log")).unwrap();
        let mut command = Command::new(tpuscope());
        command.arg("agent").arg("--config").arg(home.join("agent.toml")).envs(environment.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    fn is_up(&mut self) {
        until("the agent", || {
            assert!(self.alive(), "the agent ended: {}", self.log());
            self.ask(&["sessions", "list"]).code == Some(0)
        });
    }

    /// Whether it still runs.
    pub(super) fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills it at once.
    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to end, and waits until it has.
    pub(super) fn stop(&mut self) -> Option<i32> {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), Signal::SIGTERM).unwrap();
        let mut status = None;
        until("the end of the agent", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }

    /// Starts it again where it was.
    pub(super) fn restart(&mut self) {
        self.child = Self::spawn(self.home.path(), &self.environment);
        self.is_up();
    }

    /// The command line of another agent with the same settings, but another socket.
    pub(super) fn second(&self) -> RunningCommand {
        let config = self.home.path().join("agent.toml").display().to_string();
        let socket = self.home.path().join("second.sock").display().to_string();
        start(self.home.path(), &["agent", "--config", &config, "--socket", &socket])
    }

    /// Where its state is.
    pub(super) fn state(&self) -> &Path {
        &self.state
    }

    /// What it wrote to standard error.
    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }

    fn arguments(&self, arguments: &[&str]) -> Vec<String> {
        let socket = self.home.path().join("agent.sock").display().to_string();
        arguments.iter().map(ToString::to_string).chain(["--socket".to_owned(), socket]).collect()
    }

    /// Runs a command that talks to it.
    pub(super) fn ask(&self, arguments: &[&str]) -> Ended {
        run(self.home.path(), &self.arguments(arguments))
    }

    /// Starts a command that talks to it.
    pub(super) fn ask_later(&self, arguments: &[&str]) -> RunningCommand {
        start(self.home.path(), &self.arguments(arguments))
    }

    /// Captures a session of this name.
    pub(super) fn capture(&self, session: &str) {
        let ended = self.ask(&["capture", "--session", session, "--duration", "1ms"]);
        assert_eq!(ended.code, Some(0), "{ended:?}\n{}", self.log());
    }

    /// The names of its sessions.
    pub(super) fn sessions(&self) -> BTreeSet<String> {
        let listed = self.ask(&["sessions", "list", "--json"]).json();
        let sessions = listed["sessions"].as_array().unwrap().iter();
        sessions.map(|session| session["session"].as_str().unwrap().to_owned()).collect()
    }

    /// Its uploads.
    pub(super) fn uploads(&self) -> Vec<serde_json::Value> {
        let listed = self.ask(&["uploads", "list", "--json"]).json();
        listed["uploads"].as_array().unwrap().clone()
    }

    /// The state of the upload of a session.
    pub(super) fn upload(&self, session: &str) -> serde_json::Value {
        let uploads = self.uploads();
        let found = uploads.iter().find(|upload| upload["session"] == session);
        found.unwrap_or_else(|| panic!("{session} among {uploads:?}")).clone()
    }

    /// The files of a session as they are on its disk.
    pub(super) fn files(&self, session: &str) -> BTreeMap<String, Vec<u8>> {
        let folder = self.state.join("sessions/plugins/profile").join(session);
        let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let files = entries
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()));
        // What is for the agent alone is hidden.
        files.filter(|(name, _)| !name.starts_with('.')).collect()
    }

    /// Waits until it says that the upload of a session is in this state.
    pub(super) fn reaches(&self, session: &str, state: &str) -> serde_json::Value {
        wait_with(
            &format!("{session} to be {state}"),
            UPLOAD_LIMIT,
            || self.log(),
            || {
                // One that is found at a start is not known at once.
                let upload = self.uploads().into_iter().find(|upload| upload["session"] == session)?;
                (upload["state"] == state).then_some(upload)
            },
        )
    }

    /// Waits until a session is in the bucket under a name, and checks that it is whole and the same.
    pub(super) fn arrives_as(&self, server: &FakeGcs, session: &str, name: &str) {
        let manifest = format!("runs/plugins/profile/{name}/manifest.json");
        let there = || server.objects().contains_key(&manifest).then_some(());
        wait_with(&format!("{session} in the bucket"), UPLOAD_LIMIT, || self.log(), there);
        for (file, bytes) in self.files(session) {
            let object = server.objects()[&format!("runs/plugins/profile/{name}/{file}")].clone();
            assert!(object.content() == bytes, "{session}/{file} is the same");
        }
    }

    /// The same, under its own name.
    pub(super) fn arrives(&self, server: &FakeGcs, session: &str) {
        self.arrives_as(server, session, session);
    }

    /// The names of all objects that these sessions have in a bucket.
    pub(super) fn objects_of(&self, sessions: &BTreeSet<String>) -> BTreeSet<String> {
        let of = |session: &String| {
            let files = self.files(session).into_keys();
            let files =
                files.map(|file| format!("runs/plugins/profile/{session}/{file}")).collect::<Vec<_>>();
            files.into_iter().chain([format!("runs/.tpuscope/{session}")])
        };
        sessions.iter().flat_map(of).collect()
    }
}

impl Drop for UploadAgent {
    fn drop(&mut self) {
        // Already over is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Every object was made by one request.
pub(super) fn made_once(server: &FakeGcs) {
    let mut made = BTreeMap::new();
    for request in server.requests().into_iter().filter(fakes::fake_gcs::GcsRequest::made_object) {
        *made.entry(request.object).or_insert(0) += 1;
    }
    let again: Vec<_> = made.iter().filter(|(_, times)| **times != 1).collect();
    assert!(again.is_empty(), "made several times: {again:?}");
    assert_eq!(made.into_keys().collect::<Vec<_>>(), server.objects().into_keys().collect::<Vec<_>>());
}
