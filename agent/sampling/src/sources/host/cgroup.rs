//! CPU and memory of control groups, version 1, version 2 or both: those of the workloads, or our own without any.

use std::{
    collections::{HashMap, HashSet},
    io,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use host::settings::paths::Paths;
use model::{
    catalog,
    metric::Descriptor,
    untrusted::{LABEL, clean},
    workload::{ProcessKey, Workload},
};
use nix::errno::Errno;

use super::{HostValue, kernel_files::KernelFiles, missing};
use crate::sources::{Absence, Tick};

/// The most control groups that are read.
const MOST_GROUPS: usize = 64;
/// A version 1 limit from here on is none.
const NO_LIMIT: f64 = 4.611_686_018_427_388e18;

/// The control groups that were found, by process: a process seldom changes its group.
pub(super) struct Cgroups {
    proc: PathBuf,
    root: PathBuf,
    known: HashMap<Option<ProcessKey>, ControlGroups>,
}

/// A group of one hierarchy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Folder {
    /// The last part of its path.
    label: String,
    path: PathBuf,
}

/// The groups of a process: one in each hierarchy that it was found in, and they may be different ones. A root group is
/// none: its values are those of the host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct ControlGroups {
    unified: Option<Folder>,
    memory: Option<Folder>,
    usage: Option<Folder>,
    quota: Option<Folder>,
}

impl Cgroups {
    pub(super) fn new(paths: &Paths) -> Self {
        Self { proc: paths.procfs.clone(), root: paths.sysfs.join("fs/cgroup"), known: HashMap::new() }
    }

    /// Each group once, with the workload of the first owner in it.
    pub(super) fn collect(
        &mut self,
        tick: &Tick,
        files: &mut KernelFiles,
        found: &mut Vec<HostValue>,
        absent: &mut Vec<Absence>,
    ) {
        let owners = tick.host.workloads.owners.iter().take(MOST_GROUPS);
        let mut wanted: Vec<(Option<ProcessKey>, Option<Arc<Workload>>)> =
            owners.map(|owner| (Some(owner.process), tick.workload(owner))).collect();
        if wanted.is_empty() {
            wanted.push((None, None));
        }
        self.known.retain(|process, _| wanted.iter().any(|(wanted, _)| wanted == process));
        let mut seen = HashSet::new();
        for (process, workload) in wanted {
            let groups = match self.groups(process, files) {
                Ok(groups) => groups,
                Err((path, error)) => {
                    if process.is_some_and(|process| self.has_ended(process, &error)) {
                        continue;
                    }
                    absent.push(missing(&path, &error));
                    continue;
                }
            };
            for (metric, folder, value) in groups.values(files) {
                if seen.insert((metric.name.clone(), folder.path.clone())) {
                    let value = HostValue::of(metric, "cgroup", &folder.label, value);
                    found.push(HostValue { workload: workload.clone(), ..value });
                }
            }
        }
    }

    /// Whether a process has ended, so that nothing of it is missing.
    fn has_ended(&self, process: ProcessKey, error: &io::Error) -> bool {
        error.raw_os_error() == Some(Errno::ESRCH as i32) || !self.proc.join(process.pid.to_string()).exists()
    }

    fn groups(
        &mut self,
        process: Option<ProcessKey>,
        files: &mut KernelFiles,
    ) -> Result<ControlGroups, (PathBuf, io::Error)> {
        if let Some(groups) = self.known.get(&process) {
            return Ok(groups.clone());
        }
        let name = process.map_or_else(|| "self".to_owned(), |process| process.pid.to_string());
        let path = self.proc.join(name).join("cgroup");
        let text = files.read(&path).map_err(|error| (path.clone(), error))?;
        let groups = locate(text, &self.root);
        self.known.insert(process, groups.clone());
        Ok(groups)
    }
}

