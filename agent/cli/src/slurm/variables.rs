//! What the variables of a hook say of its job. Pure.
//!
//! Some of them are chosen by the user of the job: each is checked and bounded here. A variable that is missing where it is
//! needed, or has another form, is an error: Slurm itself sets them all.

use std::ffi::OsString;

use model::{
    host_list::{self, HostListError},
    untrusted::{LABEL, MESSAGE, clean},
};
use proto::tpuscope::v1::AttemptEnding;

/// The longest value of a variable, bytes. Host lists are the longest.
const LONGEST: usize = 64 * 1024;
/// The longest name of a job, characters.
const LONGEST_NAME: usize = 256;
/// The longest name of a cluster, bytes: as Slurm's database has it.
const LONGEST_CLUSTER: usize = 40;
/// The most bytes of host names that are told to the agent, which takes no greater requests. Of a longer list none is
/// told: half of the hosts would look like all of them.
const MOST_HOST_BYTES: usize = 48 * 1024;

/// Why the variables say nothing of a job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum VariableError {
    /// None of these is set.
    #[error("{0} is not set: Slurm sets it for its hooks")]
    Missing(&'static str),
    /// It is no text, or too long.
    #[error("{0} is not UTF-8 text of at most {LONGEST} bytes")]
    Text(&'static str),
    /// It is no number, or none of this variable.
    #[error("{name} is `{value}`, and not {wanted}")]
    Form {
        /// The variable.
        name: &'static str,
        /// What it has.
        value: String,
        /// What it should have.
        wanted: &'static str,
    },
    /// It is no host list.
    #[error("{name}: {error}")]
    Hosts {
        /// The variable.
        name: &'static str,
        /// The fault.
        #[source]
        error: HostListError,
    },
}

/// The variables of this process, or those of a test.
pub(super) struct Variables<F>(pub(super) F);

/// A job as a hook sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct HookJob {
    /// Its number: one for each element of an array.
    pub(super) id: u32,
    /// Its name in Slurm's configuration; empty if it is not told.
    pub(super) cluster: String,
    /// How often it was started before, where known.
    pub(super) attempt: Option<u32>,
    /// The name of its user; empty where Slurm does not tell it, or the user does.
    pub(super) user: String,
    /// Its name; empty where Slurm does not tell it.
    pub(super) name: String,
    /// `12_3` of an element of an array, `12+1` of a component of a heterogeneous job, else empty.
    pub(super) other_id: String,
    /// Its hosts; empty if they are not told.
    pub(super) hosts: Vec<String>,
    /// The position of this host among them.
    pub(super) rank: Option<u32>,
}

impl HookJob {
    /// Its hosts, if a request has room for all of them.
    pub(super) fn hosts_for_request(&self) -> Vec<String> {
        let bytes: usize = self.hosts.iter().map(|host| host.len() + 3).sum();
        if bytes <= MOST_HOST_BYTES { self.hosts.clone() } else { Vec::new() }
    }
}

impl<F: Fn(&str) -> Option<OsString>> Variables<F> {
    /// The job of a prolog or an epilog.
    ///
    /// # Errors
    /// If a variable is missing or has another form.
    pub(super) fn job(&self) -> Result<HookJob, VariableError> {
        let mut job = self.named()?;
        job.attempt = self.restarts()?;
        job.user = clean(&self.text("SLURM_JOB_USER")?.unwrap_or_default(), LABEL);
        let node = self.text("SLURMD_NODENAME")?;
        let position = node.and_then(|node| job.hosts.iter().position(|host| *host == node));
        job.rank = position.and_then(|position| u32::try_from(position).ok());
        Ok(job)
    }

    /// The user of the job of a prolog or an epilog. `uid_of`: the uid of the user with this name, where that can be found out.
    ///
    /// # Errors
    /// As [`Self::job`], and if the name is that of another user.
    pub(super) fn uid(&self, uid_of: impl Fn(&str) -> Option<u32>) -> Result<u32, VariableError> {
        let name = "SLURM_JOB_USER";
        let told = self.first_number("SLURM_JOB_UID", "SLURM_UID")?;
        let user = self.text(name)?;
        let of_user = user.as_deref().and_then(uid_of);
        match (told, of_user) {
            (Some(uid), Some(other)) if uid != other => {
                Err(form(name, &user.unwrap_or_default(), "the user of SLURM_JOB_UID"))
            }
            (Some(uid), _) | (None, Some(uid)) => Ok(uid),
            (None, None) => match user {
                Some(user) => Err(form(name, &user, "a user of this host")),
                None => Err(VariableError::Missing("SLURM_JOB_UID")),
            },
        }
    }

