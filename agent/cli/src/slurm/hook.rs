//! The hooks of Slurm: each tells the agent of this host one thing about one job, and ends.
//!
//! ```text
//!   this thread ──starts──▶ the thread of the work: variables, leftovers, agent, report
//!        │                                │
//!        └── waits for it, at most the limit ──▶ ends the process with 0 (with --strict: with the code of the failure)
//! ```
//!
//! A job waits for its prolog, and a node for its epilog: must never wait longer than the limit, whatever hangs, write to
//! standard output, start a program, or end with another code than 0 unless --strict is given.

use std::{env, time::Duration};

use host::workloads::leftovers::{self, EndedJob, Leftover};
use nix::unistd::{User, geteuid, gethostname};
use proto::tpuscope::v1::{
    self as messages, EndAttemptRequest, JobKey, RegisterAttemptRequest, jobs_client::JobsClient,
};
use server::protocol;
use tokio::time::Instant;

use super::{
    report::SlurmReport,
    report_file,
    variables::{HookJob, Variables},
};
use crate::{
    CommandResult, client,
    deadline::{self, Unfinished},
    exit::Exit,
    failure::Failure,
    jobs::JobArgs,
    output, remedies,
    settings::Config,
    settings_args,
};

/// Limit of the hooks that a job's start waits for.
const START_LIMIT: Duration = Duration::from_secs(2);
/// Limit of the hooks after a job.
const END_LIMIT: Duration = Duration::from_secs(5);
/// Limit of the search for leftovers. The agent is told that the job ended in any case.
const SEARCH_LIMIT: Duration = Duration::from_secs(2);
/// Limit of the question for the user of a name: a name service may hang.
const NAME_LIMIT: Duration = Duration::from_millis(500);
/// The file that libtpu locks while a process uses the chips.
const LOCK_FILE: &str = "/tmp/libtpu_lockfile";

/// Arguments of a hook.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// End with the code of a failure, and not with 0. A node whose prolog or epilog fails is drained
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    agent: client::SocketArgs,
}

/// The hooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hook {
    /// On each host before the job.
    Prolog,
    /// On each host after the job.
    Epilog,
    /// Before each task, as the user of the job.
    TaskProlog,
    /// After each task, as the user of the job.
    TaskEpilog,
}

impl Hook {
    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Prolog => "prolog",
            Self::Epilog => "epilog",
            Self::TaskProlog => "task-prolog",
            Self::TaskEpilog => "task-epilog",
        }
    }

    fn limit(self) -> Duration {
        match self {
            Self::Prolog | Self::TaskProlog => START_LIMIT,
            Self::Epilog | Self::TaskEpilog => END_LIMIT,
        }
    }
}

pub(super) fn run(hook: Hook, args: &Args) -> CommandResult {
    let agent = args.agent.clone();
    let done = within(hook, hook.limit(), move || match hook {
        Hook::Prolog => prolog(&agent),
        Hook::Epilog => epilog(&agent),
        Hook::TaskProlog => task_prolog(&agent),
        Hook::TaskEpilog => task_epilog(&agent),
    });
    match done {
        Err(failure) if args.strict => Err(failure),
        Err(failure) => {
            output::print_error(&failure.to_string());
            Ok(Exit::Ok)
        }
        Ok(()) => Ok(Exit::Ok),
    }
}

/// The result of the hook's work, if it comes within `limit`. What hangs ends with the process.
fn within(
    hook: Hook,
    limit: Duration,
    work: impl FnOnce() -> Result<(), Failure> + Send + 'static,
) -> Result<(), Failure> {
    let start = Instant::now();
    deadline::within(hook.name(), limit, work).unwrap_or_else(|unfinished| {
        Err(match unfinished {
            Unfinished::Late => remedies::late_hook(hook, start.elapsed(), limit),
            Unfinished::Panicked | Unfinished::NotStarted(_) => {
                Failure::internal(format_args!("the {}: {unfinished}", hook.name()))
            }
        })
    })
}

fn variables() -> Variables<impl Fn(&str) -> Option<std::ffi::OsString>> {
    Variables(|name: &str| env::var_os(name))
}

/// The uid of this user, if the host tells it in time.
fn uid_of(name: &str) -> Option<u32> {
    let name = name.to_owned();
    let ask = move || User::from_name(&name).ok().flatten().map(|user| user.uid.as_raw());
    deadline::within("user", NAME_LIMIT, ask).ok().flatten()
}

fn key(job: &HookJob, uid: u32) -> JobKey {
    JobKey { kind: "slurm".to_owned(), cluster: job.cluster.clone(), uid, id: job.id.to_string() }
}

fn prolog(agent: &client::SocketArgs) -> Result<(), Failure> {
    let variables = variables();
    let job = variables.job().map_err(remedies::hook_variable)?;
    let uid = variables.uid(uid_of).map_err(remedies::hook_variable)?;
    register(agent, &job, uid)
}

