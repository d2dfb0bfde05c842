//! Whether something stops the sessions when the agent is killed. Pure: what is known of the processes in, a verdict out.
//!
//! Two things can: the service manager, whose unit says so, and the guard process. The guard is a process of its own, but
//! what kills a control group or a pid namespace as one kills it together with the agent. So the guard counts only if
//! nothing that is known to be killed as one has both of them and not the workload:
//!
//! - The first process of a pid namespace, and one that was started from outside of its namespace (its parent is 0), is the
//!   main process of a container. The end of the one ends the namespace; after the end of the other the container runtime
//!   kills what is left in the container.
//! - A control group that the agent is in and the workload is not. The groups that systemd makes for logins and slices are
//!   not killed while something in them runs well. All others (services, containers, job steps) are made for one program and
//!   killed as one, as are those with `memory.oom.group`.
//!
//! A workload that shares the group is killed too, and its session ends with it.

use std::{fs, io, path::Path};

use model::untrusted::{self, clean};

/// The environment variable of a unit whose `ExecStopPost=` runs `tpuscope stop-profilers`.
pub const UNIT_VARIABLE: &str = "TPUSCOPE_UNIT_STOPS_PROFILERS";
/// The longest file about control groups that is read, bytes.
const MAX_BYTES: u64 = 64 << 10;
/// Scopes that systemd makes for logins and for programs of a user.
const LOGIN_SCOPES: [&str; 5] = ["session-", "run-", "app-", "vte-spawn-", "tmux-spawn-"];

/// What stops the sessions of an agent that is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outliving {
    /// The service manager, by `ExecStopPost=`.
    Unit,
    /// The guard process.
    Guard,
}

/// Why nothing would stop them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NothingOutlives {
    /// The agent is the first process of its pid namespace.
    #[error("the agent is process 1 of its pid namespace: all other processes of the namespace end with it")]
    FirstProcess,
    /// The agent is the main process of a container.
    #[error(
        "the agent is the main process of a container: the container runtime ends all processes of the container with it"
    )]
    Container,
    /// The control group is killed as one.
    #[error(
        "all processes in the control group {0} of the agent are killed together, and the workload is not in it"
    )]
    Group(String),
    /// It cannot be told.
    #[error("cannot read the control groups: {0}")]
    Unreadable(String),
}

/// A control group of one hierarchy, from its root: the names of `/proc/<pid>/cgroup`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupPath {
    /// The controllers of the hierarchy; empty for version 2.
    pub hierarchy: String,
    /// The path.
    pub path: String,
}

/// The facts about the agent and a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessFacts {
    /// The agent's pid.
    pub pid: u32,
    /// Its parent's pid.
    pub parent: u32,
    /// The unit of the service manager stops profilers after the agent.
    pub unit_stops: bool,
    /// The groups of the agent.
    pub own: Vec<GroupPath>,
    /// The groups of the workload.
    pub workload: Vec<GroupPath>,
    /// Paths of version 2 groups with `memory.oom.group`, among those of the agent and above.
    pub killed_by_memory: Vec<String>,
}

/// What would stop the session of this workload if the agent was killed.
///
/// # Errors
/// If nothing would.
pub fn outliving(facts: &ProcessFacts) -> Result<Outliving, NothingOutlives> {
    if facts.unit_stops {
        return Ok(Outliving::Unit);
    }
    match (facts.pid, facts.parent) {
        (1, _) => return Err(NothingOutlives::FirstProcess),
        (_, 0) => return Err(NothingOutlives::Container),
        _ => {}
    }
    for own in &facts.own {
        let of_workload = facts.workload.iter().find(|group| group.hierarchy == own.hierarchy);
        let workload = of_workload.map_or("/", |group| group.path.as_str());
        // The root is that of the agent's namespace, and the workload is outside of it.
        if names(workload).next() == Some("..") {
            return Err(NothingOutlives::Container);
        }
        if let Some(group) = killed_as_one(own, workload, &facts.killed_by_memory) {
            return Err(NothingOutlives::Group(clean(group, untrusted::MESSAGE)));
        }
    }
    Ok(Outliving::Guard)
}

