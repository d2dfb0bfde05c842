//! The hosts of a Slurm job: from the job's own variables inside it, elsewhere from `squeue` and `scontrol`.

use std::{env, fmt, str::FromStr};

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
        let variable = |name| env::var(name).ok();
        if let Some(list) = own_list(self, variable("SLURM_JOB_ID"), variable("SLURM_JOB_NODELIST")) {
            return distinct(listed(&list)?);
        }
        let known =
            answer("squeue", &["-h", "-j", &self.0, "-o", "%T %N"], LIMIT).await.map_err(SlurmError::from)?;
        let list = nodes(self, &known)?;
        let names =
            answer("scontrol", &["show", "hostnames", &list], LIMIT).await.map_err(SlurmError::from)?;
        let hosts = names.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        distinct(hosts)
    }
}

/// The list of the job that this process is a part of, if it is this job.
fn own_list(job: &SlurmJob, own_job: Option<String>, list: Option<String>) -> Option<String> {
    list.filter(|list| own_job.is_some_and(|own| own == job.0) && !list.is_empty())
}

/// The node list in the answer of squeue: a line with the state and the list for each job.
fn nodes(job: &SlurmJob, answer: &str) -> Result<String, SlurmError> {
    let mut lines = answer.lines().filter(|line| !line.trim().is_empty());
    let Some(line) = lines.next() else { return Err(SlurmError::Ended(job.clone())) };
    if lines.next().is_some() {
        return Err(SlurmError::Several(job.clone()));
    }
    match line.trim().split_once(' ') {
        Some((_, list)) if !list.trim().starts_with('-') => Ok(list.trim().to_owned()),
        other => {
            let state = other.map_or(line.trim(), |(state, _)| state);
            Err(SlurmError::NoHosts { job: job.clone(), state: clean(state, MESSAGE) })
        }
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
        let read = |answer: &str| nodes(&job("7"), answer).map_err(|error| error.to_string());
        assert_eq!(read("RUNNING tpu-[001-003],b\n").unwrap(), "tpu-[001-003],b");
        assert_eq!(read("").unwrap_err(), "the Slurm job 7 has ended");
        assert_eq!(read("PENDING \n").unwrap_err(), "the Slurm job 7 has no hosts: its state is PENDING");
        assert_eq!(
            read("RUNNING --help\n").unwrap_err(),
            "the Slurm job 7 has no hosts: its state is RUNNING"
        );
        assert_eq!(read("RUNNING a\nRUNNING b\n").unwrap_err(), "the id 7 stands for several jobs");
    }

    #[test]
    fn inside_the_job_its_own_variable_is_used() {
        let own = |id: Option<&str>, list: Option<&str>| {
            own_list(&job("7"), id.map(str::to_owned), list.map(str::to_owned))
        };
        assert_eq!(own(Some("7"), Some("n[1-2]")).as_deref(), Some("n[1-2]"));
        for (id, list) in
            [(Some("8"), Some("n1")), (None, Some("n1")), (Some("7"), None), (Some("7"), Some(""))]
        {
            assert_eq!(own(id, list), None);
        }
    }
}
