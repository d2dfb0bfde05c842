//! A real Slurm of some nodes on this machine: own daemons, keys, users and folders, in namespaces of its own. It ends with the
//! value, and with the test's process.

use std::{
    fs::{self, File, Permissions},
    io::{BufRead, BufReader},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

use crate::{
    command::{Ended, start_as},
    harness::{tpuscope, workspace},
    python_peer::PythonPeer,
    wait::{LIMIT, wait_with},
};

/// A plain user of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlurmUser {
    /// As the cluster knows it.
    pub name: &'static str,
    /// Its number, which is its group's too.
    pub uid: u32,
}

/// Two of them.
pub const ALICE: SlurmUser = SlurmUser { name: "alice", uid: 20_001 };
/// The other one.
pub const BOB: SlurmUser = SlurmUser { name: "bob", uid: 20_002 };

/// The cluster, with nodes `n0`, `n1`, … of 4 CPUs.
#[derive(Debug)]
pub struct SlurmCluster {
    unshare: Child,
    folder: TempDir,
    /// Its first process, as this namespace numbers it.
    init: u32,
}

impl SlurmCluster {
    /// Starts it, with the Python that has JAX, and waits until its nodes are idle.
    ///
    /// # Panics
    /// If Slurm is missing, or this user may not make namespaces.
    pub fn start(nodes: usize, python: &PythonPeer) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = |name: &str| folder.path().join(name);
        // Every user of the cluster may look into it; what is secret has a mode of its own.
        open(folder.path(), 0o755);
        users(folder.path());
        fs::create_dir(at("work")).expect("ours");
        open(&at("work"), 0o1777);
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child", "--net", "--uts"]);
        command
            .arg(workspace().join("tests/tools/slurm-cluster.sh"))
            .arg(folder.path())
            .arg(nodes.to_string());
        let shown = |source: &Path, target: &str| format!("{}={target}", source.display());
        for (source, target) in python.folders() {
            command.arg(shown(&source, target));
        }
        command.arg(shown(&tpuscope(), &at("bin/tpuscope").display().to_string()));
        let log = File::create(at("output")).expect("ours");
        let mut unshare =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn().expect("unshare runs");
        let mut line = String::new();
        BufReader::new(unshare.stdout.take().expect("piped"))
            .read_line(&mut line)
            .expect("it says something");
        let children = format!("/proc/{0}/task/{0}/children", unshare.id());
        let init = fs::read_to_string(children).ok().and_then(|text| text.trim().parse().ok());
        let mut cluster = Self { unshare, folder, init: init.unwrap_or_default() };
        assert!(
            line == "up\n" && cluster.init > 0,
            "no Slurm (tests/setup.sh installs it):\n{}",
            cluster.logs()
        );
        cluster.alive();
        cluster
    }

    fn alive(&mut self) {
        assert!(matches!(self.unshare.try_wait(), Ok(None)), "Slurm ended:\n{}", self.logs());
    }

    /// What its daemons said last.
    pub fn logs(&self) -> String {
        let tail = |path: PathBuf| {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<_> = text.lines().rev().take(15).collect();
            let lines: Vec<_> = lines.into_iter().rev().collect();
            format!("{}:\n{}\n", path.display(), lines.join("\n"))
        };
        let logs = fs::read_dir(self.folder().join("log")).into_iter().flatten().flatten();
        logs.map(|log| log.path()).chain([self.folder().join("output")]).map(tail).collect()
    }

    /// Its folder. In it `work` can be written by all users.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The words that start a command inside.
    pub fn enter(&self) -> Vec<String> {
        let init = self.init.to_string();
        ["nsenter", "--target", &init, "--pid", "--mount", "--net", "--uts"].map(str::to_owned).to_vec()
    }

    /// Ends slurmctld.
    ///
    /// # Panics
    /// If it does not run.
    pub fn stop_controller(&self) {
        let enter = self.enter();
        let kill = format!("kill -KILL $(cat {}/controller)", self.folder().display());
        let killed = Command::new(&enter[0]).args(&enter[1..]).args(["sh", "-c", &kill]).status();
        assert!(killed.expect("nsenter runs").success(), "{}", self.logs());
    }

    /// Shows the socket of an agent as that of a node.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn agent(&self, node: &str, socket: &Path) {
        symlink(socket, self.folder().join("node").join(node).join("agent.sock")).expect("a node");
    }

    /// A command of a user where jobs are submitted. It runs in `work`, and its PATH has tpuscope and Slurm.
    pub fn command(&self, user: SlurmUser, program: &str) -> Command {
        let enter = self.enter();
        let mut command = Command::new(&enter[0]);
        let id = user.uid.to_string();
        command.args(&enter[1..]).arg(format!("--wd={}", self.folder().join("work").display()));
        command.args(["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups", "env", "-i"]);
        command.arg(format!("USER={}", user.name));
        command.arg(format!("PATH={}/bin:/usr/bin:/bin", self.folder().display()));
        command.arg(format!("SLURM_CONF={}/slurm.conf", self.folder().display()));
        command.arg(program);
        command
    }

    /// Runs one to its end.
    pub fn run(&self, user: SlurmUser, program: &str, arguments: &[&str]) -> Ended {
        let mut command = self.command(user, program);
        command.args(arguments);
        start_as(command).end()
    }

    /// Submits a job; its id.
    ///
    /// # Panics
    /// If Slurm refuses it.
    pub fn submit(&self, user: SlurmUser, options: &[&str], script: &str) -> String {
        let options = [&["--parsable", "--output=%j.out", "--open-mode=append"], options].concat();
        let submitted = self.run(user, "sbatch", &[&options[..], &["--wrap", script]].concat());
        assert_eq!(submitted.code, Some(0), "{submitted:?}\n{}", self.logs());
        submitted.stdout.trim().to_owned()
    }

    /// Waits until a job has a state, such as `RUNNING`.
    ///
    /// # Panics
    /// If it does not come to it.
    pub fn state(&self, user: SlurmUser, job: &str, state: &str) {
        let now = || self.run(user, "squeue", &["-h", "-t", "all", "-j", job, "-o", "%T"]).stdout;
        wait_with(
            &format!("job {job} to be {state}"),
            LIMIT,
            || format!("{}\n{}", now(), self.logs()),
            || (now().trim() == state).then_some(()),
        );
    }
}

impl Drop for SlurmCluster {
    fn drop(&mut self) {
        // Already over is as good; the namespaces end with `unshare`.
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}

fn open(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("ours");
}

/// The users of this machine, and those of the cluster.
fn users(folder: &Path) {
    for (name, rest) in [("passwd", ":/:/bin/sh"), ("group", "")] {
        let here = fs::read_to_string(Path::new("/etc").join(name)).expect("a file of the system");
        let more = [ALICE, BOB].map(|SlurmUser { name: user, uid }| match name {
            "passwd" => format!("{user}:x:{uid}:{uid}:{user}{rest}\n"),
            _ => format!("{user}:x:{uid}:\n"),
        });
        fs::write(folder.join(name), format!("{}\n{}", here.trim_end(), more.concat())).expect("ours");
    }
}
