//! Captures over several hosts: real agents, each behind a command that reaches it by its socket.

mod ends;
mod faults;
mod killed;
mod many;
mod networks;
mod others;
mod own_disk;
mod reading;
mod snapshots;
mod whole;

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use fakes::{
    command::{Ended, RunningCommand, start_as},
    harness::tpuscope,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::{profiler_agent::Agent, schema::Schema};

/// Agents whose sockets have the names by which their hosts are given, and a folder for sessions.
struct Cluster {
    folder: TempDir,
    agents: Vec<(String, Agent)>,
}

impl Cluster {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("sockets")).unwrap();
        fs::create_dir(folder.path().join("out")).unwrap();
        Self { folder, agents: Vec::new() }
    }

    /// With an agent for each host, which it calls `vm-` and its name, and the profilers of its workloads.
    fn of(hosts: &[(&str, &[String])]) -> Self {
        let mut cluster = Self::new();
        for (host, profilers) in hosts {
            cluster.add(host, Agent::start_as(&format!("vm-{host}"), profilers, ""));
        }
        cluster
    }

    fn add(&mut self, host: &str, agent: Agent) {
        self.name(host, &agent.home.path().join("agent.sock"));
        self.agents.push((host.to_owned(), agent));
    }

    /// Another name for a socket.
    fn name(&self, host: &str, socket: &Path) {
        symlink(socket, self.folder.path().join("sockets").join(host)).unwrap();
    }

    fn agent(&self, host: &str) -> &Agent {
        let found = self.agents.iter().find(|(name, _)| name == host);
        &found.unwrap_or_else(|| panic!("no host {host}")).1
    }

    fn agent_mut(&mut self, host: &str) -> &mut Agent {
        let found = self.agents.iter_mut().find(|(name, _)| name == host);
        &mut found.unwrap_or_else(|| panic!("no host {host}")).1
    }

    /// The command that reaches them.
    fn command(&self) -> String {
        let sockets = self.folder.path().join("sockets");
        format!("{} dial-stdio --socket {}/{{host}}", tpuscope().display(), sockets.display())
    }

    /// A capture of these hosts, in the folder for sessions.
    fn start(&self, hosts: &str, arguments: &[&str]) -> RunningCommand {
        self.start_command("capture", &[], hosts, arguments)
    }

    /// A command with these variables.
    fn start_command(
        &self,
        name: &str,
        variables: &[(&str, String)],
        hosts: &str,
        arguments: &[&str],
    ) -> RunningCommand {
        let mut command = Command::new("env");
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command.arg("--default-signal").arg(tpuscope()).args([name, "--hosts", hosts]);
        command.args(["--via-command", &self.command()]).args(arguments);
        command.current_dir(self.out()).env_remove("TPUSCOPE_SOCKET");
        start_as(command)
    }

    fn capture(&self, hosts: &str, arguments: &[&str]) -> Ended {
        self.start(hosts, arguments).end()
    }

    fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    /// The folder of a session.
    fn session(&self, name: &str) -> PathBuf {
        self.out().join("plugins/profile").join(name)
    }

    /// The manifest of a session, which has the schema, and whose parts are there as it says.
    fn manifest(&self, name: &str) -> Value {
        let folder = self.session(name);
        let manifest: Value =
            serde_json::from_slice(&fs::read(folder.join("manifest.json")).unwrap()).unwrap();
        Schema::open("manifest").admits(&manifest);
        let mut named: Vec<String> = Vec::new();
        for part in list(&manifest, "hosts").iter().flat_map(|host| list(host, "parts")) {
            let file = text(part, "file");
            assert_eq!(
                fs::metadata(folder.join(&file)).unwrap().len(),
                part["size"].as_u64().unwrap(),
                "{part}"
            );
            named.push(file);
        }
        named.push("manifest.json".into());
        let there =
            fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut there: Vec<String> = there.collect();
        there.sort();
        named.sort();
        assert_eq!(there, named);
        manifest
    }

    /// Nothing was kept in the folder for sessions, and nothing is left there of what was tried.
    fn kept_nothing(&self) {
        let sessions =
            fs::read_dir(self.out().join("plugins/profile")).map(Iterator::count).unwrap_or_default();
        let staged =
            fs::read_dir(self.out().join("plugins/.tpuscope")).map(Iterator::count).unwrap_or_default();
        assert_eq!((sessions, staged), (0, 0));
    }
}

fn list<'v>(value: &'v Value, field: &str) -> &'v Vec<Value> {
    value[field].as_array().unwrap_or_else(|| panic!("no list {field} in {value}"))
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_else(|| panic!("no text {field} in {value}")).to_owned()
}

/// The hosts of a manifest, and those that are missing in it.
fn hosts(manifest: &Value) -> (Vec<String>, Vec<String>) {
    let names = |field: &str| list(manifest, field).iter().map(|host| text(host, "host")).collect();
    (names("hosts"), names("missing"))
}

/// Why a host is missing.
fn why(manifest: &Value, host: &str) -> String {
    let missing = list(manifest, "missing").iter().find(|missing| missing["host"] == host);
    text(missing.unwrap_or_else(|| panic!("{host} is not missing in {manifest}")), "why")
}