/// Reads `/proc/<pid>/cgroup`: lines of `number:controllers:path`, without controllers for version 2.
fn locate(text: &str, root: &Path) -> ControlGroups {
    let mut groups = ControlGroups::default();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let Some(inside) = inside(path) else { continue };
        if controllers.is_empty() {
            // Alone it is the root; beside version 1 it is mounted below.
            let roots = [root.join("unified"), root.to_owned()];
            let here =
                roots.iter().map(|root| root.join(&inside)).find(|path| path.join("cgroup.procs").exists());
            // The topmost group that a container sees is its own: only that of the host has no type.
            let here = here.filter(|path| !is_topmost(&inside) || path.join("cgroup.type").exists());
            groups.unified = here.map(|path| Folder::new(&inside, path));
            continue;
        }
        if is_topmost(&inside) {
            continue;
        }
        for controller in controllers.split(',') {
            let found = match controller {
                "memory" => &mut groups.memory,
                "cpuacct" => &mut groups.usage,
                "cpu" => &mut groups.quota,
                _ => continue,
            };
            *found = [root.join(controllers), root.join(controller)]
                .into_iter()
                .map(|root| root.join(&inside))
                .find(|path| path.exists())
                .map(|path| Folder::new(&inside, path));
        }
    }
    groups
}

/// Whether no group is above the one with this path.
fn is_topmost(inside: &Path) -> bool {
    inside.as_os_str().is_empty()
}

/// The path without its leading slash; `None` when it leads out of what we can see.
fn inside(path: &str) -> Option<PathBuf> {
    let path = Path::new(path.trim_start_matches('/'));
    path.components().all(|part| matches!(part, Component::Normal(_))).then(|| path.to_owned())
}

impl Folder {
    fn new(inside: &Path, path: PathBuf) -> Self {
        let name = inside.file_name().map(|name| clean(&name.to_string_lossy(), LABEL));
        Self { label: name.unwrap_or_else(|| "/".to_owned()), path }
    }
}

impl ControlGroups {
    /// The values, each with the group that it is of.
    fn values(&self, files: &mut KernelFiles) -> Vec<(&'static Descriptor, &Folder, f64)> {
        let mut read = |folder: &'_ Option<Folder>, file: &str| -> Option<String> {
            Some(files.read(&folder.as_ref()?.path.join(file)).ok()?.to_owned())
        };
        let stat = read(&self.unified, "cpu.stat");
        let micro = |name: &str| Some((self.unified.as_ref()?, entry(stat.as_deref()?, name)? / 1e6));
        let old_stat = read(&self.quota, "cpu.stat");
        let throttled = old_stat.as_deref().and_then(|text| entry(text, "throttled_time"));
        let throttled = self.quota.as_ref().zip(throttled.map(|nanos| nanos / 1e9));
        let usage = read(&self.usage, "cpuacct.usage").and_then(|text| number(&text));
        let usage = self.usage.as_ref().zip(usage.map(|nanos| nanos / 1e9));
        let mut bytes = |old: &str, new: &str| {
            let old = self.memory.as_ref().zip(read(&self.memory, old));
            let (folder, text) = old.or_else(|| self.unified.as_ref().zip(read(&self.unified, new)))?;
            Some((folder, number(&text)?))
        };
        let used = bytes("memory.usage_in_bytes", "memory.current");
        let limit = bytes("memory.limit_in_bytes", "memory.max").filter(|(_, limit)| *limit < NO_LIMIT);
        let values = [
            (&catalog::CGROUP_CPU_SECONDS_TOTAL, usage.or_else(|| micro("usage_usec"))),
            (&catalog::CGROUP_CPU_THROTTLED_SECONDS_TOTAL, throttled.or_else(|| micro("throttled_usec"))),
            (&catalog::CGROUP_MEMORY_USED_BYTES, used),
            (&catalog::CGROUP_MEMORY_LIMIT_BYTES, limit),
        ];
        let known = values.into_iter().filter_map(|(metric, found)| Some((metric, found?)));
        known.map(|(metric, (folder, value))| (metric, folder, value)).collect()
    }
}

/// The number behind a name in `cpu.stat`.
fn entry(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).and_then(number)
}

/// A number; `max` is none.
fn number(text: &str) -> Option<f64> {
    text.trim().parse().ok()
}