    /// The job of a task's hook.
    ///
    /// # Errors
    /// As [`Self::job`].
    pub(super) fn job_of_task(&self) -> Result<HookJob, VariableError> {
        let mut job = self.named()?;
        // Slurm sets it from the second start on.
        job.attempt = Some(self.restarts()?.unwrap_or(0));
        job.rank = self.number("SLURM_NODEID")?;
        job.name = clean(&self.text("SLURM_JOB_NAME")?.unwrap_or_default(), LONGEST_NAME);
        job.other_id = self.other_id()?;
        Ok(job)
    }

    /// Whether this is the first task of its step on this host. The script of a job has one task.
    ///
    /// # Errors
    /// As [`Self::job`].
    pub(super) fn is_first_here(&self) -> Result<bool, VariableError> {
        Ok(self.number("SLURM_LOCALID")?.is_none_or(|task| task == 0))
    }

    /// Whether this is the first task of its step on all hosts.
    ///
    /// # Errors
    /// As [`Self::job`].
    pub(super) fn is_first(&self) -> Result<bool, VariableError> {
        Ok(self.number("SLURM_PROCID")?.is_none_or(|task| task == 0))
    }

    /// How the job of an epilog ended. Slurm tells a status of 0 also of a job that was cancelled or ran out of time: then it is
    /// not known.
    ///
    /// # Errors
    /// As [`Self::job`].
    pub(super) fn ending(&self) -> Result<AttemptEnding, VariableError> {
        let ending = |how: &str, code: u32| AttemptEnding { how: how.to_owned(), code: Some(code) };
        // As wait(2) has it. Where the job has no status of its own, that of its steps may tell the signal that ended it.
        let own = self.number("SLURM_JOB_EXIT_CODE")?.filter(|status| *status != 0);
        let of_steps = self.number("SLURM_JOB_DERIVED_EC")?.filter(|status| status & 0x7f != 0);
        let Some(status) = own.or(of_steps) else {
            return Ok(AttemptEnding { how: "unknown".to_owned(), code: None });
        };
        Ok(match status & 0x7f {
            0 => ending("exit", (status >> 8) & 0xff),
            signal => ending("signal", signal),
        })
    }

    /// A variable, if it is set and not empty.
    ///
    /// # Errors
    /// If it is no text, or too long.
    pub(super) fn text(&self, name: &'static str) -> Result<Option<String>, VariableError> {
        let Some(value) = (self.0)(name).filter(|value| !value.is_empty()) else { return Ok(None) };
        let text = value.into_string().ok().filter(|text| text.len() <= LONGEST);
        text.map(Some).ok_or(VariableError::Text(name))
    }

    /// What the variables of all hooks tell.
    fn named(&self) -> Result<HookJob, VariableError> {
        let id = self.first_number("SLURM_JOB_ID", "SLURM_JOBID")?;
        let id = id.filter(|id| *id > 0).ok_or(VariableError::Missing("SLURM_JOB_ID"))?;
        let hosts = match self.hosts("SLURM_JOB_NODELIST")? {
            Some(hosts) => hosts,
            None => self.hosts("SLURM_NODELIST")?.unwrap_or_default(),
        };
        Ok(HookJob { id, cluster: self.cluster()?, hosts, ..HookJob::default() })
    }

    /// How often the job was started before.
    fn restarts(&self) -> Result<Option<u32>, VariableError> {
        self.first_number("SLURM_JOB_RESTART_COUNT", "SLURM_RESTART_COUNT")
    }

    /// The first of two variables that is set. Both must be numbers.
    fn first_number(&self, one: &'static str, other: &'static str) -> Result<Option<u32>, VariableError> {
        let (one, other) = (self.number(one)?, self.number(other)?);
        Ok(one.or(other))
    }

    fn number(&self, name: &'static str) -> Result<Option<u32>, VariableError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let number = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
        number.map(Some).ok_or_else(|| form(name, &text, "a number below 2^32"))
    }

    fn cluster(&self) -> Result<String, VariableError> {
        let name = "SLURM_CLUSTER_NAME";
        let cluster = self.text(name)?.unwrap_or_default();
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if cluster.len() <= LONGEST_CLUSTER && cluster.chars().all(allowed) {
            Ok(cluster)
        } else {
            Err(form(name, &cluster, "the name of a cluster"))
        }
    }

