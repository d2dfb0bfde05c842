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

/// A user of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlurmUser {
    /// As the cluster knows it.
    pub name: &'static str,
    /// Its number, which is its group's too.
    pub uid: u32,
}

/// The administrator.
pub const ROOT: SlurmUser = SlurmUser { name: "root", uid: 0 };
/// Two plain users.
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
        Self::up(nodes, prepared(), &python.folders())
    }

    /// Starts one whose nodes run the hooks of `packaging/slurm`, and waits until they are idle. The hooks call what
    /// [`SlurmCluster::hooks_call`] says, at first the built tpuscope.
    ///
    /// # Panics
    /// As [`SlurmCluster::start`].
    pub fn start_with_hooks(nodes: usize) -> Self {
        let folder = prepared();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("hooks")).expect("ours");
        let mut lines = "PrologFlags=Alloc\nPrologEpilogTimeout=10\n".to_owned();
        for (key, name) in HOOKS {
            let script = at("hooks").join(name);
            write_hook(name, &at("hooks/tpuscope"), &script);
            lines.push_str(&format!("{key}={}\n", script.display()));
        }
        fs::write(at("more.conf"), lines).expect("ours");
        let cluster = Self::up(nodes, folder, &[]);
        cluster.hooks_call(&cluster.folder().join("bin/tpuscope"));
        cluster
    }

    fn up(nodes: usize, folder: TempDir, folders: &[(PathBuf, &'static str)]) -> Self {
        let at = |name: &str| folder.path().join(name);
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child", "--net", "--uts"]);
        command
            .arg(workspace().join("tests/tools/slurm-cluster.sh"))
            .arg(folder.path())
            .arg(nodes.to_string());
        let shown = |source: &Path, target: &str| format!("{}={target}", source.display());
        for (source, target) in folders {
            command.arg(shown(source, target));
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

    /// Lets the hooks call this program as tpuscope.
    ///
    /// # Panics
    /// If the cluster has no hooks.
    pub fn hooks_call(&self, program: &Path) {
        let (link, next) = (self.folder().join("hooks/tpuscope"), self.folder().join("hooks/next"));
        symlink(program, &next).expect("ours");
        fs::rename(next, link).expect("ours");
    }

    /// Kills slurmd of a node. Its steps go on.
    ///
    /// # Panics
    /// If it does not run.
    pub fn kill_node(&self, node: &str) {
        self.kill(&format!("slurmd.{node}"));
    }

    /// The state of each node, and why: `n0 idle none`.
    pub fn nodes(&self) -> Vec<String> {
        let shown = self.run(ALICE, "sinfo", &["-h", "-N", "-o", "%N %t %E"]).stdout;
        shown.lines().map(str::to_owned).collect()
    }

    /// Ends slurmctld.
    ///
    /// # Panics
    /// If it does not run.
    pub fn stop_controller(&self) {
        self.kill("controller");
    }

    /// Kills the process whose number is in this file.
    fn kill(&self, file: &str) {
        let enter = self.enter();
        let kill = format!("kill -KILL $(cat {}/{file})", self.folder().display());
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

/// The hooks of `packaging/slurm`: the key of slurm.conf and the script.
pub const HOOKS: [(&str, &str); 4] = [
    ("Prolog", "prolog"),
    ("Epilog", "epilog"),
    ("TaskProlog", "task-prolog"),
    ("TaskEpilog", "task-epilog"),
];

/// Writes a script of `packaging/slurm` that calls `program` in place of /usr/bin/tpuscope.
///
/// # Panics
/// If there is no such script, or it does not name the program.
pub fn write_hook(name: &str, program: &Path, to: &Path) {
    let script = workspace().join("packaging/slurm").join(name);
    let text = fs::read_to_string(&script).expect("a script of packaging/slurm");
    assert!(text.contains("/usr/bin/tpuscope"), "{text}");
    fs::write(to, text.replace("/usr/bin/tpuscope", &program.display().to_string())).expect("ours");
    open(to, 0o755);
}

/// A folder that every user of the cluster may look into, with `work`, which all may write to. What is secret has a mode
/// of its own.
fn prepared() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    open(folder.path(), 0o755);
    users(folder.path());
    let work = folder.path().join("work");
    fs::create_dir(&work).expect("ours");
    open(&work, 0o1777);
    folder
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
