//! The hosts of a Slurm job: from the job's own variables inside it, elsewhere from `squeue` and `scontrol`.

use std::{env, fmt, str::FromStr, time::Duration};

use async_trait::async_trait;
use model::untrusted::{MESSAGE, clean};

use super::{
    HostAddress, HostProvider, HostsError, LIMIT, distinct, listed,
    query_command::{QueryCommandError, answer},
};

/// The id of a Slurm job: `4711`, `4711_3` (an element of an array) or `4711+1` (a component).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmJob(String);

/// Why the hosts of a job are not known.
#[derive(Debug, thiserror::Error)]
pub enum SlurmError {
    /// Not the id of a job.
    #[error("`{0}` is no id of a Slurm job: expected a number, such as 4711 or 4711_3")]
    Id(String),
    /// A command of Slurm has no answer.
    #[error(transparent)]
    Command(#[from] QueryCommandError),
    /// The job has ended.
    #[error("the Slurm job {0} has ended")]
    Ended(SlurmJob),
    /// The job has no hosts yet, or no longer.
    #[error("the Slurm job {job} has no hosts: its state is {state}")]
    NoHosts {
        /// The job.
        job: SlurmJob,
        /// Its state, as squeue names it.
        state: String,
    },
    /// The id stands for several jobs.
    #[error("the id {0} stands for several jobs")]
    Several(SlurmJob),
}

impl FromStr for SlurmJob {
    type Err = SlurmError;

    fn from_str(text: &str) -> Result<Self, SlurmError> {
        let number = |part: &str| {
            !part.is_empty() && part.len() <= 10 && part.bytes().all(|byte| byte.is_ascii_digit())
        };
        let (id, part) = text.split_once(['_', '+']).unwrap_or((text, "0"));
        if number(id) && number(part) {
            Ok(Self(text.to_owned()))
        } else {
            Err(SlurmError::Id(clean(text, MESSAGE)))
        }
    }
}

impl fmt::Display for SlurmJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[async_trait]
impl HostProvider for SlurmJob {
    async fn hosts(&self) -> Result<Vec<HostAddress>, HostsError> {
        if let Some(list) = own_list(self, |name| env::var(name).ok()) {
            return distinct(listed(&list)?);
        }
        let list = self.known().await?.nodes;
        let names =
            answer("scontrol", &["show", "hostnames", &list], LIMIT).await.map_err(SlurmError::from)?;
        let hosts = names.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        distinct(hosts)
    }
}

impl SlurmJob {
    /// The id by which srun starts a step in the job: it does not know elements of arrays.
    ///
    /// # Errors
    /// If Slurm does not know the job, or it does not run.
    pub async fn step_id(&self) -> Result<Self, HostsError> {
        if self.0.contains('_') { Ok(self.known().await?.id) } else { Ok(self.clone()) }
    }

    /// The options that name the job to srun.
    pub(crate) fn srun_options(&self) -> Vec<String> {
        match self.0.split_once('+') {
            Some((job, component)) => {
                vec!["--jobid".to_owned(), job.to_owned(), format!("--het-group={component}")]
            }
            None => vec!["--jobid".to_owned(), self.0.clone()],
        }
    }

