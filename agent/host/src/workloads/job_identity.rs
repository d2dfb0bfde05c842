//! The job of a process, from its variables and its cgroup path. Pure.
//!
//! The cgroup path comes from the kernel and wins over variables, which the process sets itself.

use std::collections::BTreeMap;

use model::{
    host_list,
    job::{Job, JobKind},
    workload::ProcessKey,
};

use super::environment::Environment;

/// Maximum number of characters of a name that comes from a process.
const LONGEST_NAME: usize = 256;

/// What identifies the job of a process.
#[derive(Debug, Clone, Copy)]
pub(super) struct JobInputs<'a> {
    pub(super) process: ProcessKey,
    pub(super) environment: &'a Environment,
    /// `/proc/<pid>/cgroup`, of either version.
    pub(super) cgroup: &'a str,
    /// The name of its user.
    pub(super) user: &'a str,
}

/// The job of a process; [`JobKind::Process`] when nothing else names one.
pub(super) fn job(inputs: JobInputs<'_>) -> Job {
    slurm(inputs).or_else(|| kubernetes(inputs)).or_else(|| run(inputs)).unwrap_or_else(|| process(inputs))
}

fn slurm(inputs: JobInputs<'_>) -> Option<Job> {
    let from_variable =
        || value(inputs.environment, &["SLURM_JOB_ID", "SLURM_JOBID"]).filter(|id| is_number(id));
    let id = slurm_cgroup(inputs.cgroup).or_else(from_variable)?;
    // The variables may be another job's: a shell can outlive the job that it was started in.
    let same_job = from_variable().as_ref() == Some(&id);
    let variable = |name| value(inputs.environment, &[name]).filter(|_| same_job);
    let restarts = variable("SLURM_RESTART_COUNT").map_or(Some(0), |count| count.parse().ok());
    Some(Job {
        kind: JobKind::Slurm,
        id,
        // The count is absent on the first run.
        attempt: restarts.filter(|_| same_job),
        name: variable("SLURM_JOB_NAME"),
        user: variable("SLURM_JOB_USER").or_else(|| Some(inputs.user.to_owned())),
        rank: variable("SLURM_NODEID").and_then(|rank| rank.parse().ok()),
        hosts: inputs
            .environment
            .get("SLURM_JOB_NODELIST")
            .filter(|_| same_job)
            .and_then(|list| host_list::expand(list).ok())
            .unwrap_or_default(),
    })
}

/// The job id in `/slurm/uid_1000/job_12/step_0` (version 1) or `/system.slice/slurmstepd.scope/job_12/…` (2).
fn slurm_cgroup(cgroup: &str) -> Option<String> {
    cgroup_paths(cgroup).find_map(|path| {
        let mut in_slurm = false;
        path.split('/').find_map(|part| {
            if in_slurm && let Some(id) = part.strip_prefix("job_").filter(|id| is_number(id)) {
                return Some(id.to_owned());
            }
            in_slurm |= part.starts_with("slurm") || part.ends_with("slurmstepd.scope");
            None
        })
    })
}

fn kubernetes(inputs: JobInputs<'_>) -> Option<Job> {
    let environment = inputs.environment;
    let jobset = value(environment, &["JOBSET_NAME"]);
    let pod_uid = pod_cgroup(inputs.cgroup);
    if jobset.is_none() && pod_uid.is_none() {
        return None;
    }
    let pod = value(environment, &["POD_NAME", "HOSTNAME"]);
    let index = number(environment, "JOB_COMPLETION_INDEX");
    let name = jobset
        .or_else(|| hosts(environment).first().and_then(|host| subdomain(host)))
        .or_else(|| value(environment, &["JOB_NAME"]))
        .or_else(|| pod.as_deref().map(|pod| job_of_pod(pod, index)))
        .or(pod_uid)?;
    let namespace = value(environment, &["JOBSET_NAMESPACE", "POD_NAMESPACE"]);
    let (rank, hosts) = rank_and_hosts(environment, index);
    Some(Job {
        kind: JobKind::Jobset,
        id: namespace.map_or_else(|| name.clone(), |namespace| format!("{namespace}/{name}")),
        attempt: number(environment, "JOBSET_RESTART_ATTEMPT"),
        name: Some(name),
        user: Some(inputs.user.to_owned()),
        rank,
        hosts,
    })
}