/// The outermost group of `own` that the workload is not in and that is killed as one.
fn killed_as_one<'a>(own: &'a GroupPath, workload: &str, by_memory: &[String]) -> Option<&'a str> {
    let mut workload = names(workload);
    let mut shared = true;
    let mut end = 0;
    for name in names(&own.path) {
        end += 1 + name.len();
        let path = own.path.get(..end).unwrap_or(&own.path);
        shared = shared && workload.next() == Some(name);
        let by_memory = own.hierarchy.is_empty() && by_memory.iter().any(|group| group == path);
        if !shared && (by_memory || !is_of_logins(name)) {
            return Some(path);
        }
    }
    None
}

fn names(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|name| !name.is_empty())
}

fn is_of_logins(name: &str) -> bool {
    name == "init.scope"
        || name.ends_with(".slice")
        || name.starts_with("user@") && name.ends_with(".service")
        || name.ends_with(".scope") && LOGIN_SCOPES.iter().any(|start| name.starts_with(start))
}

impl ProcessFacts {
    /// Those of this process and of the workload `pid`. Blocks for a few reads of `/proc` and of `cgroups`, the folder of
    /// the control groups.
    ///
    /// # Errors
    /// If the groups cannot be read.
    pub fn read(pid: u32, cgroups: &Path, variable: impl Fn(&str) -> Option<String>) -> io::Result<Self> {
        let own = groups(&read("/proc/self/cgroup".as_ref())?);
        let unified = own.iter().filter(|group| group.hierarchy.is_empty());
        let killed_by_memory = unified.flat_map(|group| with_oom_group(cgroups, &group.path)).collect();
        let own_pid = std::process::id();
        // systemd 248 and later say which process the variables are for: a job in a shell of the unit has them too.
        let main = match variable("SYSTEMD_EXEC_PID") {
            Some(pid) => pid == own_pid.to_string(),
            None => variable("INVOCATION_ID").is_some(),
        };
        Ok(Self {
            pid: own_pid,
            parent: std::os::unix::process::parent_id(),
            unit_stops: main && variable(UNIT_VARIABLE).is_some_and(|value| value == "1"),
            workload: groups(&read(format!("/proc/{pid}/cgroup").as_ref())?),
            own,
            killed_by_memory,
        })
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(fs::File::open(path)?, MAX_BYTES), &mut text)?;
    Ok(text)
}

/// The lines `number:controllers:path`.
fn groups(text: &str) -> Vec<GroupPath> {
    let group = |line: &str| {
        let (hierarchy, path) = line.split_once(':')?.1.split_once(':')?;
        Some(GroupPath { hierarchy: hierarchy.to_owned(), path: path.to_owned() })
    };
    text.lines().filter_map(group).collect()
}

