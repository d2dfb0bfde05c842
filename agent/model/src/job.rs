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