/// The uid of the pod in `/kubepods.slice/…-pod<uid>.slice/…` or `/kubepods/burstable/pod<uid>/…`.
fn pod_cgroup(cgroup: &str) -> Option<String> {
    let path = cgroup_paths(cgroup).find(|path| path.contains("kubepods"))?;
    path.split('/').find_map(|part| {
        let part = part.strip_suffix(".slice").unwrap_or(part);
        let uid = match part.rsplit_once("-pod") {
            Some((slice, uid)) if slice.starts_with("kubepods") => uid,
            _ => part.strip_prefix("pod")?,
        };
        (uid.len() >= 8).then(|| uid.replace('_', "-"))
    })
}

/// The headless service in a pod's host name, which a JobSet names after itself.
fn subdomain(host: &str) -> Option<String> {
    host.split('.').nth(1).filter(|name| !name.is_empty() && !is_number(name)).map(cut)
}

/// The Job's name in a pod's: `<job>-<index>-<random>` or `<job>-<random>`.
fn job_of_pod(pod: &str, index: Option<u32>) -> String {
    let is_random = |end: &str| end.len() == 5 && end.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let base = pod.rsplit_once('-').filter(|(_, end)| is_random(end)).map_or(pod, |(base, _)| base);
    let numbered = index.and_then(|index| base.strip_suffix(&format!("-{index}")));
    numbered.unwrap_or(base).to_owned()
}

fn run(inputs: JobInputs<'_>) -> Option<Job> {
    let environment = inputs.environment;
    let id = value(environment, &["TPUSCOPE_JOB_ID"])?;
    let (rank, hosts) = rank_and_hosts(environment, None);
    let named = environment.get("TPUSCOPE_JOB_HOSTS").and_then(|list| host_list::expand(list).ok());
    Some(Job {
        kind: JobKind::Run,
        id,
        attempt: number(environment, "TPUSCOPE_JOB_ATTEMPT"),
        name: value(environment, &["TPUSCOPE_JOB_NAME"]),
        user: Some(inputs.user.to_owned()),
        rank: number(environment, "TPUSCOPE_JOB_RANK").or(rank),
        hosts: named.unwrap_or(hosts),
    })
}

fn process(inputs: JobInputs<'_>) -> Job {
    let (rank, hosts) = rank_and_hosts(inputs.environment, None);
    Job {
        kind: JobKind::Process,
        id: format!("{}-{}", inputs.process.pid, inputs.process.start_ticks),
        user: Some(inputs.user.to_owned()),
        rank,
        hosts,
        ..Job::default()
    }
}

/// This host's rank among the hosts of the job, and those hosts; each slice knows only its own.
fn rank_and_hosts(environment: &Environment, index: Option<u32>) -> (Option<u32>, Vec<String>) {
    let worker = number(environment, "TPU_WORKER_ID");
    let hosts = hosts(environment);
    let slices = number(environment, "MEGASCALE_NUM_SLICES").unwrap_or(1);
    if slices <= 1 {
        return (worker.or(index), hosts);
    }
    let per_slice = u32::try_from(hosts.len()).ok().filter(|count| *count > 0);
    let rank = || number(environment, "MEGASCALE_SLICE_ID")?.checked_mul(per_slice?)?.checked_add(worker?);
    (rank(), Vec::new())
}

fn hosts(environment: &Environment) -> Vec<String> {
    let list = environment.get("TPU_WORKER_HOSTNAMES").map_or("", String::as_str);
    list.split(',').map(str::trim).filter(|host| !host.is_empty()).map(cut).collect()
}

/// The paths in a cgroup file: `12:memory:/path`, `0::/path`.
fn cgroup_paths(cgroup: &str) -> impl Iterator<Item = &str> {
    cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2))
}

/// The first of these variables that is set and not empty.
fn value(environment: &BTreeMap<String, String>, names: &[&str]) -> Option<String> {
    names
        .iter()
        .find_map(|name| environment.get(*name))
        .filter(|value| !value.is_empty())
        .map(|value| cut(value))
}

fn number(environment: &Environment, name: &str) -> Option<u32> {
    environment.get(name)?.trim().parse().ok()
}

