//! CPU and memory of control groups, version 1, version 2 or both: those of the workloads, or our own without any.

use std::{
    collections::HashMap,
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
    known: HashMap<Option<ProcessKey>, ControlGroup>,
}

/// Where a process's group is, in each hierarchy that it was found in.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct ControlGroup {
    label: String,
    unified: Option<PathBuf>,
    memory: Option<PathBuf>,
    usage: Option<PathBuf>,
    quota: Option<PathBuf>,
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
        let mut seen: Vec<ControlGroup> = Vec::new();
        for (process, workload) in wanted {
            let group = match self.group(process, files) {
                Ok(group) => group,
                Err((path, error)) => {
                    if process.is_some_and(|process| self.has_ended(process, &error)) {
                        continue;
                    }
                    absent.push(missing(&path, &error));
                    continue;
                }
            };
            if seen.contains(&group) {
                continue;
            }
            let values = group.values(files);
            found.extend(values.into_iter().map(|(metric, value)| HostValue {
                workload: workload.clone(),
                ..HostValue::of(metric, "cgroup", &group.label, value)
            }));
            seen.push(group);
        }
    }

    /// Whether a process has ended, so that nothing of it is missing.
    fn has_ended(&self, process: ProcessKey, error: &io::Error) -> bool {
        error.raw_os_error() == Some(Errno::ESRCH as i32) || !self.proc.join(process.pid.to_string()).exists()
    }

    fn group(
        &mut self,
        process: Option<ProcessKey>,
        files: &mut KernelFiles,
    ) -> Result<ControlGroup, (PathBuf, io::Error)> {
        if let Some(group) = self.known.get(&process) {
            return Ok(group.clone());
        }
        let name = process.map_or_else(|| "self".to_owned(), |process| process.pid.to_string());
        let path = self.proc.join(name).join("cgroup");
        let text = files.read(&path).map_err(|error| (path.clone(), error))?;
        let group = locate(text, &self.root);
        self.known.insert(process, group.clone());
        Ok(group)
    }
}

/// Reads `/proc/<pid>/cgroup`: lines of `number:controllers:path`, without controllers for version 2.
fn locate(text: &str, root: &Path) -> ControlGroup {
    let mut group = ControlGroup::default();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let Some(inside) = inside(path) else { continue };
        if controllers.is_empty() {
            // Alone it is the root; beside version 1 it is mounted below.
            let roots = [root.join("unified"), root.to_owned()];
            group.unified =
                roots.iter().map(|root| root.join(&inside)).find(|path| path.join("cgroup.procs").exists());
            group.name(&inside);
        }
        for controller in controllers.split(',') {
            let here = [root.join(controllers), root.join(controller)]
                .into_iter()
                .map(|root| root.join(&inside))
                .find(|path| path.exists());
            match controller {
                "memory" => group.memory = here,
                "cpuacct" => group.usage = here,
                "cpu" => group.quota = here,
                _ => continue,
            }
            group.name(&inside);
        }
    }
    group
}

/// The path without its leading slash; `None` when it leads out of what we can see.
fn inside(path: &str) -> Option<PathBuf> {
    let path = Path::new(path.trim_start_matches('/'));
    path.components().all(|part| matches!(part, Component::Normal(_))).then(|| path.to_owned())
}

impl ControlGroup {
    /// Named after its last part; the longest path is the most specific.
    fn name(&mut self, path: &Path) {
        let name =
            path.file_name().map_or_else(|| "/".to_owned(), |name| clean(&name.to_string_lossy(), LABEL));
        if self.label.is_empty() || self.label == "/" {
            self.label = name;
        }
    }

    fn values(&self, files: &mut KernelFiles) -> Vec<(&'static Descriptor, f64)> {
        let mut read = |base: &Option<PathBuf>, file: &str| {
            let text = files.read(&base.as_ref()?.join(file)).ok()?;
            Some(text.to_owned())
        };
        let stat = read(&self.unified, "cpu.stat");
        let old_stat = read(&self.quota, "cpu.stat");
        let micro = |name: &str| entry(stat.as_deref()?, name).map(|value| value / 1e6);
        let usage =
            read(&self.usage, "cpuacct.usage").and_then(|text| number(&text)).map(|value| value / 1e9);
        let throttled =
            old_stat.as_deref().and_then(|text| entry(text, "throttled_time")).map(|value| value / 1e9);
        let used =
            read(&self.memory, "memory.usage_in_bytes").or_else(|| read(&self.unified, "memory.current"));
        let limit = read(&self.memory, "memory.limit_in_bytes").or_else(|| read(&self.unified, "memory.max"));
        let limit = limit.and_then(|text| number(&text)).filter(|limit| *limit < NO_LIMIT);
        let values = [
            (&catalog::CGROUP_CPU_SECONDS_TOTAL, usage.or_else(|| micro("usage_usec"))),
            (&catalog::CGROUP_CPU_THROTTLED_SECONDS_TOTAL, throttled.or_else(|| micro("throttled_usec"))),
            (&catalog::CGROUP_MEMORY_USED_BYTES, used.and_then(|text| number(&text))),
            (&catalog::CGROUP_MEMORY_LIMIT_BYTES, limit),
        ];
        values.into_iter().filter_map(|(metric, value)| Some((metric, value?))).collect()
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