    fn hosts(&self, name: &'static str) -> Result<Option<Vec<String>>, VariableError> {
        let Some(list) = self.text(name)? else { return Ok(None) };
        host_list::expand(&list).map(Some).map_err(|error| VariableError::Hosts { name, error })
    }

    fn other_id(&self) -> Result<String, VariableError> {
        let pair = |one, other| Ok(self.number(one)?.zip(self.number(other)?));
        if let Some((array, element)) = pair("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")? {
            return Ok(format!("{array}_{element}"));
        }
        let component = pair("SLURM_HET_JOB_ID", "SLURM_HET_JOB_OFFSET")?;
        Ok(component.map_or_else(String::new, |(job, offset)| format!("{job}+{offset}")))
    }
}

fn form(name: &'static str, value: &str, wanted: &'static str) -> VariableError {
    VariableError::Form { name, value: clean(value, MESSAGE), wanted }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn of<'a>(variables: &'a [(&'a str, &'a str)]) -> Variables<impl Fn(&str) -> Option<OsString> + 'a> {
        Variables(|name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
        })
    }

    /// As Slurm 22.05 sets them for a prolog.
    const PROLOG: &[(&str, &str)] = &[
        ("SLURM_JOB_ID", "4711"),
        ("SLURM_JOB_UID", "20001"),
        ("SLURM_JOB_USER", "alice"),
        ("SLURM_JOB_RESTART_COUNT", "1"),
        ("SLURM_CLUSTER_NAME", "lab"),
        ("SLURM_NODELIST", "tpu-[1-3]"),
        ("SLURMD_NODENAME", "tpu-2"),
    ];

    /// The variables of a prolog with one of them changed.
    fn prolog_with<'a>(name: &'a str, value: &'a str) -> Vec<(&'a str, &'a str)> {
        [(name, value)].into_iter().chain(PROLOG.iter().copied()).collect()
    }

    #[test]
    fn a_prolog_tells_user_attempt_hosts_and_rank() {
        let variables = of(PROLOG);
        let job = variables.job().unwrap();
        assert_eq!((job.id, job.cluster.as_str(), job.attempt, job.rank), (4711, "lab", Some(1), Some(1)));
        assert_eq!(
            (job.user.as_str(), &job.hosts[..]),
            ("alice", &["tpu-1", "tpu-2", "tpu-3"].map(String::from)[..])
        );
        let uid_of = |name: &str| (name == "alice").then_some(20_001);
        assert_eq!(variables.uid(uid_of), Ok(20_001));
        assert_eq!(variables.uid(|_| None), Ok(20_001), "the host does not know her name");
        assert_eq!(of(&[("SLURM_JOB_USER", "alice")]).uid(uid_of), Ok(20_001));
        let error = |variables: &[(&str, &str)]| of(variables).uid(uid_of).unwrap_err().to_string();
        assert_eq!(
            error(&[("SLURM_JOB_USER", "bob")]),
            "SLURM_JOB_USER is `bob`, and not a user of this host"
        );
        assert_eq!(
            error(&[("SLURM_JOB_UID", "7"), ("SLURM_JOB_USER", "alice")]),
            "SLURM_JOB_USER is `alice`, and not the user of SLURM_JOB_UID"
        );
        let bare = of(&[("SLURM_JOBID", "7"), ("SLURM_UID", "0")]);
        assert_eq!(bare.job(), Ok(HookJob { id: 7, ..HookJob::default() }));
        assert_eq!(bare.uid(|_| None), Ok(0));
    }

    #[test]
    fn a_task_tells_the_name_and_the_element_of_an_array() {
        let job = of(&[
            ("SLURM_JOB_ID", "8"),
            ("SLURM_JOB_NAME", "train\u{1b}[2J"),
            ("SLURM_ARRAY_JOB_ID", "7"),
            ("SLURM_ARRAY_TASK_ID", "3"),
            ("SLURM_NODEID", "2"),
        ])
        .job_of_task()
        .unwrap();
        assert_eq!((job.name.as_str(), job.other_id.as_str()), ("train\u{fffd}[2J", "7_3"));
        assert_eq!((job.attempt, job.rank), (Some(0), Some(2)));
        for name in ["SLURM_JOB_RESTART_COUNT", "SLURM_RESTART_COUNT"] {
            let again = [("SLURM_JOB_ID", "8"), (name, "3")];
            let again = of(&again);
            assert_eq!(
                (again.job().unwrap().attempt, again.job_of_task().unwrap().attempt),
                (Some(3), Some(3))
            );
        }
        let component =
            of(&[("SLURM_JOB_ID", "9"), ("SLURM_HET_JOB_ID", "8"), ("SLURM_HET_JOB_OFFSET", "1")]);
        assert_eq!(component.job_of_task().unwrap().other_id, "8+1");
    }

    #[test]
    fn one_task_speaks_for_the_others() {
        for (local, global, here, all) in
            [("0", "0", true, true), ("0", "4", true, false), ("1", "5", false, false)]
        {
            let task = [("SLURM_LOCALID", local), ("SLURM_PROCID", global)];
            assert_eq!((of(&task).is_first_here(), of(&task).is_first()), (Ok(here), Ok(all)));
        }
        assert_eq!((of(&[]).is_first_here(), of(&[]).is_first()), (Ok(true), Ok(true)));
    }

    #[test]
    fn the_end_is_a_code_or_a_signal() {
        let ending = |own: &str, steps: &str| {
            let set = [("SLURM_JOB_EXIT_CODE", own), ("SLURM_JOB_DERIVED_EC", steps)];
            let ending = of(&set).ending().unwrap();
            (ending.how, ending.code)
        };
        for (own, steps, how, code) in [
            ("0", "0", "unknown", None),
            ("10752", "0", "exit", Some(42)),
            ("9", "0", "signal", Some(9)),
            ("139", "0", "signal", Some(11)),
            ("0", "15", "signal", Some(15)),
            ("0", "256", "unknown", None),
            ("256", "15", "exit", Some(1)),
            ("", "", "unknown", None),
        ] {
            assert_eq!(ending(own, steps), (how.to_owned(), code), "{own} {steps}");
        }
    }

    #[test]
    fn missing_and_hostile_variables_are_named() {
        let error = |variables: &[(&str, &str)]| of(variables).job().unwrap_err().to_string();
        assert_eq!(error(&[]), "SLURM_JOB_ID is not set: Slurm sets it for its hooks");
        assert_eq!(of(&[]).uid(|_| None), Err(VariableError::Missing("SLURM_JOB_UID")));
        for (name, value, fault) in [
            ("SLURM_JOB_ID", "12;rm -rf /", "SLURM_JOB_ID is `12;rm -rf /`, and not a number below 2^32"),
            ("SLURM_JOB_ID", "+3", "SLURM_JOB_ID is `+3`, and not a number below 2^32"),
            ("SLURM_JOB_ID", "4294967296", "SLURM_JOB_ID is `4294967296`, and not a number below 2^32"),
            ("SLURM_JOB_ID", "0", "SLURM_JOB_ID is not set: Slurm sets it for its hooks"),
            ("SLURM_JOB_RESTART_COUNT", "-1", "SLURM_JOB_RESTART_COUNT is `-1`, and not a number below 2^32"),
            ("SLURM_RESTART_COUNT", "x", "SLURM_RESTART_COUNT is `x`, and not a number below 2^32"),
            (
                "SLURM_CLUSTER_NAME",
                "a\nb",
                "SLURM_CLUSTER_NAME is `a\u{fffd}b`, and not the name of a cluster",
            ),
            ("SLURM_NODELIST", "n[1-", "SLURM_NODELIST: the brackets of the host list do not match"),
            ("SLURM_NODELIST", "n[1-999999999]", "SLURM_NODELIST: the host list has more than 65536 hosts"),
        ] {
            assert_eq!(error(&prolog_with(name, value)), fault);
        }
        let long = "x".repeat(LONGEST + 1);
        assert_eq!(
            error(&prolog_with("SLURM_CLUSTER_NAME", &long)),
            "SLURM_CLUSTER_NAME is not UTF-8 text of at most 65536 bytes"
        );
        let bytes = Variables(|_: &str| Some(OsString::from_vec(vec![0xff])));
        assert_eq!(bytes.uid(|_| None), Err(VariableError::Text("SLURM_JOB_UID")));
    }

    #[test]
    fn a_list_that_is_too_long_for_a_request_is_left_out() {
        let of_list = |list| {
            let job = of(&prolog_with("SLURM_NODELIST", list)).job().unwrap();
            (job.rank, job.hosts_for_request().len())
        };
        assert_eq!(of_list("tpu-[1-65536]"), (Some(1), 0));
        assert_eq!(of_list("tpu-[1-4000]"), (Some(1), 4000));
    }
}