fn task_prolog(agent: &client::SocketArgs) -> Result<(), Failure> {
    let variables = variables();
    if !variables.is_first_here().map_err(remedies::hook_variable)? {
        return Ok(());
    }
    let job = variables.job_of_task().map_err(remedies::hook_variable)?;
    register(agent, &job, geteuid().as_raw())
}

fn register(agent: &client::SocketArgs, job: &HookJob, uid: u32) -> Result<(), Failure> {
    let request = RegisterAttemptRequest {
        peer: Some(protocol::own()),
        key: Some(key(job, uid)),
        attempt: job.attempt,
        name: job.name.clone(),
        user: job.user.clone(),
        other_id: job.other_id.clone(),
        hosts: job.hosts_for_request(),
        rank: job.rank,
        ..RegisterAttemptRequest::default()
    };
    client::block_on(async {
        let mut jobs = JobsClient::new(agent.connect().await?);
        client::within(client::CALL_TIMEOUT, jobs.register_attempt(request)).await
    })?;
    Ok(())
}

fn epilog(agent: &client::SocketArgs) -> Result<(), Failure> {
    let variables = variables();
    let job = variables.job().map_err(remedies::hook_variable)?;
    let uid = variables.uid(uid_of).map_err(remedies::hook_variable)?;
    let request = EndAttemptRequest {
        peer: Some(protocol::own()),
        key: Some(key(&job, uid)),
        attempt: job.attempt,
        ending: Some(variables.ending().map_err(remedies::hook_variable)?),
        leftovers: left_by(uid, job.id).iter().map(message).collect(),
        ..EndAttemptRequest::default()
    };
    client::block_on(async {
        let mut jobs = JobsClient::new(agent.connect().await?);
        client::within(client::CALL_TIMEOUT, jobs.end_attempt(request)).await
    })?;
    Ok(())
}

/// What the job has left on this host; nothing if the search does not end.
fn left_by(uid: u32, job: u32) -> Vec<Leftover> {
    let search = move || {
        // A mistake in the settings is the agent's to report.
        let settings = settings_args::Args::of_environment().of_agent();
        let Config { paths, device, .. } = settings.map(|loaded| loaded.config).unwrap_or_default();
        let job = EndedJob { uid, slurm_id: &job.to_string() };
        leftovers::left_by(job, &paths, &device, LOCK_FILE.as_ref())
    };
    deadline::within("leftovers", SEARCH_LIMIT, search).unwrap_or_default()
}

fn message(leftover: &Leftover) -> messages::Leftover {
    let files = |files: &[std::path::PathBuf]| files.iter().map(|file| file.display().to_string()).collect();
    match leftover {
        Leftover::Process { pid, command, holds } => {
            messages::Leftover { pid: *pid, command: command.clone(), files: files(holds) }
        }
        Leftover::LockFile { path } => {
            messages::Leftover { files: files(std::slice::from_ref(path)), ..Default::default() }
        }
    }
}

fn task_epilog(agent: &client::SocketArgs) -> Result<(), Failure> {
    let variables = variables();
    let Some(pattern) = variables.text(report_file::VARIABLE).map_err(remedies::hook_variable)? else {
        return Ok(());
    };
    let node = variables.text("SLURMD_NODENAME").map_err(remedies::hook_variable)?;
    let node = node.unwrap_or_else(host_name);
    let job = variables.job_of_task().map_err(remedies::hook_variable)?;
    let name = report_file::ReportName::of(&pattern, job.id, &node).map_err(remedies::report_file)?;
    let is_writer = if name.is_of_one_host() { variables.is_first_here() } else { variables.is_first() };
    if !is_writer.map_err(remedies::hook_variable)? {
        return Ok(());
    }
    let folder = variables.text("SLURM_JOB_WORK_DIR").map_err(remedies::hook_variable)?;
    let report = SlurmReport::ask(&JobArgs::of_agent(agent.clone()), &job.id.to_string())?;
    // Where the variable is missing, Slurm has started the hook in this folder.
    let folder = folder.as_deref().unwrap_or(".");
    report_file::write(folder.as_ref(), &name, &report.text()).map_err(remedies::report_file)
}

/// The name of this host without its domain, as Slurm names nodes that the configuration gives no other name.
fn host_name() -> String {
    let name = gethostname().unwrap_or_default();
    name.to_string_lossy().split('.').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_that_hangs_is_left_at_its_limit() {
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let hangs = move || {
            let _ = wait.recv();
            Ok(())
        };
        let failure = within(Hook::Prolog, Duration::from_millis(1), hangs).unwrap_err();
        assert_eq!(failure.exit, Exit::Timeout);
        assert!(failure.what.starts_with("the prolog gave up after "), "{}", failure.what);
        assert!(failure.what.ends_with(" s: its limit is 1ms"), "{}", failure.what);
        drop(end);
        let panics = || -> Result<(), Failure> { panic!("a fault") };
        assert_eq!(within(Hook::Epilog, END_LIMIT, panics).unwrap_err().what, "the epilog: it panicked");
        assert!(within(Hook::Epilog, END_LIMIT, || Ok(())).is_ok());
    }
}