/// The groups from the root to `path` that are killed as one when memory runs out.
fn with_oom_group(cgroups: &Path, path: &str) -> Vec<String> {
    let roots = [cgroups.to_owned(), cgroups.join("unified")];
    let mut found = Vec::new();
    let mut group = String::new();
    for name in names(path) {
        group = format!("{group}/{name}");
        let set = |root: &Path| {
            let file = root.join(&group[1..]).join("memory.oom.group");
            read(&file).is_ok_and(|text| text.trim() == "1")
        };
        if roots.iter().any(|root| set(root)) {
            found.push(group.clone());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(own: &str, workload: &str) -> ProcessFacts {
        ProcessFacts {
            pid: 700,
            parent: 600,
            unit_stops: false,
            own: groups(own),
            workload: groups(workload),
            killed_by_memory: Vec::new(),
        }
    }

    fn group(path: &str) -> Result<Outliving, NothingOutlives> {
        Err(NothingOutlives::Group(path.to_owned()))
    }

    #[test]
    fn a_guard_counts_where_no_group_has_only_the_agent() {
        for (own, workload) in [
            ("0::/", "0::/"),
            ("0::/user.slice/user-5.slice/session-3.scope", "0::/user.slice/user-5.slice/session-4.scope"),
            (
                "0::/user.slice/user-5.slice/user@5.service/app.slice/tmux-spawn-x.scope",
                "0::/system.slice/docker-17.scope",
            ),
            ("0::/system.slice/train.service", "0::/system.slice/train.service"),
            ("0::/slurm/job_1/step_0", "0::/slurm/job_1/step_0/user/task_0"),
            ("4:memory:/a/b\n9:name=systemd:/\n0::/", "4:memory:/a/b\n9:name=systemd:/\n0::/"),
        ] {
            assert_eq!(outliving(&facts(own, workload)), Ok(Outliving::Guard), "{own} {workload}");
        }
    }

    #[test]
    fn a_group_of_the_agent_alone_is_killed_as_one() {
        for (own, workload, killed) in [
            ("0::/system.slice/tpuscope.service", "0::/user.slice", "/system.slice/tpuscope.service"),
            (
                "0::/kubepods.slice/pod1.slice/cri-containerd-a.scope",
                "0::/kubepods.slice/pod1.slice/cri-containerd-b.scope",
                "/kubepods.slice/pod1.slice/cri-containerd-a.scope",
            ),
            ("0::/docker/77", "0::/", "/docker"),
            ("0::/slurm/job_1/step_0", "0::/slurm/job_1/step_1", "/slurm/job_1/step_0"),
            // One hierarchy is enough, and a workload that is in none of it is in its root.
            ("4:memory:/a/b\n0::/", "0::/", "/a"),
        ] {
            assert_eq!(outliving(&facts(own, workload)), group(killed), "{own} {workload}");
        }
    }

    #[test]
    fn memory_that_runs_out_kills_a_login_as_one_where_it_is_set() {
        let set = |killed: &str| ProcessFacts {
            killed_by_memory: vec![killed.to_owned()],
            ..facts("0::/user.slice/session-3.scope", "0::/user.slice/session-4.scope")
        };
        assert_eq!(outliving(&set("/user.slice/session-3.scope")), group("/user.slice/session-3.scope"));
        assert_eq!(outliving(&set("/user.slice")), Ok(Outliving::Guard), "the workload is killed too");
    }

    #[test]
    fn a_container_ends_as_one() {
        let plain = facts("0::/", "0::/");
        let first = ProcessFacts { pid: 1, parent: 0, ..plain.clone() };
        assert_eq!(outliving(&first), Err(NothingOutlives::FirstProcess));
        let injected = ProcessFacts { parent: 0, ..plain };
        assert_eq!(outliving(&injected), Err(NothingOutlives::Container));
        assert_eq!(outliving(&facts("0::/", "0::/../b")), Err(NothingOutlives::Container));
        let unit = ProcessFacts { unit_stops: true, ..first };
        assert_eq!(outliving(&unit), Ok(Outliving::Unit));
    }

    #[test]
    fn the_facts_of_this_process_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let variables = |pid: String| {
            move |name: &str| match name {
                "SYSTEMD_EXEC_PID" => Some(pid.clone()),
                UNIT_VARIABLE => Some("1".to_owned()),
                _ => None,
            }
        };
        let own = std::process::id();
        let read = |pid: u32| ProcessFacts::read(own, folder.path(), variables(pid.to_string())).unwrap();
        let facts = read(own);
        assert!(facts.unit_stops && facts.pid == own && facts.own == facts.workload && !facts.own.is_empty());
        assert!(!read(own + 1).unit_stops, "the variables are those of another process");
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        fs::write(folder.path().join("a/memory.oom.group"), "1\n").unwrap();
        fs::write(folder.path().join("a/b/memory.oom.group"), "0\n").unwrap();
        assert_eq!(with_oom_group(folder.path(), "/a/b"), ["/a"]);
    }
}