    /// As squeue knows it.
    async fn known(&self) -> Result<KnownJob, SlurmError> {
        let words = ["-h", "-j", &self.0, "-o", "%i %A %T %N"];
        known(self, &answer("squeue", &words, LIMIT).await?)
    }
}

/// The configuration that the daemons of Slurm use, as `scontrol show config` writes it.
///
/// # Errors
/// If it gives no answer within `limit`.
pub async fn slurm_configuration(limit: Duration) -> Result<String, SlurmError> {
    Ok(answer("scontrol", &["show", "config"], limit).await?)
}

/// A job that has nodes.
#[derive(Debug, PartialEq, Eq)]
struct KnownJob {
    /// A plain number.
    id: SlurmJob,
    nodes: String,
}

/// The list of the job that this process is a part of, if it is this job. It is not taken where it is not whole: of a
/// heterogeneous job it has one component, and in a step that was started from outside one of its two variables has the nodes
/// of the step alone.
fn own_list(job: &SlurmJob, variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    variable("SLURM_JOB_ID").filter(|own| *own == job.0 && variable("SLURM_HET_SIZE").is_none())?;
    let list = variable("SLURM_JOB_NODELIST").filter(|list| !list.is_empty())?;
    let whole = variable("SLURM_NODELIST").is_none_or(|other| other == list);
    whole.then_some(list)
}

/// The job in the answer of squeue: a line for each job that the id may stand for, with id, number, state and nodes.
fn known(job: &SlurmJob, answer: &str) -> Result<KnownJob, SlurmError> {
    let lines: Vec<Vec<&str>> = answer.lines().map(|line| line.split_whitespace().collect()).collect();
    let lines: Vec<_> = lines.iter().filter(|words| !words.is_empty()).collect();
    let line = match lines.as_slice() {
        [] => return Err(SlurmError::Ended(job.clone())),
        [line] => line,
        // squeue names all components of a job when one is asked for.
        lines => {
            let named = lines.iter().find(|words| words[0] == job.0);
            named.ok_or_else(|| SlurmError::Several(job.clone()))?
        }
    };
    let no_hosts = |state: &str| SlurmError::NoHosts { job: job.clone(), state: clean(state, MESSAGE) };
    match line.as_slice() {
        [_, number, _, nodes] if !nodes.starts_with('-') => {
            Ok(KnownJob { id: number.parse()?, nodes: (*nodes).to_owned() })
        }
        words => Err(no_hosts(words.get(2).unwrap_or(&"unknown"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(text: &str) -> SlurmJob {
        text.parse().unwrap()
    }

    #[test]
    fn ids_are_numbers() {
        for good in ["1", "4711", "4711_3", "4711+1"] {
            assert_eq!(job(good).to_string(), good);
        }
        for bad in ["", "x", "-1", "1_", "_1", "1 2", "1,2", "1_2_3", "99999999999", "1.batch"] {
            assert!(matches!(bad.parse::<SlurmJob>(), Err(SlurmError::Id(_))), "{bad}");
        }
    }

    #[test]
    fn the_answer_of_squeue_is_read() {
        let read = |id: &str, answer: &str| known(&job(id), answer).map_err(|error| error.to_string());
        let found = |id: &str, nodes: &str| Ok(KnownJob { id: job(id), nodes: nodes.to_owned() });
        assert_eq!(read("7", "7 7 RUNNING tpu-[001-003],b\n"), found("7", "tpu-[001-003],b"));
        assert_eq!(read("7_4", "7_4 9 RUNNING n2\n"), found("9", "n2"));
        let components = "7+0 7 RUNNING n0\n7+1 8 RUNNING n1\n";
        assert_eq!(read("7+1", components), found("8", "n1"));
        assert_eq!(read("7", components).unwrap_err(), "the id 7 stands for several jobs");
        assert_eq!(read("7", "").unwrap_err(), "the Slurm job 7 has ended");
        let pending = "the Slurm job 7 has no hosts: its state is PENDING";
        assert_eq!(read("7", "7 7 PENDING \n").unwrap_err(), pending);
        assert_eq!(
            read("7", "7 7 RUNNING --help\n").unwrap_err(),
            "the Slurm job 7 has no hosts: its state is RUNNING"
        );
        assert!(read("7", "7\n").is_err() && read("7", "7 x RUNNING n0\n").is_err());
    }

    #[test]
    fn inside_the_job_its_own_variable_is_used() {
        let own = |id: &str, list: &str, other: &str| {
            let set = [("SLURM_JOB_ID", id), ("SLURM_JOB_NODELIST", list), ("SLURM_NODELIST", other)];
            let set = set.map(|(name, value)| (name, Some(value).filter(|value| *value != "unset")));
            own_list(&job("7"), |name| set.iter().find(|(set, _)| *set == name)?.1.map(str::to_owned))
        };
        assert_eq!(own("7", "n[1-2]", "n[1-2]").as_deref(), Some("n[1-2]"));
        assert_eq!(own("7", "n[1-2]", "unset").as_deref(), Some("n[1-2]"));
        for (id, list, other) in [
            ("8", "n1", "n1"),
            ("unset", "n1", "n1"),
            ("7", "unset", "n1"),
            ("7", "", ""),
            // A step of one node, started from outside.
            ("7", "n1", "n[1-2]"),
        ] {
            assert_eq!(own(id, list, other), None);
        }
    }
}
