//! `tpuscope jobs list`.

use model::time::{Clock, SystemClock, Timestamp};
use proto::tpuscope::v1::{JobStatus, ListJobsRequest, jobs_client::JobsClient};
use server::protocol;

use super::{
    list_hosts,
    row::{self, JobRow},
};
use crate::{
    CommandResult, client,
    exit::Exit,
    hosts::HostsArgs,
    output::{self, TextTable},
};

/// The heads of [`cells`].
pub(super) const HEADS: [&str; 8] =
    ["JOB", "ATTEMPT", "STATE", "NAME", "USER", "CHIPS", "START (UTC)", "LASTED"];

/// Jobs that are listed without `--limit`.
const LIMIT: u32 = 100;

/// Arguments of `jobs list`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only those that run
    #[arg(long)]
    running: bool,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = LIMIT, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    #[command(flatten)]
    agent: client::SocketArgs,
    /// Print JSON (docs/schemas/jobs-list.schema.json; of other hosts jobs-list-hosts.schema.json)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    hosts: HostsArgs,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let request = ListJobsRequest { peer: Some(protocol::own()), limit: args.limit, running: args.running };
    if args.hosts.is_given() {
        return list_hosts::run(&args.hosts, request, args.json);
    }
    let reply = client::block_on(async {
        let mut jobs = JobsClient::new(args.agent.connect().await?);
        client::within(client::CALL_TIMEOUT, jobs.list(request)).await
    })?;
    let jobs = reply.into_inner().jobs;
    if args.json {
        let jobs: Vec<JobRow> = jobs.iter().map(JobRow::from).collect();
        output::json(&serde_json::json!({ "jobs": jobs }))?;
    } else if jobs.is_empty() {
        output::print(if args.running {
            "no job runs on this host\n"
        } else {
            "no job was seen on this host\n"
        })?;
    } else {
        output::print(&page(&jobs, SystemClock.now()))?;
    }
    Ok(Exit::Ok)
}

fn page(jobs: &[JobStatus], now: Timestamp) -> String {
    let mut table = TextTable::new(HEADS);
    jobs.iter().for_each(|job| table.row(cells(job, now)));
    table.text()
}

/// A job as a row of a table.
pub(super) fn cells(job: &JobStatus, now: Timestamp) -> [String; 8] {
    let newest = job.attempts.last();
    let cell = |text: Option<String>| text.unwrap_or_default();
    [
        row::job_name(job),
        cell(newest.map(|attempt| attempt.attempt.to_string())),
        newest.map_or_else(|| job.state.clone(), row::state),
        job.name.clone(),
        job.user.clone(),
        row::chips(&job.chips),
        cell(newest.and_then(|attempt| attempt.start_unix_ns).map(row::instant)),
        cell(newest.and_then(|attempt| row::lasted(attempt, now))),
    ]
}

#[cfg(test)]
mod tests {
    use proto::tpuscope::v1::{AttemptStatus, JobKey};

    use super::*;

    #[test]
    fn a_job_of_another_user_has_its_state_and_chips() {
        let key = |id: &str| Some(JobKey { kind: "slurm".into(), id: id.into(), ..JobKey::default() });
        let attempt = AttemptStatus {
            attempt: 2,
            state: "running".into(),
            start_unix_ns: Some(0),
            ..AttemptStatus::default()
        };
        let own = JobStatus {
            key: key("12"),
            state: "running".into(),
            name: "train".into(),
            user: "ada".into(),
            chips: vec![0, 1],
            attempts: vec![attempt],
            ..JobStatus::default()
        };
        let other =
            JobStatus { key: key("13"), is_private: true, state: "ended".into(), ..JobStatus::default() };
        let text = page(&[own, other], Timestamp(3_723_000_000_000));
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1][..6], ["slurm:12", "2", "running", "train", "ada", "0,1"]);
        assert_eq!(lines[1][6..], ["1970-01-01T00:00:00Z", "1h", "02m"]);
        assert_eq!(lines[2], ["slurm:13", "-", "ended", "-", "-", "-", "-", "-"]);
    }
}
