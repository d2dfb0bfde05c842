//! The jobs of the workloads on this host.

use std::fmt;

use serde::Serialize;

/// What names the job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum JobKind {
    /// A Slurm job: `SLURM_JOB_ID`, or the cgroup path.
    Slurm,
    /// A Kubernetes JobSet, Job or pod.
    Jobset,
    /// `tpuscope run`.
    Run,
    /// Nothing but the process.
    #[default]
    Process,
}

impl JobKind {
    /// Its name in labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Slurm => "slurm",
            Self::Jobset => "jobset",
            Self::Run => "run",
            Self::Process => "process",
        }
    }

    /// The kind with this name in labels.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Slurm, Self::Jobset, Self::Run, Self::Process].into_iter().find(|kind| kind.as_str() == name)
    }
}

/// What names a job for as long as it is remembered. Two users never share one: a variable in a process's environment
/// says which job it claims to be, and its user cannot be claimed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct JobKey {
    /// What names it.
    pub kind: JobKind,
    /// The cluster of its scheduler; empty if there is none, or it is not known.
    pub cluster: String,
    /// Its user.
    pub uid: u32,
    /// Its id: as in [`Job::id`].
    pub id: String,
}

/// Whether a text names the job of this kind and id: `ID` or `KIND:ID`.
pub fn is_named(kind: JobKind, id: &str, text: &str) -> bool {
    let of_kind = text.strip_prefix(kind.as_str()).and_then(|rest| rest.strip_prefix(':'));
    text == id || of_kind == Some(id)
}

impl JobKey {
    /// Whether both may name one job: a cluster that is not known may be any.
    pub fn may_be(&self, other: &Self) -> bool {
        let Self { kind, cluster, uid, id } = other;
        let is_cluster = self.cluster == *cluster || self.cluster.is_empty() || cluster.is_empty();
        is_cluster && (self.kind, self.uid, &self.id) == (*kind, *uid, id)
    }
}

/// As the command line takes it: `slurm:12`.
impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.as_str(), self.id)
    }
}

/// A job, as one of its processes shows it. A job may run on several hosts; `rank` is that of this host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Job {
    /// What names it.
    pub kind: JobKind,
    /// Its id; for [`JobKind::Process`] `pid-start`, which no second process ever has.
    pub id: String,
    /// 0 at the first start, one more at each restart; `None` if it is not known.
    pub attempt: Option<u32>,
    /// Its name, where one is given.
    pub name: Option<String>,
    /// The user that runs it.
    pub user: Option<String>,
    /// This host's rank in it.
    pub rank: Option<u32>,
    /// All its hosts in rank order, where known.
    pub hosts: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_named_by_its_id_with_and_without_its_kind() {
        for (text, wanted) in [
            ("12", true),
            ("slurm:12", true),
            ("run:12", false),
            ("slurm12", false),
            ("slurm:", false),
            ("1", false),
        ] {
            assert_eq!(is_named(JobKind::Slurm, "12", text), wanted, "{text}");
        }
        assert!(is_named(JobKind::Run, "slurm:12", "slurm:12"), "an id that looks like a kind");
    }

    #[test]
    fn a_cluster_that_is_not_known_may_be_any() {
        let key =
            |cluster: &str, uid| JobKey { cluster: cluster.into(), uid, id: "7".into(), ..JobKey::default() };
        for (one, other, wanted) in [
            (key("a", 1), key("a", 1), true),
            (key("a", 1), key("", 1), true),
            (key("", 1), key("b", 1), true),
            (key("a", 1), key("b", 1), false),
            (key("a", 1), key("a", 2), false),
        ] {
            assert_eq!(one.may_be(&other), wanted, "{one:?} {other:?}");
        }
    }
}