fn cut(text: &str) -> String {
    text.chars().take(LONGEST_NAME).collect()
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)], cgroup: &str) -> Job {
        let environment =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let process = ProcessKey { pid: 40, start_ticks: 77 };
        job(JobInputs { process, environment: &environment, cgroup, user: "ada" })
    }

    #[test]
    fn a_slurm_job_from_its_variables() {
        let job = of(
            &[
                ("SLURM_JOB_ID", "12"),
                ("SLURM_JOB_NAME", "train"),
                ("SLURM_JOB_USER", "bob"),
                ("SLURM_NODEID", "1"),
                ("SLURM_JOB_NODELIST", "t[0-1]"),
                ("SLURM_RESTART_COUNT", "2"),
            ],
            "0::/\n",
        );
        let want = Job {
            kind: JobKind::Slurm,
            id: "12".into(),
            attempt: Some(2),
            name: Some("train".into()),
            user: Some("bob".into()),
            rank: Some(1),
            hosts: vec!["t0".into(), "t1".into()],
        };
        assert_eq!(job, want);
        assert_eq!(of(&[("SLURM_JOB_ID", "12")], "").attempt, Some(0));
        assert_eq!(of(&[("SLURM_JOB_ID", "x")], "").kind, JobKind::Process);
    }

    #[test]
    fn the_cgroup_wins_over_stale_variables() {
        for cgroup in [
            "9:memory:/slurm/uid_1000/job_34/step_0/task_0\n",
            "4:cpu:/slurm_tpu-3/uid_0/job_34/step_batch\n",
            "0::/system.slice/slurmstepd.scope/job_34/step_0/user/task_0\n",
            "0::/system.slice/tpu-3_slurmstepd.scope/job_34/step_0\n",
        ] {
            let job = of(&[("SLURM_JOB_ID", "12"), ("SLURM_JOB_NAME", "old")], cgroup);
            assert_eq!(
                (job.kind, job.id.as_str(), job.name, job.attempt),
                (JobKind::Slurm, "34", None, None)
            );
        }
        assert_eq!(of(&[], "0::/user.slice/job_34\n").kind, JobKind::Process);
    }

    #[test]
    fn a_jobset_pod() {
        let pod = "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a1b2c3d_1111_2222_3333_444455556666.slice/x.scope\n";
        let job = of(
            &[
                ("JOBSET_NAME", "llm"),
                ("POD_NAMESPACE", "ml"),
                ("TPU_WORKER_ID", "1"),
                ("TPU_WORKER_HOSTNAMES", "llm-s-0-0.llm,llm-s-0-1.llm"),
                ("JOB_COMPLETION_INDEX", "1"),
            ],
            pod,
        );
        assert_eq!((job.kind, job.id.as_str(), job.rank), (JobKind::Jobset, "ml/llm", Some(1)));
        assert_eq!(job.hosts, ["llm-s-0-0.llm", "llm-s-0-1.llm"]);
        let named = |variables: &[(&str, &str)]| of(variables, pod).name.unwrap();
        assert_eq!(named(&[("TPU_WORKER_HOSTNAMES", "llm-s-0-0.llm")]), "llm");
        assert_eq!(named(&[("HOSTNAME", "train-3-x7k2p"), ("JOB_COMPLETION_INDEX", "3")]), "train");
        assert_eq!(named(&[("HOSTNAME", "train-x7k2p")]), "train");
        assert_eq!(named(&[]), "0a1b2c3d-1111-2222-3333-444455556666");
        let version_1 = "3:cpu:/kubepods/burstable/pod0a1b2c3d-1111-2222-3333-444455556666/abc\n";
        assert_eq!(of(&[], version_1).id, "0a1b2c3d-1111-2222-3333-444455556666");
    }

    #[test]
    fn ranks_count_across_slices() {
        let slice = [
            ("JOBSET_NAME", "llm"),
            ("MEGASCALE_NUM_SLICES", "2"),
            ("MEGASCALE_SLICE_ID", "1"),
            ("TPU_WORKER_ID", "1"),
            ("TPU_WORKER_HOSTNAMES", "a,b"),
        ];
        let job = of(&slice, "");
        assert_eq!((job.rank, job.hosts.len()), (Some(3), 0));
    }

    #[test]
    fn a_run_and_a_bare_process() {
        let job =
            of(&[("TPUSCOPE_JOB_ID", "r1"), ("TPUSCOPE_JOB_ATTEMPT", "3"), ("TPUSCOPE_JOB_RANK", "2")], "");
        assert_eq!((job.kind, job.attempt, job.rank), (JobKind::Run, Some(3), Some(2)));
        let job = of(&[], "");
        assert_eq!(
            (job.kind, job.id.as_str(), job.user.as_deref()),
            (JobKind::Process, "40-77", Some("ada"))
        );
    }
}
