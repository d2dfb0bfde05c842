//! `tpuscope slurm report`: what the agent of this host knows of a Slurm job, and the sessions that are kept of it. The hook of a
//! task writes the same text where the user of the job asked for it.

use model::time::{Clock, SystemClock};
use proto::tpuscope::v1::{
    JobKey, JobStatus, ListSessionsRequest, SessionSummary, ShowJobReply, sessions_client::SessionsClient,
};
use serde_json::json;
use server::protocol;

use crate::{
    CommandResult, client,
    exit::Exit,
    failure::Failure,
    jobs::{self, JobArgs, row::JobRow},
    output,
    sessions::list,
};

/// Arguments of `slurm report`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The job: its number, 12_3 for an element of an array, or its name
    #[arg(value_name = "JOB")]
    job: String,
    #[command(flatten)]
    of: JobArgs,
    /// Print JSON (docs/schemas/slurm-report.schema.json)
    #[arg(long)]
    json: bool,
}

/// A job, and the sessions of it.
pub(super) struct SlurmReport {
    job: JobStatus,
    /// The attempt that was asked for.
    attempt: u32,
    sessions: Vec<SessionSummary>,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let report = SlurmReport::ask(&args.of, &args.job)?;
    if args.json {
        let SlurmReport { job, attempt, sessions } = &report;
        let sessions: Vec<_> = sessions.iter().map(list::value).collect();
        output::json(&json!({ "job": JobRow::from(job), "attempt": attempt, "sessions": sessions }))?;
    } else {
        output::print(&report.text())?;
    }
    Ok(Exit::Ok)
}

impl SlurmReport {
    /// Asks the agent.
    ///
    /// # Errors
    /// If the agent does not answer, does not know the job, or its user is another one.
    pub(super) fn ask(of: &JobArgs, job: &str) -> Result<Self, Failure> {
        let job = if job.starts_with("slurm:") { job.to_owned() } else { format!("slurm:{job}") };
        let mut replies = jobs::ask(&[&job], of)?;
        let ShowJobReply { job: Some(job), attempt, .. } = replies.remove(0) else {
            return Err(Failure::internal("the agent showed no job"));
        };
        let listed = client::block_on(async {
            let mut sessions = SessionsClient::new(of.agent().connect().await?);
            let request = ListSessionsRequest { peer: Some(protocol::own()), limit: 0 };
            client::within(client::CALL_TIMEOUT, sessions.list(request)).await
        })?;
        let JobKey { id, uid, .. } = job.key.clone().unwrap_or_default();
        let mut sessions = listed.into_inner().sessions;
        sessions.retain(|session| {
            let mut jobs = session.context.iter().flat_map(|context| &context.jobs);
            let mut users = session.context.iter().flat_map(|context| &context.users);
            jobs.any(|of| of.kind == "slurm" && of.id == id) && users.any(|user| user.uid == Some(uid))
        });
        Ok(Self { job, attempt, sessions })
    }

    /// The report as text.
    pub(super) fn text(&self) -> String {
        let mut text = jobs::show::page(&self.job, self.attempt, SystemClock.now());
        text.push('\n');
        if self.sessions.is_empty() {
            text.push_str("no session of it is kept on this host\n");
        } else {
            text.push_str(&list::narrow_table(&self.sessions));
        }
        text
    }
}
